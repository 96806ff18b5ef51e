"""Probability that a secret is extracted within a number of attempts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from pydantic import Field

from raydp.scores.base import Measurement, SecretKind
from raydp.scores.language.encoding import EncodedSecret, encode, secrets_of_kind
from raydp.scores.language.generation import Sampling
from raydp.scores.language.teacher_forcing import over_continuations

if TYPE_CHECKING:
    from raydp.models.base_models import LoadedModel
    from raydp.tasks.base import Task


class ExtractionProbability(Sampling):
    """Probability that at least one of n independent generations continues a secret's prompt verbatim.

    p_n = 1 - (1 - p)^n with the exact p of `vmr_exact`: what an attacker gets who may ask n times. p stays a logarithm,
    so that a secret of probability 1e-300 and an attacker of 1e300 attempts are told apart from none.

    The standard error is over secrets; a secret's value has none. Higher is worse privacy.

    Details: `attempts_for_half`, the n at which p_n is 1/2, ln 2 / -ln(1 - p), median over secrets, None where that is
    infinite; `never`, the secrets with p = 0, a token of which is not among the k most likely.

    Source: Hayes et al. 2024 ("Measuring memorization through probabilistic discoverable extraction").
    """

    secret_kinds: ClassVar[tuple[SecretKind, ...]] = ("verbatim",)

    num_attempts: float = Field(100, ge=1, allow_inf_nan=False)
    """n, the number of independent generations that an attacker asks for."""

    def check(self, task: Task) -> None:
        """Raise ValueError if the task has no verbatim secrets."""
        secrets_of_kind(task, "verbatim", score="extraction")

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model; the seed changes nothing."""
        secrets = encode(model.tokenizer, secrets_of_kind(task, "verbatim", score="extraction"))

        def log_hazard(logits: torch.Tensor, secret: EncodedSecret) -> float:
            probabilities = self.distribution(logits).probability_of(np.array(secret.continuation_ids))
            with np.errstate(divide="ignore"):
                return log_rate(float(np.log(probabilities).sum()))

        rates = over_continuations(model, secrets, log_hazard)
        measured = Measurement.over_secrets(
            [extracted(rate, self.num_attempts) for rate in rates], ids=[secret.name for secret in secrets]
        )
        return replace(measured, details=_details(rates))

    def expected_bounds(self) -> tuple[float, float]:
        """A probability."""
        return 0.0, 1.0


def log_rate(log_p: float) -> float:
    """ln(-ln(1 - p)) from ln p: -inf for p = 0, inf for p = 1; ln p itself where p is too small to be a double."""
    if log_p < -700:  # -ln(1 - p) = p (1 + p/2 + ...), which is p in double precision from 1e-16 down
        return log_p
    p = min(math.exp(log_p), 1.0)  # rounding may put a product of ones above 1
    return math.inf if p == 1 else math.log(-math.log1p(-p))


def extracted(rate: float, num_attempts: float) -> float:
    """1 - (1 - p)^n from log_rate(ln p)."""
    return -math.expm1(-_exp(rate + math.log(num_attempts)))


def _details(rates: list[float]) -> dict[str, float | None]:
    """Attempts for an even chance, and how many secrets have none."""
    half = float(np.median([_exp(math.log(math.log(2)) - rate) for rate in rates]))
    return {
        "attempts_for_half": half if math.isfinite(half) else None,
        "never": sum(rate == -math.inf for rate in rates),
    }


def _exp(x: float) -> float:
    """e^x, infinity where it is too large for a double."""
    return math.exp(x) if x < 709 else math.inf
