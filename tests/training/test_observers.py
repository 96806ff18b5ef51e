"""Observers see every step in their order; the mechanism and the accounting do not depend on
them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from raydp.methods.dp import DPSGD
from raydp.methods.method import Method
from raydp.methods.nonprivate import NonPrivate
from raydp.privacy import PoissonGaussian
from raydp.sweep.engine.trial_observers import StepEvaluation
from raydp.training.comm import LocalComm
from raydp.training.ledger import Ledger
from raydp.training.observers import Accounting, AfterStep, Observer, Step, StepReport
from raydp.training.trial import TrainingContext
from tests.builders import toys


class Told(Observer):
    """Notes what it is told, and changes the sum in one of its hooks."""

    def __init__(self, name: str, told: list[str], change: str = "") -> None:
        self.name, self.told, self.change = name, told, change
        self.units: list[np.ndarray] = []
        self.total = torch.empty(0)

    def _note(self, hook: str) -> None:
        self.told.append(f"{hook} {self.name}")
        if hook == self.change:
            self.total.add_(1.0)

    def before_noise(self, step: Step) -> None:
        self.total = step.total
        self.units.append(step.units)
        self._note("before_noise")

    def after_noise(self, step: Step) -> None:
        self._note("after_noise")

    def after_step(self, report: StepReport) -> None:
        self._note("after_step")

    def must_end(self, done: int) -> bool:
        self._note("must_end")
        return False


def trained(toy: TrainingContext, **changes: object) -> dict[str, torch.Tensor]:
    plan = replace(toys.PLAN, num_steps=2, **changes)
    toys.METHOD.train(plan, toy, toys.task(), LocalComm(), toys.KEY, None)
    return {name: p.detach().clone() for name, p in toy.parameters.items()}


def test_observers_are_called_in_order_in_every_step() -> None:
    told: list[str] = []
    trained(toys.context(observers=(Told("a", told), Told("b", told))))
    hooks = ("before_noise", "after_noise", "after_step", "must_end")
    assert told == [f"{hook} {name}" for hook in hooks for name in "ab"] * 2


@pytest.mark.parametrize("hook", ["before_noise", "after_noise", "after_step", "must_end"])
def test_only_changes_of_observers_before_the_update_reach_the_model(hook: str) -> None:
    apart = toys.distance(
        trained(toys.context()), trained(toys.context(observers=(Told("a", [], hook),)))
    )
    assert (apart > 0) == (hook in ("before_noise", "after_noise"))


def test_virtual_units_are_drawn_and_run_by_no_model() -> None:
    watcher, virtual = Told("a", []), range(30, toys.NUM_EXAMPLES)
    toy = toys.context(observers=(watcher,), virtual_units=virtual)
    trained_on: list[float] = []
    toy = replace(
        toy, observers=(watcher, AfterStep(lambda report: trained_on.append(report.row["drawn"])))
    )
    trained(toy)
    assert any(np.isin(units, virtual).any() for units in watcher.units)
    assert trained_on == [float((~np.isin(units, virtual)).sum()) for units in watcher.units]


@pytest.mark.parametrize(
    ("method", "sigma"), [(NonPrivate(), 0.0), (DPSGD(max_grad_norm=1.0), 0.499)], ids=str
)
def test_training_without_the_noise_of_its_record_is_refused(
    method: Method, sigma: float, tmp_path: Path
) -> None:
    """The refused step is not in the ledger."""
    ledger = Ledger(tmp_path / "ledger.txt")
    event = PoissonGaussian(sample_rate=0.2, noise_multiplier=0.5, num_steps=2)
    accounting = Accounting(event=event, ledger=ledger)
    rest = (toys.context(accounting=accounting), toys.task(), LocalComm(), toys.KEY, None)
    with pytest.raises(ValueError, match=r"^noise_multiplier must be at least .* 0\.5, got "):
        method.train(replace(toys.PLAN, noise_multiplier=sigma), *rest)
    assert ledger.summary()["executions"] == 0


def test_an_evaluation_is_neither_before_the_first_step_nor_after_the_last() -> None:
    rows = [dict[str, float]() for _ in range(7)]
    evaluation = StepEvaluation(2, lambda: 1.5)
    for done, row in enumerate(rows):
        evaluation.after_step(StepReport(done=done, num_steps=6, row=row))
    assert [done for done, row in enumerate(rows) if row] == [2, 4]
