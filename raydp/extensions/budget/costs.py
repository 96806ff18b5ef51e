"""Cost of configurations in hours, GPU-hours, memory and money, from the times of a few real steps.

A step takes a + k·b seconds: a part that does not depend on the batch (noise, the optimizer) and a
part per example. Hu et al. 2025 (Table 14) report times in proportion to C = b·T, so a = 0. The
deviation of the measured times from this proportion is stated beside every estimate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from raydp.search_spaces import Configuration
from raydp.spec.sections import ClusterSpec
from raydp.sweep.store.results import RunResult
from raydp.training.trial_plan import TrialPlan

ASSUMED = (
    "the workers' devices are like the one measured, and as loaded",
    "a step draws b examples on average (Poisson), in micro-batches as found here",
    "workers of one trial share its examples evenly; their all-reduce is not counted",
    "a run has its steps, its measurements of utility between them and one scoring",
    "the orchestration's own time is not counted, nor the start (20 to 60 s)",
)


@dataclass(frozen=True, kw_only=True)
class StepLaw:
    """Seconds of a step as a function of its number of examples, fitted to measured steps.

    Attributes:
        step_seconds: a, seconds of a step without examples.
        seconds_per_example: k.
        r_squared: R² of a + k·b over the mean step of each batch size. None if these do not differ
            or are only two.
        proportional_seconds_per_example: k of times in proportion to compute C (a = 0), by least
            relative squares.
        max_relative_deviation: largest relative deviation of the measured steps from that
            proportion.
    """

    step_seconds: float
    seconds_per_example: float
    r_squared: float | None
    proportional_seconds_per_example: float
    max_relative_deviation: float

    @classmethod
    def fit(cls, examples: Sequence[float], seconds: Sequence[float]) -> StepLaw:
        """Fit by least squares with a >= 0 and k >= 0.

        Args:
            examples: mean number of drawn examples per step, one entry per batch size.
            seconds: mean seconds of such a step.

        Raises:
            ValueError: nothing was measured, or a value is not above 0.
        """
        b, t = np.asarray(examples, dtype=float), np.asarray(seconds, dtype=float)
        if (
            not len(b)
            or len(b) != len(t)
            or not (np.isfinite([b, t]).all() and (b > 0).all() and (t > 0).all())
        ):
            raise ValueError(
                f"steps must have drawn examples and taken time, got {b.tolist()} examples in "
                f"{t.tolist()} s. Give more --steps, or a larger batch_size."
            )
        # Proportional law (a = 0) by least relative squares: k = Σ(b/t) / Σ(b/t)².
        share = float((b / t).sum() / ((b / t) ** 2).sum())
        # Line t = a + k·b by least squares. A coefficient below 0 becomes 0, and the other is
        # fitted.
        k = float(np.polyfit(b, t, 1)[0]) if np.ptp(b) else share
        a = float(t.mean() - k * b.mean())
        if k < 0:  # measurement noise, because more examples cannot make a step shorter
            a, k = float(t.mean()), 0.0
        elif a < 0:
            a, k = 0.0, float((b * t).sum() / (b * b).sum())
        total = float(((t - t.mean()) ** 2).sum())
        r_squared = (
            1 - float(((t - a - k * b) ** 2).sum()) / total if len(b) > 2 and total else None
        )
        return cls(
            step_seconds=a,
            seconds_per_example=k,
            r_squared=r_squared,
            proportional_seconds_per_example=share,
            max_relative_deviation=float(np.abs(share * b / t - 1).max()),
        )

    def train_seconds(self, batch_size: float, num_steps: int, num_workers: int = 1) -> float:
        """Return the training seconds of a run whose workers share each batch."""
        return num_steps * (self.step_seconds + self.seconds_per_example * batch_size / num_workers)


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """The result of timing a few real steps on this machine.

    Attributes:
        law: seconds of a step.
        score_seconds: seconds for utility and all scores of one model.
        utility_seconds: seconds for the utility alone, 0 if no run measures it between its steps.
        memory_bytes: peak memory of the process on the CPU, or of the device.
        device: name of the device.
        steps: one row per batch size: batch_size, num_steps, examples (mean drawn), seconds (mean
            of a step).
    """

    law: StepLaw
    score_seconds: float
    utility_seconds: float
    memory_bytes: int
    device: str
    steps: tuple[dict[str, float], ...]

    def run_seconds(
        self, batch_size: int, num_steps: int, num_workers: int, evaluations: int
    ) -> float:
        """Return the seconds of one run.

        Args:
            batch_size: b.
            num_steps: T.
            num_workers: number of workers that share each batch.
            evaluations: how often the run measures its utility between its steps.
        """
        training = self.law.train_seconds(batch_size, num_steps, num_workers)
        return training + evaluations * self.utility_seconds + self.score_seconds

    def columns(
        self,
        batch_size: int,
        num_steps: int,
        seeds: int,
        *,
        evaluations: int,
        cluster: ClusterSpec,
        price: float | None,
    ) -> dict[str, float]:
        """Return the cost of all seeds of a configuration.

        Args:
            batch_size: b.
            num_steps: T.
            seeds: number of seeds.
            evaluations: how often a run measures its utility between its steps.
            cluster: the spec's cluster.
            price: price of a GPU for an hour; None omits `cost`.

        Returns:
            "hours" (on one slot), "gpu_hours", "memory_gib" (of one worker) and "cost".
        """
        seconds = self.run_seconds(batch_size, num_steps, cluster.max_workers, evaluations)
        hours = seconds * seeds / 3600
        gpu_hours = hours * cluster.max_workers * cluster.gpus_per_worker
        columns = {"hours": hours, "gpu_hours": gpu_hours, "memory_gib": self.memory_bytes / 2**30}
        return columns if price is None else {**columns, "cost": gpu_hours * price}

    def document(self) -> dict[str, object]:
        """Return the result as data for JSON."""
        return {**asdict(self), "assumes": list(ASSUMED)}


def recorded_seconds(trials: Sequence[TrialPlan], results: Mapping[str, RunResult]) -> list[float]:
    """Return the seconds of each run, from the runs that a sweep has recorded.

    A finished run has its own time. Another run has its configuration's mean time. If no run of its
    configuration has finished, its time is a + k·b per step plus the mean scoring time, fitted to
    the finished runs.

    Raises:
        ValueError: no run has finished.
    """
    done = [t for t in trials if t.run_id in results]
    if not done:
        raise ValueError(
            "--simulate must know what runs cost, got none: the sweep has no finished run. Add "
            "--measure, or seconds_per_example=0.001 to --simulate."
        )
    # Times of the finished runs, by configuration, and a law for the others.
    trained = {t.run_id: _train_seconds(t, results[t.run_id]) for t in done}
    scored = {t.run_id: results[t.run_id].score_seconds or 0.0 for t in done}
    by_configuration: dict[Configuration, list[float]] = {}
    for t in done:
        by_configuration.setdefault(t.configuration, []).append(
            trained[t.run_id] + scored[t.run_id]
        )
    # A recorded time may be 0, which the fit refuses.
    law = StepLaw.fit(
        [t.batch_size for t in done], [max(trained[t.run_id], 1e-9) / t.num_steps for t in done]
    )
    score = float(np.mean(list(scored.values())))
    seconds = []
    for t in trials:
        if t.run_id in trained:
            seconds.append(trained[t.run_id] + scored[t.run_id])
        elif t.configuration in by_configuration:
            seconds.append(float(np.mean(by_configuration[t.configuration])))
        else:
            seconds.append(law.train_seconds(t.batch_size, t.num_steps) + score)
    return seconds


def _train_seconds(trial: TrialPlan, result: RunResult) -> float:
    """Return the training seconds of all steps, of which the record has those since a resume."""
    executed = max(1, trial.num_steps - (result.resumed_from or 0))
    return (result.train_seconds or 0.0) * trial.num_steps / executed
