"""Noise for private selection: the release of the best of a random number of runs meets (ε, δ)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from raydp.extensions.private_selection.num_runs import NumRuns
from raydp.extensions.private_selection.selection_profile import smallest_bounded_delta
from raydp.extensions.private_selection.tuning import bounds_at, check_bound, tuned_epsilons
from raydp.plugins.registries import resolve
from raydp.privacy.accounting.accountant import Accountant
from raydp.privacy.accounting.attack import FALSE_POSITIVE_RATES
from raydp.privacy.accounting.cache import SolutionCache
from raydp.privacy.accounting.calibration import Calibration, CalibrationRequest, calibrate_many
from raydp.privacy.accounting.documents import AttackRow, Guarantee
from raydp.privacy.accounting.events import PoissonGaussian, PrivacyTarget
from raydp.privacy.accounting.profile import DELTAS
from raydp.privacy.accounting.root_search import CalibrationError

TOLERANCE = 1e-3
"""Largest relative gap between the tuned ε and the target."""

MAX_FACTOR = 2.0**20
# Part of the cache's key: raise the number whenever a change here, in `tuning` or in the modules of
# the bounds can change a result.
_ALGORITHM_VERSION = 3
_ATTACK_DELTAS = (*(k / 20 for k in range(19, 2, -1)), *(10 ** (-k / 4) for k in range(4, 41)))
"""0.95 to 1e-10: the δ from which the attacker's bounds are computed."""

ASSUMED: tuple[str, ...] = (
    "the utility that the choice was made by is a function of the model and of public data alone",
    "one model is released, and of the other runs nothing: not their number, models, utilities or "
    "scores",
    "nobody outside learns how long the sweep took, which tells of the number of runs",
    "no run failed because of what the private data hold, such as a user too large for the memory "
    "or a score that could not be computed",
)


@dataclass(frozen=True, kw_only=True)
class SelectionCalibration:
    """Calibrated configurations. The best of K runs of them is released.

    Attributes:
        runs: one per request, with its σ and the ε that one run at this σ would have alone.
        epsilon: ε of releasing the best of the runs; at most the target, and at most 0.1 % below.
        factor: factor >= 1 between each σ and the σ of one run alone.
    """

    runs: tuple[Calibration, ...]
    epsilon: float
    factor: float


def calibrate_selection(
    requests: Sequence[CalibrationRequest],
    num_runs: NumRuns,
    accountant_name: str = "rdp",
    *,
    cache_dir: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SelectionCalibration:
    """Return noise multipliers at which releasing the best of K random runs meets the target.

    Configurations are drawn uniformly. Each request is calibrated alone; then one common factor
    raises every σ.

    Args:
        requests: the configurations; all with one target.
        num_runs: the distribution of K.
        accountant_name: "pld" or "rdp": of the single runs and of the choice.
        cache_dir: folder of solved problems; None computes always.
        progress: progress of the calibration of single runs.

    Guarantee:
        `tuned_epsilon(events, num_runs, delta, accountant_name) <= target.epsilon`, evaluated at
        exactly the returned σ.

    Raises:
        ValueError: no bound for a private selection is known by this accountant.
        AccountantError: the accountant cannot handle a run or the distribution.
        CalibrationError: no factor up to 2^20 reaches the target: the mean is too large for such a
            small ε.

    Source: see `tuned_epsilon`.
    """
    # Calibrate each configuration alone, as if it were the only run.
    check_bound(accountant_name)
    (target,) = {request.target for request in requests}
    alone = calibrate_many(requests, accountant_name, cache_dir=cache_dir, progress=progress)
    # Find the common factor that pays for the choice, or take it from the cache.
    store = None if cache_dir is None else SolutionCache(cache_dir)
    problem = _problem(alone, num_runs, target)
    solution = None if store is None else store.load(problem)
    if solution is None:
        factor, epsilon = _factor(alone, num_runs, target, accountant_name)
        solution = {"factor": factor, "epsilon": epsilon}
        if store is not None:
            store.save(problem, solution)
    # The record also states what the released run would cost alone, at the noise that it really
    # has.
    events = _events(alone, solution["factor"])
    accountant: Accountant = resolve("accountants", accountant_name, field="accountant")()
    own = {event: accountant.epsilon(event, target.delta) for event in set(events)}
    runs = [
        replace(a, event=event, epsilon=own[event]) for a, event in zip(alone, events, strict=True)
    ]
    return SelectionCalibration(
        runs=tuple(runs), epsilon=solution["epsilon"], factor=solution["factor"]
    )


def selection_guarantee(
    events: Sequence[PoissonGaussian], num_runs: NumRuns, accountant_name: str = "rdp"
) -> Guarantee:
    """Return the guarantee of the released model, in the form of `guarantee`.

    It states ε at several δ, and attack bounds.

    A δ that is too small for the accountant has no ε but a reason, and no part in the attack
    bounds.

    The attack bounds follow from the (ε, δ) pairs of `tuned_epsilons` alone. So they are looser
    than the bounds of a single run, whose whole profile is known. At false positive rate α the true
    positive rate is at most min(e^ε α + δ, 1 - e^-ε (1 - δ - α)), and the advantage is at most (e^ε
    - 1 + 2δ) / (e^ε + 1).

    Source: Kairouz, Oh and Viswanath 2015 (Theorem 2.1 and Remark 2.1).
    """
    # ε at each δ that the accountant can answer.
    smallest = smallest_bounded_delta(events, num_runs) if accountant_name == "pld" else 0.0
    deltas = [delta for delta in dict.fromkeys((*_ATTACK_DELTAS, *DELTAS)) if delta >= smallest]
    known = dict(
        zip(deltas, tuned_epsilons(events, num_runs, deltas, accountant_name), strict=True)
    )
    pairs = [(epsilon, delta) for delta, epsilon in known.items()]
    reason = f"delta must be >= {smallest:.1e} for a private selection by 'pld': below it double precision decides"
    # Each (ε, δ) bounds an attacker (Kairouz et al. 2015); the tightest of them counts.
    rates: list[AttackRow] = [
        {"false_positive_rate": a, "bound": min(_power(a, *pair) for pair in pairs)}
        for a in FALSE_POSITIVE_RATES
    ]
    # No μ: the choice has no known curve that a Gaussian mechanism would dominate.
    return {
        "accountant": accountant_name,
        "profile": [
            {"delta": delta, "epsilon": known[delta]}
            if delta in known
            else {"delta": delta, "epsilon": None, "reason": reason}
            for delta in DELTAS
        ],
        "gdp_mu": None,
        "gdp_mu_reason": "the best of a random number of runs has bounds at single δ only",
        "attack": {
            "accountant": accountant_name,
            "advantage": min(1 - 2 * (1 - d) / (math.exp(min(e, 700.0)) + 1) for e, d in pairs),
            "true_positive_rates": rates,
        },
    }


def _power(rate: float, epsilon: float, delta: float) -> float:
    """Return the largest true positive rate at a false positive rate under (ε, δ)."""
    # Above ε = 700 exp overflows, and the bound is 1 anyway.
    grow = math.exp(min(epsilon, 700.0))
    return min(1.0, grow * rate + delta, 1 - (1 - delta - rate) / grow)


def _events(alone: Sequence[Calibration], factor: float) -> list[PoissonGaussian]:
    """Return the events of single runs, with the factor times their noise."""
    return [solved.event.with_noise(solved.noise_multiplier * factor) for solved in alone]


def _factor(
    alone: Sequence[Calibration], num_runs: NumRuns, target: PrivacyTarget, accountant_name: str
) -> tuple[float, float]:
    """Return the factor and the tuned ε there.

    The search shrinks a bracket whose upper end meets the target.

    The next factor is where a line through the ends of the bracket, in logarithms, meets the target
    less half of the tolerance. It is the bracket's middle if the line has moved the same end twice,
    or an end has no finite logarithm.
    """

    def tuned(factor: float) -> float:
        return bounds_at(_events(alone, factor), num_runs, [target.delta], accountant_name)[0]

    # Raise the factor until the upper end meets the target.
    low, high = 1.0, 1.0
    above, moved = math.inf, list[str]()
    while (epsilon := tuned(high)) > target.epsilon:
        above, low, high = epsilon, high, 1.3 * high if high == 1 else 2 * high
        if high > MAX_FACTOR:
            raise CalibrationError(
                f"privacy.num_runs.mean must be smaller for target_epsilon {target.epsilon:g}, got "
                f"{num_runs.mean:g}: no amount of noise reaches it. Lower the mean, or raise the "
                "target."
            )
    # Shrink the bracket by regula falsi in logarithms, with bisection where it stalls. The second
    # condition ends the search if ε leaps over the tolerance.
    while epsilon < (1 - TOLERANCE) * target.epsilon and high / low > 1 + 1e-9:
        share = 0.5
        if epsilon > 0 and above < math.inf and moved[-2:] not in (["low"] * 2, ["high"] * 2):
            share = math.log(above / target.epsilon * (1 + TOLERANCE / 2)) / math.log(
                above / epsilon
            )
        # Never closer than 2 % to an end: a tiny step would not shrink the bracket.
        middle = low * (high / low) ** min(max(share, 0.02), 0.98)
        if (at_middle := tuned(middle)) <= target.epsilon:
            high, epsilon = middle, at_middle
        else:
            low, above = middle, at_middle
        moved.append("high" if high == middle else "low")
    return high, epsilon


def _problem(
    alone: Sequence[Calibration], num_runs: NumRuns, target: PrivacyTarget
) -> dict[str, object]:
    """Return the cache's key."""
    events = [(e.sample_rate, e.noise_multiplier, e.num_steps) for e in _events(alone, 1.0)]
    return {
        "private_selection": _ALGORITHM_VERSION,
        "accountant": alone[0].accountant,
        "accountant_version": alone[0].accountant_version,
        "events": [list(event) for event in sorted(events)],
        "num_runs": {"distribution": type(num_runs).__name__, **asdict(num_runs)},  # type: ignore[call-overload]
        "target_epsilon": target.epsilon,
        "target_delta": target.delta,
    }
