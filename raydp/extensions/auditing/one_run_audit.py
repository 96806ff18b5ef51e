"""The one-run audit as a score: a lower bound on ε from guesses of the canaries' membership."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raydp.extensions.auditing.canaries import CanaryClassificationTask, CanaryTask
from raydp.extensions.auditing.one_run import Guesses, one_run_bound, one_run_p_value
from raydp.scores.score import Measurement, OneByOne

if TYPE_CHECKING:
    from raydp.models.base_models import LoadedModel
    from raydp.tasks.task import Task


class OneRunAudit(OneByOne):
    """A lower bound on ε from the canaries of the task `audited` (Steinke et al. 2023; Panda et al.
    2025).

    Every canary has one number, and a low number means "in". With canaries of new tokens the number
    is the loss of the new token among the M new tokens, or of the new class among the M new
    classes. In the base model this loss is ln M for all canaries, since their embeddings are zero.
    So the loss shows only what training changed, and what training did to ordinary tokens, which is
    noise here, drops out. With canaries of known tokens the number is the loss minus the loss in
    the base model. With gradient canaries it is the negative log-likelihood ratio of "in" and
    "out", which an auditor computes from every noisy sum of gradients.

    The canaries with the k lowest numbers are guessed to be in the training data, those with the k
    highest to be out. There is no guess for the others. The guesses use the numbers only; they are
    compared with the coins afterwards.

    The measurement's value is ε̂. Its details are canaries, guesses and correct (for the share of
    guesses with the largest bound), gdp_mu, epsilon_gdp, delta and confidence. With a stated ε they
    also have epsilon and p_value, the p-value of the hypothesis that the mechanism is (ε, δ)-DP.
    With gradient canaries they also have num_in, guessed_in and wrongly_in, the counts for
    `separate_bound`. There, every canary with a positive log-likelihood ratio is guessed to be
    in.

    Guarantee:
        The guarantee of `one_run_bound`.
    """

    no_leak: ClassVar[float | None] = None
    in_words: ClassVar[str | None] = "audits show an ε of at least {value} on average"

    delta: Annotated[float, Field(ge=0, lt=1)]
    """δ of the guarantee to test."""
    epsilon: Annotated[float, Field(gt=0)] | None = None
    """The stated ε; null if none is stated."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Confidence of the lower bound ε̂, over the coins and the randomness of training."""
    shares: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)] = (0.2,)
    """Shares of the canaries to guess, half of them in and half out; fixed before training. With
    several shares, the confidence of the bounds and the p-values are corrected for their number
    (Bonferroni), and the best share counts."""

    def check(self, task: Task) -> None:
        """Raise ValueError if the task has no canaries."""
        if not isinstance(task, CanaryTask | CanaryClassificationTask):
            raise ValueError(
                "task.name must be 'audited' for the score 'one_run_audit', got a task without "
                "canaries. `raydp audit` makes the sweep that is needed."
            )

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Guess every canary's coin and count the correct guesses; the seed has no effect."""
        assert isinstance(task, CanaryTask | CanaryClassificationTask)
        losses = _numbers(model, task)
        if not np.isfinite(losses).all():
            raise ValueError(
                "losses must be finite, got NaN or infinity. The model diverged in training."
            )
        # Ties go by position, which reveals nothing about the coins.
        order = np.argsort(losses, kind="stable")
        # The bound for each share of guesses; the best counts, with Bonferroni's correction.
        bounds = [self._bound(task.included[order], share) for share in self.shares]
        best = max(bounds, key=lambda details: details["epsilon_hat"] or 0.0)
        if self.epsilon is not None:
            best["p_value"] = min(
                1.0, len(bounds) * min(details["p_value"] or 0.0 for details in bounds)
            )
        details = {k: v for k, v in best.items() if k != "epsilon_hat"}
        # Gradient canaries have a natural threshold, so all of them can be guessed.
        if task.kind == "gradient":
            positive = losses < 0
            details |= {
                "num_in": int(task.included.sum()),
                "guessed_in": int((positive & task.included).sum()),
                "wrongly_in": int((positive & ~task.included).sum()),
            }
        return Measurement(
            value=best["epsilon_hat"] or 0.0, std_error=None, num_samples=1, details=details
        )

    def expected_bounds(self) -> tuple[float, float]:
        """Return the smallest and the largest value that the score can take."""
        return 0.0, float("inf")

    def _bound(self, included: NDArray[np.bool_], share: float) -> dict[str, float | None]:
        """Return the bound that the guesses at one share prove; `included` is sorted by loss."""
        # Guess the lowest numbers in and the highest out.
        each = max(1, int(share * len(included) / 2))
        correct = int(included[:each].sum() + (~included[-each:]).sum())
        guesses = Guesses(num_canaries=len(included), num_guesses=2 * each, num_correct=correct)
        bound = one_run_bound(guesses, self.delta, 1 - (1 - self.confidence) / len(self.shares))
        tested = {}
        if self.epsilon is not None:
            tested = {
                "epsilon": self.epsilon,
                "p_value": one_run_p_value(guesses, self.epsilon, self.delta),
            }
        return {
            "epsilon_hat": bound.epsilon,
            "canaries": guesses.num_canaries,
            "guesses": guesses.num_guesses,
            "correct": guesses.num_correct,
            "gdp_mu": bound.gdp_mu,
            "epsilon_gdp": bound.epsilon_gdp,
            "delta": self.delta,
            "confidence": self.confidence,
            **tested,
        }


def _numbers(
    model: LoadedModel, task: CanaryTask | CanaryClassificationTask
) -> NDArray[np.float64]:
    """Return [M] the number of each canary; a lower one is more likely in the training data."""
    if task.kind == "gradient":  # the base model was not trained, so nothing was seen
        return np.zeros(len(task.included)) if model.observed is None else -model.observed
    losses = task.canary_losses(model.model)
    if task.kind == "known_token":
        # A known token may be easy or hard by itself; the base model's loss takes this away.
        losses = losses - model.of_base(
            "canary losses", lambda base: task.canary_losses(base.model)
        )
    return losses
