"""The config and the metrics of a run, as Ray Tune and its callbacks see them."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from raydp.sweep.store.results import RunResult
from raydp.training.trial_plan import TrialPlan

PLAIN = ("status", "reason", "utility_loss", "train_seconds", "score_seconds", "attempts")
"""Fields of a result that become metrics without a change."""


class TrialConfig(TypedDict):
    """Config of a trial of Tune: run id, (b, T, η), σ, seed and further fields, if any.

    If several sweeps share a queue, the run id is `SWEEP/RUN`.
    """

    run_id: str
    batch_size: int
    num_steps: int
    learning_rate: float
    noise_multiplier: float
    seed: int
    settings: NotRequired[dict[str, object]]


def config_of(trial: TrialPlan, key: str | None = None) -> TrialConfig:
    """Return a run's config, with its key in the queue, if it has one, as its id."""
    config = TrialConfig(
        run_id=key or trial.run_id,
        batch_size=trial.batch_size,
        num_steps=trial.num_steps,
        learning_rate=trial.learning_rate,
        noise_multiplier=trial.noise_multiplier,
        seed=trial.seed,
    )
    if trial.settings:
        config["settings"] = dict(trial.settings)
    return config


def final_metrics(result: RunResult, score: str | None) -> dict[str, str | float | None]:
    """Return the metrics of a run that has ended.

    Args:
        result: the run's result.
        score: the score that the sweep selects by, None if it measures none.

    Returns:
        "status", and as far as the run has them: "utility_loss", "score", "score.NAME" and
        "score.NAME.std_error" of every score, "train_seconds", "score_seconds", "attempts" and
        "reason".
    """
    metrics: dict[str, str | float | None] = {
        name: value for name in PLAIN if (value := getattr(result, name)) is not None
    }
    for name, measurement in result.scores.items():
        metrics[f"score.{name}"] = measurement.value
        metrics[f"score.{name}.std_error"] = measurement.std_error
    # The score that selects also has one name for all sweeps.
    if f"score.{score}" in metrics:
        metrics["score"] = metrics[f"score.{score}"]
    return metrics
