"""PATE: teachers on disjoint shards vote on public inputs, and a student learns the answers.

The answers are noisy.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from raydp.extensions.classification.labelled import ClassificationTask, LabelledExamples
from raydp.extensions.pate.prompted import Prompting
from raydp.extensions.pate.teachers import Teachers, Teaching, collect_votes
from raydp.methods.method import MethodSection, poisson_batch
from raydp.methods.nonprivate import plain_rule
from raydp.models import base_models as models
from raydp.privacy import MethodRecord, PoissonGaussian, Procedure
from raydp.search_spaces import Configuration
from raydp.tasks.task import Task
from raydp.training import loop
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm
from raydp.training.noise.stream import KeyedStream
from raydp.training.observers import Accounting
from raydp.training.trial import Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan

if TYPE_CHECKING:
    from raydp.spec.document import SweepSpec

OF_TRAINED = ("teacher_steps", "teacher_batch_size", "teacher_learning_rate")
OF_PROMPTED = ("num_demonstrations",)


class PATE(MethodSection):
    """A student that learns the noisy answers of teachers to public inputs (Papernot et al. 2017,
    2018).

    The training examples are divided among the teachers. A teacher is trained without noise on its
    own examples, or it is the frozen language model prompted with some of them (PromptPATE; Duan et
    al. 2023, section 4.2). The teachers vote on each public input. The answer is the class with the
    most votes after Gaussian noise on every count (GNMax). The student is trained on these answers
    by Adam with the (b, T, η) of the configuration, which costs no privacy. b is at most
    num_queries, the number of answers.

    Guarantee:
        One example added or removed changes one teacher, and so moves one vote of each query: the
        counts by sqrt(2), the largest count by 1. All answers together are one Gaussian mechanism
        of noise multiplier σ, with 1/σ² = Q (2/σ2² + 1/σ1²), for any votes (Dong, Roth and Su 2022,
        Corollary 3, which allows queries that depend on earlier answers). Its (ε, δ) covers the
        answers, the student and everything that is derived from the student. The guarantee assumes
        that the sweep's key stays secret, and that the public inputs are public.

    Source: Papernot et al. 2018, Algorithm 1 and section 4; the data-independent bound.
        `raydp pate` computes the cost of the actual votes; that figure is private.
    """

    max_grad_norm: ClassVar[None] = None
    costs_its_steps: ClassVar[bool] = False
    further_cost: ClassVar[str | None] = "its teachers are trained or prompted, and vote"

    teachers: Literal["trained", "prompted"] = "trained"
    """`trained`: every teacher is trained on its own examples. `prompted`, only for text
    classification: every teacher is the untrained base model, which reads some of the teacher's
    examples."""
    num_teachers: Annotated[int, Field(ge=2, le=100_000)] = 50
    """m, the number of teachers that the training examples are divided among."""
    num_queries: Annotated[int, Field(ge=1, le=10_000_000)] = 100
    """Number of public inputs that the teachers vote on; the first ones are taken."""
    threshold: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Confident-GNMax: an input is answered only if its largest count of votes, with separate
    noise, is at least this threshold."""
    threshold_noise: Annotated[float, Field(ge=1e-3, le=1e3)] | None = None
    """Confident-GNMax: σ1 / σ2, the noise of the threshold check over the noise of an answer."""
    teacher_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """Number of Adam steps of a teacher's training; prompted teachers take none."""
    teacher_batch_size: Annotated[int, Field(ge=1)] | None = None
    """Batch size of a teacher's training; by default every step takes the teacher's whole shard."""
    teacher_learning_rate: Annotated[float, Field(gt=0, le=10)] = 0.01
    """Learning rate of a teacher's training by Adam."""
    num_demonstrations: Annotated[int, Field(ge=1, le=1000)] = 4
    """Largest number of examples that a prompted teacher shows the model."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        # A combination that would be ignored is an error.
        if (self.threshold is None) != (self.threshold_noise is None):
            raise ValueError(
                "method.threshold and method.threshold_noise must be given together, got "
                f"{self.threshold} and {self.threshold_noise}. Give both, or neither."
            )
        if self.threshold is not None and self.threshold > self.num_teachers:
            raise ValueError(
                f"method.threshold must be <= num_teachers {self.num_teachers}, got "
                f"{self.threshold:g}: no class can have more votes. Lower it."
            )
        ignored = OF_PROMPTED if self.teachers == "trained" else OF_TRAINED
        if given := [name for name in ignored if name in self.model_fields_set]:
            other = "prompted" if self.teachers == "trained" else "trained"
            raise ValueError(
                f"method.{given[0]} must be left out with teachers {self.teachers}, got "
                f"{getattr(self, given[0])}. Remove it, or write teachers: {other}."
            )
        return self

    @model_serializer(mode="wrap")
    def _without_what_does_not_apply(
        self, handler: SerializerFunctionWrapHandler
    ) -> dict[str, object]:
        """Leave out options that do not apply, so that existing runs keep their identity.

        They belong to the other kind of teachers.
        """
        values: dict[str, object] = handler(self)
        ignored = {*OF_PROMPTED, "teachers"} if self.teachers == "trained" else OF_TRAINED
        return {k: v for k, v in values.items() if v is not None and k not in ignored}

    def check(self, spec: SweepSpec, task: Task) -> None:
        """Raise ValueError unless inputs, examples and workers are as the teachers need them.

        The task must have enough public inputs and examples, and every worker a whole network.
        """
        if not isinstance(task, ClassificationTask) or task.public is None:
            raise ValueError(
                "task.name must be a task with public inputs for method pate, got "
                f"{spec.task.name!r}. Write {{name: with_public, of: {{name: digits}}}}."
            )
        # An audit through canaries would prove nothing here, so it is refused.
        if task.facts().only_measured:
            raise ValueError(
                f"method.name must be another one for the task {spec.task.name!r}, got pate: its "
                "canaries have classes of their own, on which no teacher votes, so an audit would "
                "find nothing whatever leaks. Use raydp mia."
            )
        # Every teacher needs an example, and every query an input.
        if self.num_teachers > task.facts().num_units:
            raise ValueError(
                f"method.num_teachers must be <= num_examples {task.facts().num_units}, got "
                f"{self.num_teachers}: each learns from examples of its own. Lower it."
            )
        if self.num_queries > len(task.public):
            raise ValueError(
                f"method.num_queries must be <= the task's {len(task.public)} public inputs, got "
                f"{self.num_queries}. Lower it, or raise task.fraction."
            )
        if spec.cluster.sharding == "full":
            raise ValueError(
                "cluster.sharding must be none for method pate, got full: every worker has a "
                "teacher of its own. Leave it out."
            )
        if self.teachers == "prompted":
            self._check_context(spec, task)

    def _check_context(self, spec: SweepSpec, task: ClassificationTask) -> None:
        """Raise ValueError unless the model has positions for the demonstrations and a query."""
        if task.label_words is None or task.public is None:
            raise ValueError(
                "task.name must be a task of text classification for prompted teachers, got "
                f"{spec.task.name!r}. Write {{name: with_public, of: {{name: "
                "text_classification}}, or leave method.teachers out."
            )
        width = task.train.inputs.shape[1]  # task.max_length, whatever the texts are
        # The longest prompt that any teacher could make must fit into the model's positions.
        longest = task.label_words.longest(self.num_demonstrations, width, width)
        room = models.positions(models.config_of(spec.model.name))
        if room is not None and longest > room:
            raise ValueError(
                f"method.num_demonstrations must leave room for a query in the {room} positions of "
                f"{spec.model.name!r}, got {self.num_demonstrations}, which may take {longest} "
                "with it. Lower it or task.max_length, or choose another model."
            )

    def event_fn(self, configuration: Configuration, num_examples: int) -> PoissonGaussian:
        """Return one release of all answers together.

        Raises:
            ValueError: the student's batches are larger than the number of answers.
        """
        if configuration.batch_size > self.num_queries:
            raise ValueError(
                f"space.batch_size must be <= method.num_queries {self.num_queries}, got "
                f"{configuration.batch_size}: the student learns from the answers. Lower it, or raise "
                "num_queries."
            )
        return PoissonGaussian(sample_rate=1.0, noise_multiplier=1.0, num_steps=1)

    def answer_noise(self, noise_multiplier: float) -> float:
        """Return σ2, the noise std on each count, so that all answers have the noise multiplier."""
        # 1/σ² = Q (2/σ2² + 1/σ1²), solved for σ2.
        check = 0.0 if self.threshold_noise is None else self.threshold_noise**-2
        return noise_multiplier * math.sqrt(self.num_queries * (2 + check))

    def record_fields(self, plan: TrialPlan) -> MethodRecord:
        """Return what the method releases."""
        sigma = self.answer_noise(plan.noise_multiplier)
        checked = ""
        if self.threshold is not None and self.threshold_noise is not None:
            checked = (
                f", where the largest with noise of std {self.threshold_noise * sigma:.4g} votes "
                f"is at least {self.threshold:g}"
            )
        teachers = "teachers"
        if self.teachers == "prompted":
            teachers = f"prompted teachers of {self.num_demonstrations} demonstrations"
        procedure = Procedure(
            sampler="every example is one teacher's",
            divisor="none",
            observer="sees the noisy answers and the student",
            description=f"PATE: {self.num_queries} queries to {self.num_teachers} {teachers}, noise of std "
            f"{sigma:.4g} votes on each count{checked}",
        )
        return MethodRecord(
            procedure=procedure,
            also_not_covered=(
                "the teachers and their votes, which have no noise: the votes stay in the sweep's "
                "folder",
                "the public inputs, which are taken to be public",
            ),
        )

    def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
        """Return the student's batch: positions among the answers, as if all queries had one."""
        return poisson_batch(replace(plan, num_examples=self.num_queries), key, step)

    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=plan.learning_rate)

    def train(
        self,
        plan: TrialPlan,
        context: TrainingContext,
        task: Task,
        comm: Comm,
        key: bytes,
        store: CheckpointStore | None,
    ) -> Trained:
        """Collect votes, release noisy answers, train the student on them; see `Method.train`."""
        assert plan.noise_multiplier > 0, "a private run has noise"
        assert isinstance(task, ClassificationTask), "checked with the spec"
        assert task.public is not None, "checked with the spec"
        # Collect the votes of all teachers.
        queries = task.public.select(np.arange(self.num_queries))
        beside = None if store is None else store.beside("teachers")
        votes = collect_votes(plan, self._teachers(), context, task, queries, comm, key, beside)
        # Release noisy answers. The student then learns from what is released, without further
        # noise.
        context.accounting.release(0, plan.noise_multiplier)
        answers, answered = self.released(plan, votes, key)
        if not answered.any():
            raise ValueError(
                f"method.threshold must be lower than {self.threshold}: none of {len(votes)} "
                "queries has an answer. Lower it, or have more teachers."
            )
        # Train the student on the answers.
        learnt = LabelledExamples(inputs=queries.inputs[answered], labels=answers[answered])
        student = replace(task, train=learnt)
        # With a threshold, fewer answers than one batch may be left.
        of_student = replace(
            plan, num_examples=len(learnt), batch_size=min(plan.batch_size, len(learnt))
        )
        rule = plain_rule(
            context,
            lambda step: poisson_batch(of_student, key, step),
            self.optimizer(plan, list(context.parameters.values())),
        )
        # The student sees noisy answers alone, so its training is post-processing and costs no ε.
        trained = loop.run(
            of_student, rule, replace(context, accounting=Accounting()), student, comm, key, store
        )
        sigma = self.answer_noise(plan.noise_multiplier)
        details = {
            "votes": votes.tolist(),
            "sigma": sigma,
            "threshold": self.threshold,
            "sigma1": None if self.threshold_noise is None else self.threshold_noise * sigma,
            "answered": int(answered.sum()),
        }
        return replace(trained, details=details)

    def _teachers(self) -> Teachers:
        if self.teachers == "prompted":
            return Prompting(
                num_teachers=self.num_teachers, num_demonstrations=self.num_demonstrations
            )
        return Teaching(
            num_teachers=self.num_teachers,
            num_steps=self.teacher_steps,
            batch_size=self.teacher_batch_size,
            learning_rate=self.teacher_learning_rate,
        )

    def released(
        self, plan: TrialPlan, votes: NDArray[np.int64], key: bytes
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return [Q] the class with the most votes after noise, and [Q] whether it is answered.

        Source: Papernot et al. 2018, Algorithm 1 (Confident-GNMax): one noise on the largest count,
        another on each.
        """
        stream, sigma = (
            KeyedStream(key=key, run_id=plan.run_id),
            self.answer_noise(plan.noise_multiplier),
        )
        noise = stream.normal(votes.size, step=0, purpose="votes").reshape(votes.shape)
        answers = (votes + sigma * noise).argmax(axis=1)
        if self.threshold is None or self.threshold_noise is None:
            return answers, np.ones(len(votes), np.bool_)
        # Noise of a stream of its own, as both are accounted as independent.
        checked = votes.max(axis=1) + self.threshold_noise * sigma * stream.normal(
            len(votes), step=0, purpose="check"
        )
        return answers, checked >= self.threshold
