"""The suite of methods."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from raydp.analysis.tables.statements import Statement
from raydp.extensions.classification.labelled import ClassificationTask, LabelledBatch
from raydp.plugins import registries
from raydp.plugins.described import resolve_plugin
from raydp.plugins.parameters import constant
from raydp.privacy import NonPrivateEvent, PoissonGaussian
from raydp.privacy.records.record import INFINITE
from raydp.selftest.check_result import Check
from raydp.selftest.checks import sampling
from raydp.selftest.checks.noise import noise_checks
from raydp.selftest.checks.sampling import sampling_checks
from raydp.selftest.checks.sensitivity import sensitivity_checks
from raydp.selftest.observe import NO_NOISE, flat, summed_updates, with_fixed_threshold, with_sgd
from raydp.selftest.subjects import ROUNDING, Subject
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.planning.plan import make_plan
from raydp.testing.points import NETWORK, NUM_EXAMPLES, network_context, points_task
from raydp.testing.tasks import check_refusals
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import LocalComm
from raydp.training.observers import Accounting, AfterStep, StepReport
from raydp.training.trial_plan import TrialPlan

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
PLAN = TrialPlan(
    run_id="suite", batch_size=12, num_steps=8, learning_rate=0.05, seed=0, num_examples=NUM_EXAMPLES,
    noise_multiplier=1.0, stated=Statement(level="claimed", epsilon=8.0), delta=1e-5,
)  # fmt: skip
KILLED_AFTER = 5
SAMPLING_STEPS = 1200
"""Enough to tell a sample rate of 0.13 from one that is 5 % larger: 100 examples, and a bound of 4
standard errors."""


class _Killed(Exception):  # noqa: N818 - a simulated kill, not an error
    """Raised after a step, as if the process had been killed there."""


class MethodConformance:
    """Inherit, and say by `name` and `written` how a spec writes the method.

    Attributes:
        written: the method's parameters.
        bad: parameters that the method refuses.
        num_drawn: number of units that `batch_indices` draws from.
    """

    name: str
    written: ClassVar[Mapping[str, Any]] = {}
    bad: ClassVar[Mapping[str, Any]] = {"max_grad_norm": -1}
    num_drawn: int = NUM_EXAMPLES

    @pytest.fixture
    def method(self) -> Any:
        return self.resolved(self.written)

    @pytest.fixture
    def task(self) -> ClassificationTask:
        return points_task()

    def resolved(self, written: Mapping[str, Any]) -> Any:
        problems: list[str] = []
        plugin = resolve_plugin("methods", "method", {"name": self.name, **written}, problems)
        assert plugin is not None, problems
        return plugin.params

    def measured(self, method: Any) -> list[Check]:
        """Return the self-test's checks that compare what the method draws with what its event
        says."""
        plain = with_fixed_threshold(method)
        return [*noise_checks(plain), *sampling_checks(plain)]

    def test_it_is_registered_and_says_without_its_import_whether_it_is_private(
        self, method: Any
    ) -> None:
        assert isinstance(method, registries.resolve("methods", self.name))
        assert constant("methods", self.name, "private") == method.private

    def test_its_event_is_a_guarantee_exactly_where_it_says_that_it_is_private(
        self, method: Any
    ) -> None:
        event = method.event(PLAN, PLAN.noise_multiplier)
        assert isinstance(event, PoissonGaussian if method.private else NonPrivateEvent)
        stated = method.planned(replace(PLAN, stated=None), self.spec(Path()).privacy).stated
        assert (stated and stated.level) == method.states
        assert not (method.private and method.states)

    def test_its_event_is_of_the_noise_that_it_is_asked_for(self, method: Any) -> None:
        """A calibrated σ is a σ of the event: a method that scales it would be accounted for
        another one."""
        if method.private:
            assert [method.event(PLAN, sigma).noise_multiplier for sigma in (0.7, 3.0)] == [
                0.7,
                3.0,
            ]
            assert 0 < method.event(PLAN, 1.0).sample_rate <= 1

    def test_what_it_draws_is_what_its_event_says(
        self, method: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sampling, "NUM_STEPS", SAMPLING_STEPS)
        if method.private:
            failed = [check for check in self.measured(method) if not check.passed]
            assert not failed, "\n".join(map(repr, failed))

    def test_one_record_moves_the_sum_by_what_the_event_assumes(
        self, method: Any, task: ClassificationTask
    ) -> None:
        """Of methods whose noise is on the sums of clipped gradients; `measured` has the others'
        sensitivity."""
        if not method.private or method.max_grad_norm is None:
            return
        subject = Subject(
            name=self.name, context=network_context(NETWORK), task=task, method=with_fixed_threshold(method),
            indices=np.arange(0, NUM_EXAMPLES, 8), tolerance=ROUNDING[torch.float32],
        )  # fmt: skip
        failed = [check for check in sensitivity_checks(subject) if not check.passed]
        assert not failed, "\n".join(map(repr, failed))

    def test_gradients_are_clipped_where_it_says_so(
        self, method: Any, task: ClassificationTask
    ) -> None:
        """On examples whose gradients are a thousand times as long as the norm."""
        if method.traits.clipping is None:
            assert method.max_grad_norm is None or method.states, "it records no clipping"
            return
        assert method.max_grad_norm is not None
        large = replace(task, train=replace(task.train, inputs=task.train.inputs * np.float32(1e3)))
        quiet = replace(PLAN, noise_multiplier=NO_NOISE, num_steps=1)
        steady = with_sgd(with_fixed_threshold(method), lambda step: np.arange(NUM_EXAMPLES))
        (update,) = summed_updates(steady, quiet, network_context(NETWORK), large, LocalComm())
        assert (
            float(update.norm()) <= NUM_EXAMPLES * method.max_grad_norm * 1.001
        )  # rounding, and the lattice

    def test_a_method_that_weighs_reference_data_refuses_a_task_without(
        self, method: Any, task: ClassificationTask, tmp_path: Path
    ) -> None:
        if method.unit_weights(task.facts()) is not None:
            with pytest.raises(ValueError, match=r"must be .* reference data"):
                method.check(self.spec(tmp_path), points_task(num_reference=0))

    def test_a_batch_depends_on_key_run_and_step_alone(self, method: Any) -> None:
        def drawn(plan: TrialPlan = PLAN, key: bytes = KEY) -> list[list[int]]:
            return [
                method.batch_indices(plan, key, step).tolist() for step in range(plan.num_steps)
            ]

        first = drawn()
        assert first == drawn(), "the same again"
        assert first[KILLED_AFTER] == method.batch_indices(PLAN, KEY, KILLED_AFTER).tolist(), (
            "of any step at any time"
        )
        assert first != drawn(key=OTHER_KEY)
        assert first != drawn(replace(PLAN, run_id="another"))
        assert len(set(map(tuple, first))) > 1
        for indices in first:
            assert len(set(indices)) == len(indices)
            assert all(0 <= index < self.num_drawn for index in indices)

    def test_the_same_key_trains_the_same_model_and_another_key_another(self, method: Any) -> None:
        weights = self.trained(method)
        assert torch.equal(weights, self.trained(method))
        assert not torch.equal(weights, self.trained(method, key=OTHER_KEY))
        assert not torch.equal(weights, flat(network_context(NETWORK))), "it has learnt"

    def test_a_resumed_run_ends_where_an_undisturbed_one_does(
        self, method: Any, tmp_path: Path
    ) -> None:
        """Killed between an update and its checkpoint, and gone on with in a new process."""

        def kill(report: StepReport) -> None:
            if report.done == KILLED_AFTER:
                raise _Killed

        store = CheckpointStore(folder=tmp_path / "checkpoints", run_id=PLAN.run_id)
        with suppress(_Killed):
            self.trained(method, store=store, checkpoint_seconds=0.0, observers=(AfterStep(kill),))
            raise AssertionError("observers see each step")
        resumed = self.trained(method, store=store, checkpoint_seconds=0.0)
        torch.testing.assert_close(resumed, self.trained(method), rtol=1e-6, atol=1e-7)  # fp32 sums

    def test_training_refuses_less_noise_than_the_record_says(self, method: Any) -> None:
        """Whatever changed the planned noise, the step that adds it compares it with the record."""
        if not method.private:
            return
        accounting = Accounting(event=method.event(PLAN, PLAN.noise_multiplier))
        self.trained(method, accounting=accounting)
        with pytest.raises(
            ValueError, match=r"^noise_multiplier must be at least that of the privacy record, 1\.0"
        ):
            self.trained(method, replace(PLAN, noise_multiplier=0.999), accounting=accounting)

    def test_its_time_grows_with_its_steps_exactly_where_it_says_so(self, method: Any) -> None:
        few, many = (self.work(method, steps) for steps in (10, 20))
        assert (many > 1.5 * few) == method.costs_its_steps

    def test_a_record_is_certified_exactly_where_there_is_a_guarantee(
        self, method: Any, tmp_path: Path
    ) -> None:
        spec = self.spec(tmp_path)
        plan = make_plan(spec, points_task().facts(), "weights")
        for record in plan.privacy.values():
            assert record.certified == method.private
            assert math.isinf(record.accounted.epsilon) != method.private
            if not method.private:
                assert INFINITE in record.not_certified_because
                assert record.to_json()["noise_multiplier"] == 0
            else:
                assert 0 < record.accounted.epsilon <= spec.privacy.require_target("in this suite")

    def test_what_is_written_down_gives_the_same_method(self, method: Any) -> None:
        assert type(method).model_validate(method.model_dump(mode="json")) == method

    def test_a_bad_parameter_is_refused_by_name(self) -> None:
        check_refusals("methods", {"name": self.name, **self.written}, self.bad)

    def spec(self, folder: Path) -> SweepSpec:
        """A spec of the method whose records could be certified."""
        return load_spec(
            {
                "name": "suite",
                "task": {"name": "digits"},
                "model": {"name": "linear:1x8x8:10", "adapter": {"type": "none"}},
                "method": {"name": self.name, **self.written},
                "privacy": {
                    "target_epsilon": 8, "delta_exponent": 1.1, "accountant": "rdp", "noise_key": "secret",
                },
                "space": {"points": [[PLAN.batch_size, PLAN.num_steps, PLAN.learning_rate]]},
                "seeds": [0],
                "cluster": {"max_concurrent_trials": 1},
                "scores": [{"name": "model_distance"}],
                "select": {"score": "model_distance"},
                "storage": str(folder / "runs"),
                "tracking": {"uri": f"sqlite:///{folder}/mlflow.db", "experiment": "suite"},
            }
        )  # fmt: skip

    def trained(
        self,
        method: Any,
        plan: TrialPlan = PLAN,
        *,
        key: bytes = KEY,
        store: CheckpointStore | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Return all weights of a trained linear network."""
        context = network_context(NETWORK, **options)
        method.train(plan, context, points_task(), LocalComm(), key, store)
        return flat(context)

    def work(self, method: Any, num_steps: int) -> int:
        """Return the number of batches that a run takes, of any model."""
        task, taken = points_task(), list[int]()

        class Counting(ClassificationTask):
            def batch(self, indices: NDArray[np.int64]) -> LabelledBatch:
                taken.append(len(indices))
                return super().batch(indices)

        watched = Counting(**vars(task))
        method.train(
            replace(PLAN, num_steps=num_steps),
            network_context(NETWORK),
            watched,
            LocalComm(),
            KEY,
            None,
        )
        return len(taken)
