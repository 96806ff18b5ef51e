"""Logistic regression by gradient steps over fixed batches, and its sensitivity to one example."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from raydp.extensions.classification.labelled import LabelledBatch


@dataclass(frozen=True, kw_only=True)
class LogisticDescent:
    """Gradient descent θ ← θ - η (1/b Σ_{i in the step's batch} ∇l_i(θ) + λ θ) over fixed batches.

    Every example is in one of m fixed batches of at most b examples. The batches are used in turn:
    step t takes batch t mod m. l_i is the cross-entropy of softmax(θ x), where x is the input,
    scaled to a norm of at most R, with a 1 for the bias.

    Args:
        max_input_norm: R.
        weight_decay: λ >= 0.
        learning_rate: η.
        batch_size: b.
        num_batches: m.

    Guarantee:
        Take two runs of T steps from the same start; in one of them an example is in its place, in
        the other the place is empty. `sensitivity(T)` bounds the L2 distance of their results over
        all weights. Each step is a (1 - ηλ)-contraction, because l_i is convex and (R² +
        1)/2-smooth and η <= `largest_learning_rate`. The example adds at most η L / b when its
        batch is used, because its loss is L-Lipschitz with L = sqrt(2 (R² + 1)). The worst place of
        the example is in the batch that is used last. All this is in real numbers; `rounding`
        bounds the rest.

    Raises:
        ValueError: the learning rate is above the largest one.

    Source: Wu et al. 2017 (Algorithm 2, Lemmas 6 to 8) with the constants of Hardt, Recht and
        Singer 2016 (Lemma 3.7). In these a record is replaced, which costs twice as much.
    """

    max_input_norm: float
    weight_decay: float
    learning_rate: float
    batch_size: int
    num_batches: int

    def __post_init__(self) -> None:
        if self.learning_rate > self.largest_learning_rate:
            raise ValueError(
                f"space.learning_rate must be at most {self.largest_learning_rate:.4g} with "
                f"method.max_input_norm {self.max_input_norm:g} and weight_decay "
                f"{self.weight_decay:g}, got {self.learning_rate:g}. Above it steps may move the "
                "weights of neighbouring data sets apart. Lower it, or the others."
            )

    @property
    def lipschitz(self) -> float:
        """Return L: ‖∇l_i‖ = ‖softmax - label‖ ‖x‖ <= sqrt(2) sqrt(R² + 1)."""
        return math.sqrt(2 * (self.max_input_norm**2 + 1))

    @property
    def smoothness(self) -> float:
        """Return β.

        The Hessian is (diag p - p pᵀ) ⊗ x xᵀ, whose first factor has eigenvalues of at most 1/2.
        """
        return (self.max_input_norm**2 + 1) / 2

    @property
    def largest_learning_rate(self) -> float:
        """Return 2 / (β + 2λ). Up to this rate, max(|1 - ηλ|, |1 - η(β + λ)|) = 1 - ηλ."""
        return 2 / (self.smoothness + 2 * self.weight_decay)

    def sensitivity(self, num_steps: int) -> float:
        """Return Δ = η L / b Σ_{j < k} (1 - ηλ)^{jm}.

        An example in the batch that is used last was used k = ⌈T/m⌉ times, every m steps.
        """
        # A geometric series of shrinking effects; without decay every use counts in full.
        uses = -(-num_steps // self.num_batches)
        log_shrink = self.num_batches * math.log1p(-self.learning_rate * self.weight_decay)
        passes = uses if log_shrink == 0 else math.expm1(uses * log_shrink) / math.expm1(log_shrink)
        return self.learning_rate * self.lipschitz / self.batch_size * passes

    def rounding(self, start: torch.Tensor, num_steps: int) -> float:
        """Return how much further apart two results can be in double precision.

        The error of a step is bounded by the errors of its inner products, of d and b terms, at the
        largest weights that training can reach. Later steps do not enlarge it.

        Args:
            start: the weights at the start, [K, d].
        """
        classes, terms = start.shape
        # The farthest that the weights can move, and the largest inner products there.
        reach = math.sqrt(self.max_input_norm**2 + 1)
        moved = min(
            num_steps * self.learning_rate, 1 / self.weight_decay if self.weight_decay else math.inf
        )
        size = float(torch.linalg.vector_norm(start)) + moved * self.lipschitz
        of_gradient = (
            reach * ((terms + 4) * reach * size + classes + 8) + self.batch_size * self.lipschitz
        )
        step = 2.0**-53 * (self.learning_rate * of_gradient + 3 * size)
        decay = self.learning_rate * self.weight_decay
        return 2 * step * min(num_steps, 1 / decay if decay else math.inf)

    def places(self, step: int) -> slice:
        """Return the places of a step's batch, perhaps smaller if it is the last, in order."""
        first = step % self.num_batches * self.batch_size
        return slice(first, first + self.batch_size)

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return [B, d + 1] float64 flat inputs, scaled to norm R, non-finite ones 0, and a 1."""
        flat = torch.nan_to_num(inputs.flatten(1).double(), nan=0.0, posinf=0.0, neginf=0.0)
        # Inputs within the norm stay as they are; all others are scaled onto it.
        norms = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
        flat *= self.max_input_norm / norms.clamp(min=self.max_input_norm)
        return torch.cat([flat, torch.ones_like(norms)], dim=1)

    def step(self, weights: torch.Tensor, batch: LabelledBatch) -> float:
        """Take one step, in place.

        Args:
            weights: θ, [K, d + 1] float64, with the bias last.
            batch: the examples of the step's batch. Missing examples are empty places.

        Returns:
            The summed cross-entropy before the step.
        """
        # The gradient of the cross-entropy: (softmax - label) xᵀ, summed over the batch.
        features = self.features(batch.inputs)
        log_probs = torch.log_softmax(features @ weights.T, dim=1)
        loss = -log_probs.gather(1, batch.labels[:, None]).sum()
        errors = log_probs.exp_()
        errors[torch.arange(len(errors), device=errors.device), batch.labels] -= 1
        # Divided by b also for a smaller batch: the guarantee is for empty places.
        gradient = errors.T @ features / self.batch_size
        weights.mul_(1 - self.learning_rate * self.weight_decay).sub_(
            gradient, alpha=self.learning_rate
        )
        return float(loss)
