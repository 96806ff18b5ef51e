"""Lower bounds on ε from one training run with canaries whose inclusion an auditor guesses.

A fair coin includes each canary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from raydp.privacy.accounting.gdp import gaussian_epsilon

_ROUNDING = 1e-9
"""Far above the rounding of scipy's binomial tails (about 1e-12), so that it raises no bound."""
_MAX_EPSILON = 512.0
"""No number of guesses refutes more than this ε.

10^6 correct ones out of 10^6 stop at ε = 12.7 with confidence 0.95.
"""


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """Result of an auditor's guesses of the coins.

    Attributes:
        num_canaries: M, number of canaries, each included by its own fair coin.
        num_guesses: R, number of guessed coins; the auditor abstained from the others.
        num_correct: V, number of correct guesses.
    """

    num_canaries: int
    num_guesses: int
    num_correct: int

    def __post_init__(self) -> None:
        for name, value, at_most, limit in (
            ("canaries", self.num_canaries, "10^7", 10**7),
            ("guesses", self.num_guesses, f"the {self.num_canaries} canaries", self.num_canaries),
            ("correct", self.num_correct, f"the {self.num_guesses} guesses", self.num_guesses),
        ):
            least = 1 if name == "canaries" else 0
            if not least <= value <= limit:
                raise ValueError(
                    f"{name} must be at least {least} and at most {at_most}, got {value}. Count "
                    "them again."
                )


@dataclass(frozen=True, kw_only=True)
class OneRunBound:
    """Lower bounds, each valid separately at the confidence; see `one_run_bound`.

    Attributes:
        epsilon: bound on ε at the δ; it needs no assumption on the mechanism.
        gdp_mu: bound on μ, if the mechanism is Gaussian (μ-GDP).
        epsilon_gdp: bound on ε at the δ, if the mechanism is Gaussian; None at δ = 0, where no
            Gaussian mechanism has a finite ε.
    """

    epsilon: float
    gdp_mu: float
    epsilon_gdp: float | None


def one_run_bound(guesses: Guesses, delta: float, confidence: float = 0.95) -> OneRunBound:
    """Return lower bounds on what the audited mechanism leaks about one canary.

    Args:
        delta: δ in [0, 1) of the guarantee to test.
        confidence: in (0, 1).

    Guarantee:
        With probability >= confidence over the coins and the mechanism, epsilon <= ε for every (ε,
        δ) that the mechanism satisfies under adding or removing one canary. There are three
        assumptions. The coins are fair and independent of each other and of everything else. The
        guesses depend on the coins through the mechanism's output alone. At most R guesses are made
        for every output. gdp_mu and epsilon_gdp also assume that the mechanism is μ-GDP for some μ,
        and bound this μ. If it is not (subsampled DP-SGD with few steps), epsilon_gdp may exceed ε.

    Raises:
        ValueError: δ or the confidence is out of its range.

    Source: Steinke, Nasr and Jagielski 2023 (Theorem 5.2 and appendix D); Mahloujifar, Melis and
    Chaudhuri 2024.
    """
    _check(delta, confidence)
    level = 1 - confidence
    # The largest ε that the p-value refutes; p rises with ε.
    epsilon = _largest(lambda e: one_run_p_value(guesses, e, delta) < level, _MAX_EPSILON)
    mu = _largest(lambda m: _refutes_gdp(guesses, m, level), 64.0)
    converted = None if delta == 0 else max(0.0, gaussian_epsilon(mu, delta) - _ROUNDING)
    return OneRunBound(epsilon=epsilon, gdp_mu=mu, epsilon_gdp=converted)


def twin_bound(guesses: Guesses, delta: float, copies: int = 1, confidence: float = 0.95) -> float:
    """Return a lower bound on ε from guesses of which twin of each pair is in the training data.

    A coin that falls differently removes `copies` units and adds as many others. A mechanism that
    is (ε, δ)-DP under adding or removing one unit is (k ε, δ (1 + e^ε + ... + e^((k-1) ε)))-DP
    under k = 2 copies such changes, by the definition applied k times. The bound is the largest ε
    at which Steinke et al.'s theorem refutes this guarantee. So it is a lower bound on the
    mechanism's ε in the same sense, and under the same assumptions, as `one_run_bound`.

    Args:
        guesses: num_canaries is the number of pairs, each with a fair coin of its own.
        delta: δ in [0, 1) of the guarantee to test.
        copies: number of units that each twin is in.
        confidence: in (0, 1).

    Raises:
        ValueError: δ, the confidence or the number of copies is out of its range.

    Source: Steinke, Nasr and Jagielski 2023, Theorem 5.2, which holds for any mechanism that gets
    the coins.
    """
    _check(delta, confidence)
    if copies < 1:
        raise ValueError(f"copies must be at least 1, got {copies}. Count the units of a twin.")
    changes = 2 * copies

    def refuted(epsilon: float) -> bool:
        # Group privacy: Σ_{j < k} e^(jε) = (e^(kε) - 1) / (e^ε - 1), and k at ε = 0.
        factor = changes if epsilon == 0 else math.expm1(changes * epsilon) / math.expm1(epsilon)
        of_all = delta * factor * (1 + _ROUNDING)
        return of_all < 1 and one_run_p_value(guesses, changes * epsilon, of_all) < 1 - confidence

    return _largest(refuted, _MAX_EPSILON / 2 / changes)


def one_run_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Return a bound, over all (ε, δ)-DP mechanisms, on the probability of so many correct guesses.

    The bound is P[B >= V] + 2 M δ max over i of P[V > B >= V - i] / i for B ~ Binomial(R, e^ε / (1
    + e^ε)). It is computed by the number of errors R - B, so that it is exact even if e^ε / (1 +
    e^ε) rounds to 1. It is rounded up.

    Args:
        epsilon: ε >= 0, infinity included.
        delta: δ in [0, 1).

    Source: Steinke, Nasr and Jagielski 2023, Theorem 5.2.
    """
    from scipy.special import bdtr, expit

    # No correct guess is no evidence at all.
    if guesses.num_correct == 0:
        return 1.0
    total, errors, rate = (
        guesses.num_guesses,
        guesses.num_guesses - guesses.num_correct,
        float(expit(-epsilon)),
    )
    # Errors at rate 1 / (1 + e^ε): their lower tail stays exact where e^ε rounds.
    tail = float(bdtr(errors, total, rate))
    if delta > 0:
        tail += 2 * guesses.num_canaries * delta * _densest(errors, total, rate)
    return min(1.0, tail * (1 + _ROUNDING))


def _check(delta: float, confidence: float) -> None:
    """Raise ValueError if δ or the confidence is out of its range."""
    if not 0 <= delta < 1:
        raise ValueError(
            f"delta must be at least 0 and below 1, got {delta:g}. Use that of the guarantee."
        )
    if not 0 < confidence < 1:
        raise ValueError(
            f"confidence must be above 0 and below 1, got {confidence:g}. 0.95 is usual."
        )


def _densest(errors: int, total: int, rate: float) -> float:
    """Return the max over i in 1..total - errors of P[errors < E <= errors + i] / i.

    E ~ Binomial(total, rate).

    The quotient is the mean of the next i probabilities. They rise to the mode and then fall. So
    the mean rises with i until the first probability below the mean, and then falls: a bisection
    finds this i.
    """
    from scipy.special import bdtr, bdtrc
    from scipy.stats import binom

    # The difference of the smaller tails loses fewer digits.
    lower_tail = bdtr(errors, total, rate) < 0.5

    def mean(i: int) -> float:
        more = errors + i
        if lower_tail:
            return float(bdtr(more, total, rate) - bdtr(errors, total, rate)) / i
        return float(bdtrc(errors, total, rate) - bdtrc(more, total, rate)) / i

    low, high = 1, total - errors
    while low < high:
        middle = (low + high) // 2
        if binom.pmf(errors + middle + 1, total, rate) <= mean(middle):
            high = middle
        else:
            low = middle + 1
    return mean(low)


def _refutes_gdp(guesses: Guesses, mu: float, level: float) -> bool:
    """Return whether so many correct guesses are improbable under every μ-GDP mechanism.

    Improbable means a probability below the level.

    Suppose that V or more correct guesses had the probability `level`. For i = V downwards, let
    `right` and `wrong` be the shares of canaries that are guessed right and wrong, in the event of
    at least i correct guesses. The trade-off curve bounds one by the other. Together they cannot
    exceed R / M. If the bounds do, the probability is below the level.

    Source: Mahloujifar, Melis and Chaudhuri 2024 (the recursion for a bounded number of guesses of
    two kinds).
    """
    from scipy.special import ndtr, ndtri

    total, canaries = guesses.num_guesses, guesses.num_canaries
    # Start at V correct guesses with the event's probability at the level.
    right = level * guesses.num_correct / canaries
    wrong = level * (total - guesses.num_correct) / canaries
    for i in range(guesses.num_correct - 1, -1, -1):
        # The Gaussian trade-off curve: Φ(Φ^-1(right) - μ) bounds the share of wrong guesses from
        # below.
        least = float(ndtr(ndtri(min(right, 1.0)) - mu))
        if least <= wrong or right + wrong > total / canaries * (1 + _ROUNDING):
            break
        right, wrong = right + i / (total - i) * (least - wrong), least
    return right + wrong > total / canaries * (1 + _ROUNDING)


def _largest(refuted_fn: Callable[[float], bool], limit: float) -> float:
    """Return the largest refuted value, to 1e-9 and rounded down; 0 if no value is refuted."""
    if not refuted_fn(0.0):
        return 0.0
    # Double, then bisect. `low` is always refuted, so the result is never too large.
    low, high = 0.0, 1.0
    while high < limit and refuted_fn(high):
        low, high = high, 2 * high
    while high - low > _ROUNDING:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted_fn(middle) else (low, middle)
    return low
