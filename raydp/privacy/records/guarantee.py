"""The whole guarantee of a run: ε at several δ, one μ if it exists, and bounds on an attacker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from raydp.plugins.registries import resolve
from raydp.privacy.accounting.accountant import Accountant, AccountantError, merged
from raydp.privacy.accounting.attack import attack_bounds
from raydp.privacy.accounting.cache import SolutionCache
from raydp.privacy.accounting.calibration import Calibration
from raydp.privacy.accounting.documents import AttackSummary, ComposedCost, Guarantee, ProfileRow
from raydp.privacy.accounting.events import Event, NonPrivateEvent, PoissonGaussian, check_num_steps
from raydp.privacy.accounting.profile import DELTAS, dominating_mu
from raydp.privacy.records.record import composed_epsilon

# Part of the cache's key: raise the number whenever a change here can change a figure.
_ALGORITHM_VERSION = 2


def guarantee(
    event: Event, accountant_name: str, *, cache_dir: Path | str | None = None
) -> Guarantee:
    """Return the guarantee of one run, as data.

    Args:
        event: what the run releases.
        accountant_name: registry name of the accountant of the epsilons. μ and the attack bounds
            are always from 'pld', the only accountant with a curve.
        cache_dir: folder of computed guarantees; None computes always.
    """
    accountant: Accountant = resolve("accountants", accountant_name, field="accountant")()
    if isinstance(event, NonPrivateEvent) or cache_dir is None:
        return _computed(event, accountant)
    problem = {"guarantee": _ALGORITHM_VERSION, **_problem(event, accountant, DELTAS)}
    cache = SolutionCache(cache_dir)
    if (stored := cache.load(problem)) is not None:
        of_cache: Guarantee = {
            "accountant": stored["accountant"],
            "profile": stored["profile"],
            "gdp_mu": stored["gdp_mu"],
            "gdp_mu_reason": stored["gdp_mu_reason"],
            "attack": stored["attack"],
        }
        return of_cache
    result = _computed(event, accountant)
    cache.save(problem, result)
    return result


def composed(
    events: Sequence[Event],
    delta: float,
    accountant_name: str,
    *,
    cache_dir: Path | str | None = None,
) -> ComposedCost:
    """Return the joint cost of several releases. The conditions of `composed_epsilon` apply.

    Args:
        events: what the releases are.
        delta: δ of all releases together.
        accountant_name: registry name.
        cache_dir: folder of computed costs; None computes always. What identifies a cost is the
            composition, whatever the order of its events, with δ and the accountant's version and
            settings.
    """
    answer: ComposedCost = {"epsilon": None, "delta": delta, "accountant": accountant_name}
    private = [event for event in events if not isinstance(event, NonPrivateEvent)]
    if cache_dir is None or not events or len(private) < len(events):
        return _composed(events, answer)
    accountant: Accountant = resolve("accountants", accountant_name, field="accountant")()
    # Merged events, sorted: the same composition in another order has the same key.
    problem = {
        "composed": _ALGORITHM_VERSION,
        "accountant": accountant.name,
        "accountant_version": accountant.version,
        "settings": accountant.settings,
        "delta": delta,
        "events": [
            [each.sample_rate, each.noise_multiplier, each.num_steps] for each in merged(private)
        ],
    }
    cache = SolutionCache(cache_dir)
    if (stored := cache.load(problem)) is not None:
        return {**answer, "epsilon": stored["epsilon"]}
    result = _composed(events, answer)
    # "No answer" is not stored, because another version of the library may have one.
    if result["epsilon"] is not None and math.isfinite(result["epsilon"]):
        cache.save(problem, {"epsilon": result["epsilon"]})
    return result


def accounted(
    event: PoissonGaussian,
    delta: float,
    accountant_name: str,
    *,
    cache_dir: Path | str | None = None,
) -> Calibration:
    """Return a run whose noise is given, with its ε.

    Args:
        event: the run with its noise multiplier.
        delta, accountant_name, cache_dir: as for `composed`.

    Raises:
        ValueError: there are too many steps, or the accountant is unknown.
        AccountantError: the accountant has no answer.
    """
    check_num_steps(event.num_steps)
    cost = composed([event], delta, accountant_name, cache_dir=cache_dir)
    if not isinstance(cost["epsilon"], float):
        raise AccountantError(cost["reason"])
    accountant: Accountant = resolve("accountants", accountant_name)()
    return Calibration(
        event=event,
        epsilon=cost["epsilon"],
        delta=delta,
        accountant=accountant.name,
        accountant_version=accountant.version,
    )


def _composed(events: Sequence[Event], answer: ComposedCost) -> ComposedCost:
    """Fill in the joint ε, or why the accountant has no answer."""
    try:
        return {
            **answer,
            "epsilon": composed_epsilon(events, answer["delta"], answer["accountant"]),
        }
    except AccountantError as error:
        return {**answer, "reason": str(error)}


def attack_summary(event: Event) -> AttackSummary:
    """Return the bounds of `attack_bounds` as data, or why the accountant has no answer."""
    try:
        bounds = attack_bounds(event)
    except AccountantError as error:
        return {"accountant": "pld", "reason": str(error)}
    pairs = zip(bounds.false_positive_rates, bounds.true_positive_rates, strict=True)
    return {
        "accountant": "pld",
        "advantage": bounds.advantage,
        "true_positive_rates": [
            {"false_positive_rate": rate, "bound": power} for rate, power in pairs
        ],
    }


def profile_rows(
    event: Event,
    deltas: Sequence[float],
    accountant: Accountant,
    *,
    cache_dir: Path | str | None = None,
) -> list[ProfileRow]:
    """Return ε at each δ, or a reason if the accountant has no answer.

    Args:
        cache_dir: folder of computed profiles; None computes always.
    """
    if isinstance(event, NonPrivateEvent) or cache_dir is None:
        return _profile_rows(event, deltas, accountant)
    problem = {"profile": _ALGORITHM_VERSION, **_problem(event, accountant, deltas)}
    cache = SolutionCache(cache_dir)
    stored = cache.load(problem)
    if stored is None:
        rows = _profile_rows(event, deltas, accountant)
        cache.save(problem, {"rows": rows})
        return rows
    of_cache: list[ProfileRow] = stored["rows"]
    return of_cache


def _profile_rows(
    event: Event, deltas: Sequence[float], accountant: Accountant
) -> list[ProfileRow]:
    # Try one composition for all δ; if it fails, find the δ without an answer below.
    with suppress(AccountantError):
        epsilons = accountant.epsilons(event, deltas)
        return [
            {"delta": delta, "epsilon": epsilon}
            for delta, epsilon in zip(deltas, epsilons, strict=True)
        ]
    # The failing δ gets its reason, and the others keep their ε.
    rows: list[ProfileRow] = []
    for delta in deltas:
        try:
            rows.append({"delta": delta, "epsilon": accountant.epsilon(event, delta)})
        except AccountantError as error:
            rows.append({"delta": delta, "epsilon": None, "reason": str(error)})
    return rows


def _problem(
    event: PoissonGaussian, accountant: Accountant, deltas: Sequence[float]
) -> dict[str, object]:
    """Return what decides ε at each δ, as the key of a cache."""
    return {
        "accountant_version": accountant.version,
        "accountant": accountant.name,
        "settings": accountant.settings,
        "sample_rate": event.sample_rate,
        "noise_multiplier": event.noise_multiplier,
        "num_steps": event.num_steps,
        "deltas": list(deltas),
    }


def _computed(event: Event, accountant: Accountant) -> Guarantee:
    mu, reason = dominating_mu(event)
    return {
        "accountant": accountant.name,
        "profile": profile_rows(event, DELTAS, accountant),
        "gdp_mu": mu,
        "gdp_mu_reason": reason,
        "attack": attack_summary(event),
    }
