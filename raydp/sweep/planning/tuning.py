"""Whether ε covers the choice among the runs, and what this means for the calibration and the draw of the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from raydp.privacy import Calibration, CalibrationRequest, PrivateSelectionRecord, calibrate_many, calibrate_selection
from raydp.privacy.mechanisms.private_selection import ASSUMED
from raydp.privacy.mechanisms.tuning import BOUNDS
from raydp.spec.document import SweepSpec
from raydp.spec.sections import NumRunsSpec
from raydp.sweep.private_selection.draws import draw, num_runs_of
from raydp.tasks.base import TaskFacts

Progress = Callable[[int, int], None]


class Tuning(Protocol):
    """A value of `privacy.tuning`. `tuning_of` is the only function that chooses it."""

    def check(self, facts: TaskFacts) -> None:
        """Check that the task allows it.

        Raises:
            ValueError: the task does not allow it.
        """

    def calibrate(
        self, requests: Sequence[CalibrationRequest], *, cache: Path, progress: Progress | None
    ) -> tuple[Sequence[Calibration], float | None]:
        """Return the calibration of each configuration, and the ε of the whole choice; None if ε does not cover it."""

    def sentence(self, num_configurations: int) -> str | None:
        """Return a sentence about the draw of the runs; None if all runs of the plan are made."""

    def record(self, num_configurations: int, single_run_epsilon: float) -> PrivateSelectionRecord | None:
        """Return the part of a run's privacy record that describes the choice; None if ε does not cover it."""

    def draw(self, num_configurations: int, key: bytes) -> list[tuple[int, int]] | None:
        """Return the drawn runs: (position of the configuration, label of the seed); None if nothing is drawn."""


@dataclass(frozen=True, kw_only=True)
class IgnoredTuning:
    """ε covers one model, and not the choice among several: each configuration meets the target alone."""

    accountant: str

    def check(self, facts: TaskFacts) -> None:
        """Allow every task."""

    def calibrate(
        self, requests: Sequence[CalibrationRequest], *, cache: Path, progress: Progress | None
    ) -> tuple[Sequence[Calibration], float | None]:
        """Calibrate each configuration alone."""
        return calibrate_many(requests, self.accountant, cache_dir=cache, progress=progress), None

    def sentence(self, num_configurations: int) -> str | None:
        """Return None: all runs of the plan are made."""
        return None

    def record(self, num_configurations: int, single_run_epsilon: float) -> PrivateSelectionRecord | None:
        """Return None: a model's record says nothing about a choice."""
        return None

    def draw(self, num_configurations: int, key: bytes) -> list[tuple[int, int]] | None:
        """Return None: nothing is drawn."""
        return None


@dataclass(frozen=True, kw_only=True)
class PrivateSelectionTuning:
    """ε covers the release of the best of a random number of runs of random configurations."""

    spec: SweepSpec

    @property
    def _num_runs(self) -> NumRunsSpec:
        assert self.spec.privacy.num_runs is not None, "a private selection has a distribution of the number of runs"
        return self.spec.privacy.num_runs

    def check(self, facts: TaskFacts) -> None:
        """Check that the runs are compared on public data alone."""
        if not facts.utility_is_public:
            raise ValueError(
                "task.name must be a task whose utility rests on public data alone with privacy.tuning "
                f"private_selection, got {self.spec.task.name!r} with private held-out data. Use the task text with a "
                "public file as heldout_path and heldout_is_public: true, or set privacy.tuning: ignored."
            )

    def calibrate(
        self, requests: Sequence[CalibrationRequest], *, cache: Path, progress: Progress | None
    ) -> tuple[Sequence[Calibration], float | None]:
        """Calibrate all configurations together, so that the whole choice meets the target."""
        accountant = self.spec.privacy.accountant
        solved = calibrate_selection(requests, num_runs_of(self.spec), accountant, cache_dir=cache, progress=progress)
        return solved.runs, solved.epsilon

    def sentence(self, num_configurations: int) -> str | None:
        """Describe the distribution of the draw, and nothing that was drawn."""
        chosen = self._num_runs
        kind = {
            "poisson": f"Poisson distribution with mean {chosen.mean:g}",
            "binomial": f"binomial distribution with mean {chosen.mean:g} of at most {chosen.trials} runs",
            "truncated_negative_binomial": f"truncated negative binomial distribution with mean {chosen.mean:g} and "
            f"η = {chosen.eta:g}",
        }[chosen.distribution]
        return (
            f"private selection: the number of runs is drawn from a {kind}, each run's configuration uniformly from "
            f"these {num_configurations}; only the run with the best utility is released, and its ε covers the choice"
        )

    def record(self, num_configurations: int, single_run_epsilon: float) -> PrivateSelectionRecord | None:
        """Describe the choice."""
        chosen = self._num_runs
        return PrivateSelectionRecord(
            distribution=chosen.distribution,
            mean=chosen.mean,
            eta=chosen.eta if chosen.distribution == "truncated_negative_binomial" else None,
            trials=chosen.trials,
            configurations=num_configurations,
            single_run_epsilon=single_run_epsilon,
            assumed=tuple(ASSUMED),
            bound=BOUNDS[self.spec.privacy.accountant],
        )

    def draw(self, num_configurations: int, key: bytes) -> list[tuple[int, int]] | None:
        """Draw the runs under the sweep's key."""
        return draw(num_runs_of(self.spec), num_configurations, key)


def tuning_of(spec: SweepSpec) -> Tuning:
    """Return how a spec treats the choice among its runs."""
    if spec.privacy.selects:
        return PrivateSelectionTuning(spec=spec)
    return IgnoredTuning(accountant=spec.privacy.accountant)
