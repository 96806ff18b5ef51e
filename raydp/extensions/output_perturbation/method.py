"""Output perturbation: train a convex model, then add noise to the weights once.

Source: Wu et al. 2017.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from raydp.extensions.classification.labelled import ClassificationTask, LabelledBatch
from raydp.extensions.classification.networks import NetworkName
from raydp.extensions.output_perturbation.logistic import LogisticDescent
from raydp.methods.method import MethodSection
from raydp.privacy import MethodRecord, PoissonGaussian, Procedure, ReleasedWeights
from raydp.search_spaces import Configuration
from raydp.tasks.task import Task
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm
from raydp.training.noise.lattice import (
    LATTICE_SHARE,
    NOISE_WIDENING,
    add_lattice_noise,
    lattice_step,
)
from raydp.training.noise.stream import KeyedStream
from raydp.training.observers import Observers, StepReport
from raydp.training.trial import Paused, Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan

if TYPE_CHECKING:
    from raydp.spec.document import SweepSpec


ROUNDING = NOISE_WIDENING - 1 - LATTICE_SHARE
"""Largest increase of the sensitivity by rounding in training.

The lattice takes the rest of the noise's widening.
"""


class OutputPerturbation(MethodSection):
    """Logistic regression without noise in training, and Gaussian noise on the trained weights.

    Training takes T steps with constant η. A random order cuts the n places of the data set into
    batches of b places, which are used in turn. Every example is used once a pass, at most ⌈T b /
    n⌉ times. See `LogisticDescent`.

    Guarantee:
        Noise of std σ Δ on every weight, with Δ the sensitivity of the trained weights, is one
        Gaussian mechanism of noise multiplier σ. Its (ε, δ) holds for one example added or removed,
        in a data set of at most n examples whose other places are empty. The intermediate weights
        are not covered and are not kept. The guarantee assumes that the sweep's key stays secret.

    Source: Chaudhuri et al. 2011 (output perturbation); Wu et al. 2017 (for permutation-based SGD).
    """

    max_grad_norm: ClassVar[None] = None
    covers_each_step: ClassVar[bool] = False

    max_input_norm: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0
    """R: in training, inputs with a larger L2 norm are scaled down to R."""
    weight_decay: Annotated[float, Field(ge=0, le=1e3)] = 1e-2
    """λ of λ/2 ‖θ‖², over all weights and biases; with a larger λ one example moves the weights
    less."""

    def check(self, spec: SweepSpec, task: Task) -> None:
        """Raise ValueError unless a linear network is trained on labelled examples."""
        network = NetworkName.parse(spec.model.name)
        if (
            not isinstance(task, ClassificationTask)
            or network is None
            or network.architecture != "linear"
        ):
            raise ValueError(
                "model.name must be a linear network with method output_perturbation, got "
                f"{spec.model.name!r}. Its guarantee rests on a convex loss: write "
                "linear:SHAPE:CLASSES and a classification task."
            )

    def event_fn(self, configuration: Configuration, num_examples: int) -> PoissonGaussian:
        """Return one release: every example takes part, and noise is added once.

        Raises:
            ValueError: the learning rate is too large for the sensitivity to be known.
        """
        self._descent(configuration, num_examples)
        return PoissonGaussian(sample_rate=1.0, noise_multiplier=1.0, num_steps=1)

    def record_fields(self, plan: TrialPlan) -> MethodRecord:
        """Return how batches are drawn, and the noise on the trained weights."""
        sensitivity = self.descent(plan).sensitivity(plan.num_steps)
        procedure = Procedure(
            sampler="none: fixed batches, each example once a pass; noise once, on the trained weights",
            divisor="batch size",
            description="training without noise; noise once, on the trained weights",
            observer="sees the released weights",
            released_weights=ReleasedWeights(
                sensitivity=sensitivity, noise_std=self._noise_std(plan, sensitivity)
            ),
        )
        return MethodRecord(
            procedure=procedure,
            also_not_covered=(
                "the weights of the steps before, which have no noise and are not kept",
            ),
        )

    def descent(self, plan: TrialPlan) -> LogisticDescent:
        """Return the gradient descent of a run."""
        return self._descent(plan.configuration, plan.num_examples)

    def _descent(self, configuration: Configuration, num_examples: int) -> LogisticDescent:
        return LogisticDescent(
            max_input_norm=self.max_input_norm,
            weight_decay=self.weight_decay,
            learning_rate=configuration.learning_rate,
            batch_size=configuration.batch_size,
            num_batches=-(-num_examples // configuration.batch_size),
        )

    def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
        """Return the places of the step's batch; a pass's last one may have fewer than b."""
        return _order(plan, key)[self.descent(plan).places(step)]

    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        """Return SGD with the steps' rule; training takes the steps in double precision itself."""
        return torch.optim.SGD(parameters, lr=plan.learning_rate, weight_decay=self.weight_decay)

    def train(
        self,
        plan: TrialPlan,
        context: TrainingContext,
        task: Task,
        comm: Comm,
        key: bytes,
        store: CheckpointStore | None,
    ) -> Trained:
        """Train on rank 0 while others wait, for seconds: an interrupted run starts again."""
        self.event(plan, plan.noise_multiplier)
        started = time.perf_counter()
        history = self._fit(plan, context, task, comm, key) if comm.rank == 0 else []
        if comm.broadcast_object(history is None):
            raise Paused("paused; a run of output_perturbation starts again")
        for parameter in context.parameters.values():
            comm.broadcast(parameter.data)
        seconds = time.perf_counter() - started
        return Trained(history=history or [], ended_early=False, resumed_from=0, seconds=seconds)

    def _fit(
        self, plan: TrialPlan, context: TrainingContext, task: Task, comm: Comm, key: bytes
    ) -> list[dict[str, float]] | None:
        """Train, add noise, put the weights into the model; return the history, None to pause."""
        assert plan.noise_multiplier > 0, "a private run has noise"
        # Weights and bias as one matrix, in double precision.
        descent, order, history = self.descent(plan), _order(plan, key), list[dict[str, float]]()
        (bias_name, bias), (weight_name, weight) = sorted(
            context.parameters.items(), key=lambda item: item[1].dim()
        )
        theta = torch.cat([weight.detach(), bias.detach()[:, None]], dim=1).double()
        # The noise must also cover the rounding of training.
        sensitivity, present = descent.sensitivity(plan.num_steps), len(task.lengths())
        if (rounding := descent.rounding(theta, plan.num_steps)) > ROUNDING * sensitivity:
            raise ValueError(
                f"method.max_input_norm must be so small that rounding adds at most {ROUNDING:.2g} "
                f"of the sensitivity {sensitivity:.3g}, got {self.max_input_norm:g}, where it can "
                f"add {rounding:.2g}. Lower it, the learning rate or the number of steps."
            )
        # Train without noise, in double precision.
        observer = Observers(*context.observers)
        for step in range(plan.num_steps):
            if context.pause_fn():
                return None
            # Places beyond the data are empty: a smaller data set keeps the order of the larger
            # one.
            places = np.sort(order[descent.places(step)])
            batch = cast(LabelledBatch, task.batch(places[places < present]).to(comm.device))
            loss, drawn = descent.step(theta, batch), len(batch.labels)
            history.append(
                {"step": step, "drawn": drawn, **({"loss": loss / drawn} if drawn else {})}
            )
            observer.after_step(
                StepReport(done=step + 1, num_steps=plan.num_steps, row=history[-1])
            )
        # Record the release, then add noise to the weights once, on a lattice.
        context.accounting.release(plan.num_steps, plan.noise_multiplier)
        stream = KeyedStream(key=key, run_id=plan.run_id)
        lattice, std = lattice_step(sensitivity, theta.numel()), self._noise_std(plan, sensitivity)
        parts = {weight_name: (weight, theta[:, :-1]), bias_name: (bias, theta[:, -1])}
        for name, (parameter, exact) in parts.items():
            released = exact.contiguous()
            noise = stream.normal_on(
                released.device, released.numel(), step=plan.num_steps, purpose="noise", name=name
            )
            add_lattice_noise(released, noise, std=std, step=lattice)
            parameter.data.copy_(released)
        return history

    def _noise_std(self, plan: TrialPlan, sensitivity: float) -> float:
        """Return the std of the noise.

        Its widening pays for the lattice and for rounding in double precision.
        """
        return plan.noise_multiplier * sensitivity * NOISE_WIDENING


def _order(plan: TrialPlan, key: bytes) -> NDArray[np.int64]:
    """Return [n] every pass's order of the places, whatever examples are in them."""
    bits = KeyedStream(key=key, run_id=plan.run_id).bits(plan.num_examples, step=0, purpose="order")
    return np.argsort(bits, kind="stable")
