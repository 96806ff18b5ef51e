"""Measures the models of a finished sweep, as `raydp score` does."""

from __future__ import annotations

from typing import Any

from raydp.extensions.later_scores.requests import requests_from
from raydp.extensions.later_scores.sweep import score_sweep
from raydp.system.output import stderr
from tests.sweep.trained import TrainedSpec


def measure(trained: TrainedSpec, **options: Any) -> dict[str, Any]:
    return score_sweep(trained.folder, requests_from(**options), console=stderr)
