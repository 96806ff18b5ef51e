"""How configurations and runs are named for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def configuration_name(configuration: Mapping[str, Any]) -> str:
    """(b, T, η) of a row that has "batch_size", "num_steps" and "learning_rate"."""
    return f"(b={configuration['batch_size']}, T={configuration['num_steps']}, η={configuration['learning_rate']:g})"


def run_name(run: Mapping[str, Any]) -> str:
    """A run by its configuration and its seed."""
    return f"{configuration_name(run)} seed {run['seed']}"
