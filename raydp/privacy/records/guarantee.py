"""All that a run's guarantee says: ε at several δ, one μ where there is one, and what an attacker can reach."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from raydp.plugins.registries import resolve
from raydp.privacy.accounting.accountants import Accountant, AccountantError
from raydp.privacy.accounting.attack import attack_bounds
from raydp.privacy.accounting.cache import SolutionCache
from raydp.privacy.accounting.events import Event, NonPrivate, PoissonGaussian
from raydp.privacy.accounting.profile import DELTAS, dominating_mu
from raydp.privacy.records.record import composed_epsilon

# Part of the cache's key: raise it whenever a change here can change a figure.
_ALGORITHM_VERSION = 2


def guarantee(event: Event, accountant_name: str, *, cache_dir: Path | str | None = None) -> dict[str, Any]:
    """The guarantee of one run, as data.

    Args:
        event: what the run releases.
        accountant_name: registry name, for the epsilons; μ and the attacker's bounds always come from 'pld', the only
            one with a curve.
        cache_dir: folder of guarantees computed before; None to always compute.

    Returns:
        "accountant"; "profile": a list of {"delta", "epsilon"} or, where the accountant has no answer, {"delta",
        "epsilon": None, "reason"}; "gdp_mu" and "gdp_mu_reason"; "attack": see `attack_summary`. Infinity is a float.
    """
    accountant: Accountant = resolve("accountants", accountant_name, field="accountant")()
    if isinstance(event, NonPrivate) or cache_dir is None:
        return _computed(event, accountant)
    problem = {"guarantee": _ALGORITHM_VERSION, **_problem(event, accountant, DELTAS)}
    cache = SolutionCache(cache_dir)
    found = cache.load(problem)
    if found is None:
        found = _computed(event, accountant)
        cache.save(problem, found)
    return found


def composed(events: Sequence[Event], delta: float, accountant_name: str) -> dict[str, Any]:
    """What several releases cost together: "epsilon", "delta", "accountant"; epsilon None with a "reason" where the
    accountant has no answer. The conditions of `composed_epsilon` apply."""
    answer: dict[str, Any] = {"epsilon": None, "delta": delta, "accountant": accountant_name}
    try:
        return {**answer, "epsilon": composed_epsilon(events, delta, accountant_name)}
    except AccountantError as error:
        return {**answer, "reason": str(error)}


def attack_summary(event: Event) -> dict[str, Any]:
    """The bounds of `attack_bounds` as data: "accountant", "advantage", "true_positive_rates": a list of
    {"false_positive_rate", "bound"}; or {"accountant", "reason"} where the accountant has no answer."""
    try:
        bounds = attack_bounds(event)
    except AccountantError as error:
        return {"accountant": "pld", "reason": str(error)}
    pairs = zip(bounds.false_positive_rates, bounds.true_positive_rates, strict=True)
    return {
        "accountant": "pld",
        "advantage": bounds.advantage,
        "true_positive_rates": [{"false_positive_rate": rate, "bound": power} for rate, power in pairs],
    }


def profile_rows(
    event: Event, deltas: Sequence[float], accountant: Accountant, *, cache_dir: Path | str | None = None
) -> list[dict[str, Any]]:
    """ε at each δ, each with a reason where the accountant has no answer.

    Args:
        cache_dir: folder of profiles computed before; None to always compute.
    """
    if isinstance(event, NonPrivate) or cache_dir is None:
        return _profile_rows(event, deltas, accountant)
    problem = {"profile": _ALGORITHM_VERSION, **_problem(event, accountant, deltas)}
    cache = SolutionCache(cache_dir)
    found = cache.load(problem)
    if found is None:
        found = {"rows": _profile_rows(event, deltas, accountant)}
        cache.save(problem, found)
    rows: list[dict[str, Any]] = found["rows"]
    return rows


def _profile_rows(event: Event, deltas: Sequence[float], accountant: Accountant) -> list[dict[str, Any]]:
    with suppress(AccountantError):  # one composition for all; one by one only to tell which have no answer
        epsilons = accountant.epsilons(event, deltas)
        return [{"delta": delta, "epsilon": epsilon} for delta, epsilon in zip(deltas, epsilons, strict=True)]
    rows: list[dict[str, Any]] = []
    for delta in deltas:
        try:
            rows.append({"delta": delta, "epsilon": accountant.epsilon(event, delta)})
        except AccountantError as error:
            rows.append({"delta": delta, "epsilon": None, "reason": str(error)})
    return rows


def _problem(event: PoissonGaussian, accountant: Accountant, deltas: Sequence[float]) -> dict[str, Any]:
    """What decides ε at each δ, as the key of a cache."""
    return {
        "accountant_version": accountant.version,
        "accountant": accountant.name,
        "settings": accountant.settings,
        "sample_rate": event.sample_rate,
        "noise_multiplier": event.noise_multiplier,
        "num_steps": event.num_steps,
        "deltas": list(deltas),
    }


def _computed(event: Event, accountant: Accountant) -> dict[str, Any]:
    mu, reason = dominating_mu(event)
    return {
        "accountant": accountant.name,
        "profile": profile_rows(event, DELTAS, accountant),
        "gdp_mu": mu,
        "gdp_mu_reason": reason,
        "attack": attack_summary(event),
    }
