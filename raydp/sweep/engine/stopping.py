"""Early stopping: end a run that diverges or that the selection would leave out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from raydp.analysis.selection.constraints import Constraints
from raydp.spec.document import SweepSpec
from raydp.sweep.store.results import RunResult


def check_steps(num_steps: int, checks: int) -> dict[int, str]:
    """Return step -> name of the check after this step, at equal distances.

    A run of few steps has fewer checks.

    A check's name is its share of the steps, such as "1/4". Equal names are equal shares, even if a
    resumed sweep has another number of checks.
    """
    # If rounding puts two checks on one step, the smaller share names it.
    steps = {
        round(num_steps * k / (checks + 1)): str(Fraction(k, checks + 1))
        for k in range(checks, 0, -1)
    }
    # A check after the last step would save nothing.
    return {step: k for step, k in steps.items() if 0 < step < num_steps}


def evaluations_between(spec: SweepSpec, num_steps: int) -> int:
    """Return how often a run measures its utility before its last step, unless it stops early."""
    every, stopping = spec.evaluate_every, spec.stopping
    between = 0 if every is None else (num_steps - 1) // every
    return between + (0 if stopping is None else len(check_steps(num_steps, stopping.checks)))


@dataclass(kw_only=True)
class EarlyStopping:
    """Stops a run early if finished runs show that it cannot be selected.

    A finished run's gain grew by some factor from a check to the run's end. The run's gain at the
    check is extrapolated with the largest such factor. The run stops if even this gain is below
    what the selection asks for: a share `min_gain_share` of the best gain so far, or a loss of
    `max_loss`. Such a run would be left out, whatever it scores.

    Attributes:
        min_finished, slack: see StoppingSpec.
        constraints: those of the selection; only its bounds of the utility count.
    """

    min_finished: int
    slack: float
    constraints: Constraints
    _base: float | None = None
    _finished: dict[str, tuple[Mapping[str, float], float]] = field(default_factory=dict)

    def learn(self, result: RunResult) -> None:
        """Take the result of an ended run, or of the untrained model, which has no history."""
        if result.finished and result.history is None:
            self._base = result.loss
        elif result.finished:
            self._finished[result.run_id] = (result.checks, result.loss)

    def reason(self, check: str, utility_loss: float) -> str | None:
        """Return why a run with this loss at this check ends; None if it goes on."""
        # Training does not recover from a loss that is not finite.
        if not math.isfinite(utility_loss):
            return f"diverged: utility_loss is {utility_loss} after {check} of its steps"
        needed = self._needed_gain()
        # Growth factors of the gain, from this check to the end, of the finished runs.
        factors = [
            (self._base - final) / (self._base - checks[check])
            for checks, final in self._finished.values()
            if self._base is not None and checks.get(check, math.inf) < self._base
        ]
        # A few finished runs say little about the largest growth.
        if needed is None or self._base is None or len(factors) < self.min_finished:
            return None
        gain = self._base - utility_loss
        # A run below the base model's utility has a negative gain, which may stay as it is.
        hoped = max(gain, max(factors) * gain)
        # The slack lets a run go on that is only just too bad.
        if hoped >= needed - self.slack * abs(needed):
            return None
        return (
            f"cannot be selected: after {check} of its steps its utility_gain is {gain:.4g}, which "
            f"grew at most {max(factors):.3g}-fold in {len(factors)} finished runs; the selection "
            f"asks for {needed:.4g}"
        )

    def _needed_gain(self) -> float | None:
        """Return the least gain that the selection asks for, which only grows; None if unknown."""
        if self._base is None or not self._finished:
            return None
        if self.constraints.max_loss is not None:
            return self._base - self.constraints.max_loss
        if self.constraints.min_gain_share is None:
            return None
        best = max(self._base - final for _, final in self._finished.values())
        return self.constraints.least_gain(best) if best > 0 else None
