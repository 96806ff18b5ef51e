"""The interface of methods.

A method trains a model, and owns both the sampler and the accounted event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raydp.analysis.tables.statements import Level
from raydp.privacy.accounting.events import NonPrivateEvent
from raydp.privacy.records.parts import MethodRecord
from raydp.spec.sections import LATER, PrivacySpec, Section
from raydp.training.gradients.weights import UnitWeights
from raydp.training.noise.stream import KeyedStream
from raydp.training.schedule import LearningRateSchedule, Shape

if TYPE_CHECKING:
    import torch

    from raydp.privacy.accounting.events import Event
    from raydp.privacy.records.parts import AccountedEpsilon, MethodPart
    from raydp.search_spaces import Configuration
    from raydp.spec.document import SweepSpec
    from raydp.tasks.task import Task, TaskFacts
    from raydp.training.checkpoint import CheckpointStore
    from raydp.training.comm import Comm
    from raydp.training.trial import Trained, TrainingContext
    from raydp.training.trial_plan import TrialPlan


def poisson_batch(plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
    """Return the units of one Poisson step at rate b/n. It depends on key, run and step alone."""
    stream = KeyedStream(key=key, run_id=plan.run_id)
    # Any step can be drawn at any time, which makes a resumed run equal to an uninterrupted one.
    return np.flatnonzero(stream.poisson_mask(plan.num_examples, plan.batch_size, step=step))


@dataclass(frozen=True, kw_only=True)
class StepTraits:
    """The properties of a method's steps that other packages must know.

    Attributes:
        clipping: how gradients are scaled to max_grad_norm: "flat", "automatic" or "adaptive".
            None: they are not.
        loss_decay: λ of a decay term that is clipped with every example's gradient. 0: there is no
            such term.
        drops_inputs: whether examples get the dropout masks of `adapter.lora_dropout`, as in
            `raydp.training.loop`.
        optimizer: "adam" or "sgd" if η tells the size of a step as in these optimizers, for the
            warning of rates at which training diverges. None: it does not.
    """

    clipping: str | None = None
    loss_decay: float = 0.0
    drops_inputs: bool = False
    optimizer: Literal["adam", "sgd"] | None = None


class Method(Protocol):
    """Trains a model.

    Implemented by `DPSGD`, `DPAdam` and `NonPrivate`, and by the methods in raydp/extensions. A
    plug-in derives from `MethodSection`, or from `ScheduledSection` if its learning rate may
    change.

    Attributes:
        private: whether its event is a guarantee, which is calibrated to the spec's (ε, δ).
        states: level of the ε that `planned` states without an accountant; the event is then
            NonPrivate. None: it states nothing.
        costs_its_steps: whether the time of a run is proportional to its steps, so that a few steps
            predict it.
        further_cost: what a run does beside the steps of its configuration, for a warning; None if
            it does nothing.
        covers_each_step: whether the guarantee, if there is one, also covers the weights between
            two steps, so that they may be evaluated.
    """

    private: ClassVar[bool]
    states: ClassVar[Level | None]
    costs_its_steps: ClassVar[bool]
    further_cost: ClassVar[str | None]
    covers_each_step: ClassVar[bool]

    @property
    def max_grad_norm(self) -> float | None:
        """Return the clipping norm of gradients; None if gradients are not clipped."""

    @property
    def traits(self) -> StepTraits:
        """Return the properties of the method's steps that other packages must know."""

    def event_fn(self, configuration: Configuration, num_examples: int) -> Event:
        """Return the event of a whole run at σ = 1, before it is calibrated.

        Raises:
            ValueError: the method cannot train the configuration on num_examples units.
        """

    def event(self, plan: TrialPlan, noise_multiplier: float) -> Event:
        """Return the event that the accountant accounts for the whole run."""

    def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
        """Return the units (examples or users) of one step, the same on every rank, at any time."""

    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        """Return the optimizer that turns the privatised gradient into an update."""

    def train(
        self,
        plan: TrialPlan,
        context: TrainingContext,
        task: Task,
        comm: Comm,
        key: bytes,
        store: CheckpointStore | None,
    ) -> Trained:
        """Run all steps, from the newest checkpoint if there is one."""

    def noise_strategy(self, plan: TrialPlan) -> tuple[float, ...]:
        """Return the first column of C; the noise of all steps is C^{-1} Z with independent Z."""

    def check(self, spec: SweepSpec, task: Task) -> None:
        """Raise ValueError if the method cannot train what the spec asks for."""

    def unit_weights(self, facts: TaskFacts) -> UnitWeights | None:
        """Return the weights of the task's units in the sum of a step; None: all weigh alike.

        Raises:
            ValueError: the task lacks what the weights need.
        """

    def largest_changes(self, facts: TaskFacts) -> NDArray[np.float64]:
        """Return [n] the largest change of that sum by each unit, over c, as ε assumes.

        The self-test compares it with the step, so it must not come from `unit_weights`.
        """

    def record_fields(self, plan: TrialPlan) -> MethodRecord:
        """Return the method's statements in a run's privacy record."""

    def record_part(
        self, facts: TaskFacts, event: Event, alone: AccountedEpsilon
    ) -> MethodPart | None:
        """Return a further part of a run's record, from its event and the ε of the run alone."""

    def planned(self, trial: TrialPlan, privacy: PrivacySpec) -> TrialPlan | None:
        """Return a run, still without id, with the method's changes; None if the run is left out."""

    def defines(self, trial: TrialPlan, written: Mapping[str, object]) -> Mapping[str, object]:
        """Return the method's part of what defines a run; `written` is the method in the spec."""


class MethodSection(Section):
    """Base of methods in a spec. By default a method trains every task and has a guarantee."""

    written_in: ClassVar[str] = "method"
    private: ClassVar[bool] = True
    states: ClassVar[Level | None] = None
    costs_its_steps: ClassVar[bool] = True
    further_cost: ClassVar[str | None] = None
    covers_each_step: ClassVar[bool] = True

    @property
    def traits(self) -> StepTraits:
        """Steps that do not clip."""
        return StepTraits()

    def event_fn(self, configuration: Configuration, num_examples: int) -> Event:
        """Return NonPrivateEvent. A private method overrides this function."""
        assert not self.private, "a private method declares what it releases"
        return NonPrivateEvent()

    def event(self, plan: TrialPlan, noise_multiplier: float) -> Event:
        """Return the event of `event_fn` with this noise."""
        return self.event_fn(plan.configuration, plan.num_examples).with_noise(noise_multiplier)

    def noise_strategy(self, plan: TrialPlan) -> tuple[float, ...]:
        """Return the first column of the identity: the noise of each step is independent."""
        return (1.0,)

    def check(self, spec: SweepSpec, task: Task) -> None:
        """Accept every spec and task."""

    def unit_weights(self, facts: TaskFacts) -> UnitWeights | None:
        """Return None: all units weigh alike."""
        return None

    def largest_changes(self, facts: TaskFacts) -> NDArray[np.float64]:
        """Return [n] ones: every unit may change a sum by c."""
        return np.ones(facts.num_units)

    def record_fields(self, plan: TrialPlan) -> MethodRecord:
        """Return statements that add nothing: the method runs the event as it is."""
        return MethodRecord()

    def record_part(
        self, facts: TaskFacts, event: Event, alone: AccountedEpsilon
    ) -> MethodPart | None:
        """Return None: the record has no further part."""
        return None

    def planned(self, trial: TrialPlan, privacy: PrivacySpec) -> TrialPlan | None:
        """Return the run unchanged: the method trains every configuration with every seed."""
        return trial

    def defines(self, trial: TrialPlan, written: Mapping[str, object]) -> Mapping[str, object]:
        """Return the method's name and parameters."""
        return {"method": written}


class ScheduledSection(MethodSection):
    """Base of methods whose learning rate may change from step to step.

    A schedule depends on the step alone, so it is post-processing of the noisy gradients: ε is the
    same.
    """

    learning_rate_schedule: Annotated[Shape, LATER] = "constant"
    """The learning rate after the warm-up: `constant` at η, or falling from η to 0 by the end,
    `linear` or `cosine`."""
    warmup_ratio: Annotated[float, Field(ge=0, lt=1), LATER] = 0.0
    """Share of the steps at the start in which the learning rate rises to η."""

    @property
    def traits(self) -> StepTraits:
        """Steps of `raydp.training.loop` that do not clip."""
        return StepTraits(drops_inputs=True)

    def schedule(self, plan: TrialPlan) -> LearningRateSchedule | None:
        """Return the learning rates of a run; None if all are η."""
        if self.learning_rate_schedule == "constant" and not self.warmup_ratio:
            return None
        # A schedule is public: it depends on the step and on the spec alone.
        return LearningRateSchedule.of(
            self.learning_rate_schedule, self.warmup_ratio, plan.num_steps
        )
