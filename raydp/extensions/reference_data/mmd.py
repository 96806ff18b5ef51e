"""Regularisation by the maximum mean discrepancy of a classifier's outputs.

Source: Li et al. 2021; Kaplan et al. 2024.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from raydp.extensions.classification.labelled import ClassificationTask
from raydp.extensions.reference_data.regularised import RegularisedClassifier, Regulariser, Seen
from raydp.training.trial import TrainingContext
from raydp.training.trial_plan import TrialPlan

SMALLEST = 1e-12
"""Added to a squared distance, because the root has no gradient at 0."""


class MMDRegularization(RegularisedClassifier):
    """L_T + λ · the mean over classes of the MMD between confidence vectors of training and of
    reference data.

    The mean is over the classes that occur in both parts of the batch; other classes cannot be
    compared. The batch must be large enough that most classes do (Kaplan et al. 2024, appendix B.2,
    use 512 for 100 classes).

    Source: Kaplan et al. 2024, equation 9 and appendix B.2, which uses the norm itself, not its
    square.
    """

    kernel_variance: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Variance of the Gaussian kernel exp(-‖p - q‖² / (2 variance)); 1 in Kaplan et al. 2024,
    appendix B.2."""

    def regulariser(
        self, plan: TrialPlan, context: TrainingContext, task: ClassificationTask, key: bytes
    ) -> Regulariser:
        return _MeanDiscrepancy(self.kernel_variance)


class _MeanDiscrepancy(Regulariser):
    def __init__(self, variance: float) -> None:
        self._variance = variance

    def value(self, training: Seen, reference: Seen) -> torch.Tensor:
        # A class that one part lacks cannot be compared.
        shared = sorted(set(training.labels.tolist()) & set(reference.labels.tolist()))
        values = [
            discrepancy(
                training.probs[training.labels == k],
                reference.probs[reference.labels == k],
                self._variance,
            )
            for k in shared
        ]
        return (
            torch.stack(values).mean() if values else torch.zeros((), device=training.logits.device)
        )


def discrepancy(p: torch.Tensor, q: torch.Tensor, variance: float) -> torch.Tensor:
    """Return ‖mean ψ(p_i) - mean ψ(q_j)‖ in the space of the Gaussian kernel.

    Pairs of a point with itself count.

    Args:
        p, q: [M, K] and [N, K].

    Source: Gretton et al. 2012, equation 5 (the biased estimate).
    """

    def mean_kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        squares = (a[:, None] - b[None]).square().sum(dim=2)
        return torch.exp(-squares / (2 * variance)).mean()

    # The square of the distance in the kernel's space; rounding may make it negative.
    squared = mean_kernel(p, p) + mean_kernel(q, q) - 2 * mean_kernel(p, q)
    return (squared.clamp(min=0) + SMALLEST).sqrt()
