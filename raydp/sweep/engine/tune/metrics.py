"""What Ray Tune and its callbacks see of a run: its config and its metrics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from raydp.sweep.store.results import RunResult
from raydp.training.trial_plan import TrialPlan
from search_spaces.configuration import HYPERPARAMETERS

CONFIG = ("run_id", *HYPERPARAMETERS, "noise_multiplier", "seed")
PLAIN = ("status", "reason", "utility_loss", "train_seconds", "score_seconds", "attempts")
"""Fields of a result that are metrics as they are."""


def config_of(trial: TrialPlan) -> dict[str, Any]:
    """Return a run's config: its id, (b, T, η), σ and seed."""
    fields = asdict(trial)
    return {name: fields[name] for name in CONFIG}


def final_metrics(result: RunResult, score: str) -> dict[str, Any]:
    """Return the metrics of a run that has ended.

    Args:
        result: the run's result.
        score: the score that the sweep selects by.

    Returns:
        "status", and as far as the run has them: "utility_loss", "score", "score.NAME" and "score.NAME.std_error" of
        every score, "train_seconds", "score_seconds", "attempts" and "reason".
    """
    metrics = {name: value for name in PLAIN if (value := getattr(result, name)) is not None}
    for name, measurement in result.scores.items():
        metrics[f"score.{name}"] = measurement.value
        metrics[f"score.{name}.std_error"] = measurement.std_error
    if f"score.{score}" in metrics:
        metrics["score"] = metrics[f"score.{score}"]
    return metrics
