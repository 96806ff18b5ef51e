"""Probability that a secret is extracted within a given number of attempts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from pydantic import Field

from raydp.scores.language.encoding import EncodedSecret
from raydp.scores.language.generation import Sampling
from raydp.scores.language.teacher_forcing import over_continuations
from raydp.scores.memorisation.vmr import OfVerbatimSecrets
from raydp.scores.score import Measurement

if TYPE_CHECKING:
    from raydp.models.base_models import LoadedModel
    from raydp.tasks.task import Task


class ExtractionProbability(OfVerbatimSecrets, Sampling):
    """Probability that at least one of n independent generations continues a secret's prompt
    verbatim.

    p_n = 1 - (1 - p)^n with the exact p of `vmr_exact`. It is the success probability of an
    attacker who generates n times. The computation keeps ln p, so that a probability of 1e-300 does
    not become 0 and 1e300 attempts work.

    The standard error is over secrets; a single secret's value is exact. Higher is worse privacy.

    Details: `attempts_for_half` is the median over secrets of the n at which p_n is 1/2, ln 2 /
    -ln(1 - p), None if it is infinite. `never` is the number of secrets with p = 0, which have a
    token outside the k most likely.

    Source: Hayes et al. 2024 ("Measuring memorization through probabilistic discoverable
    extraction").
    """

    in_words: ClassVar[str | None] = (
        "a secret is completed at least once in 100 tries with a chance of {percent}"
    )
    worded_for: ClassVar[Mapping[str, object]] = {"num_attempts": 100}

    score_name: ClassVar[str] = "extraction"

    num_attempts: float = Field(100, ge=1, allow_inf_nan=False)
    """n, the number of independent generations that an attacker makes."""

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model. The seed has no effect."""
        secrets = self.secrets(model, task)

        def log_hazard(logits: torch.Tensor, secret: EncodedSecret) -> float:
            probabilities = self.distribution(logits).probability_of(
                np.array(secret.continuation_ids)
            )
            # A token outside the top k has probability 0, whose logarithm is -inf on purpose.
            with np.errstate(divide="ignore"):
                return log_rate(float(np.log(probabilities).sum()))

        rates = over_continuations(model, secrets, log_hazard)
        measured = Measurement.over_secrets(
            [extracted(rate, self.num_attempts) for rate in rates],
            ids=[secret.name for secret in secrets],
        )
        return replace(measured, details=_details(rates))


def log_rate(log_p: float) -> float:
    """Return ln(-ln(1 - p)) from ln p: -inf for p = 0 and inf for p = 1.

    If p is too small for a double, ln p itself is the limit.
    """
    # -ln(1 - p) = p (1 + p/2 + ...), which is p in double precision from 1e-16 down.
    if log_p < -700:
        return log_p
    p = min(math.exp(log_p), 1.0)  # a product of ones may round to above 1
    return math.inf if p == 1 else math.log(-math.log1p(-p))


def extracted(rate: float, num_attempts: float) -> float:
    """Return 1 - (1 - p)^n for rate = log_rate(ln p) and n = num_attempts."""
    # 1 - exp(-n·(-ln(1 - p))), by expm1: exact for tiny probabilities.
    return -math.expm1(-_exp(rate + math.log(num_attempts)))


def _details(rates: list[float]) -> dict[str, float | None]:
    """Return the details `attempts_for_half` and `never`, see `ExtractionProbability`."""
    # The n with p_n = 1/2 is ln 2 / (-ln(1 - p)), computed in logarithms.
    half = float(np.median([_exp(math.log(math.log(2)) - rate) for rate in rates]))
    return {
        "attempts_for_half": half if math.isfinite(half) else None,
        "never": sum(rate == -math.inf for rate in rates),
    }


def _exp(x: float) -> float:
    """Return e^x; infinity if it is too large for a double."""
    return math.exp(x) if x < 709 else math.inf
