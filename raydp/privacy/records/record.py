"""The privacy record of a run, and the joint cost of several released runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from raydp.plugins.registries import resolve
from raydp.privacy.accounting.base import Accountant
from raydp.privacy.accounting.events import Event, NonPrivate, check_delta

NOT_COVERED: tuple[str, ...] = (
    "the other runs of the sweep: epsilon is one model's; what several releases cost is their composed epsilon",
    "utility, scores, step metrics and reports, which are computed on private data",
    "identities of runs and data (run_id, task_hash), hashes of the data: who knows all other records can test for one",
    "rounding: gradients are summed in single precision, noise is a rounded Gaussian of double precision",
    "how long steps take, for those who can time them",
    "the choice of this configuration among others, where it used private data",
    "data-dependent preprocessing, such as curation, deduplication or a tokeniser trained on the data",
    "the number of examples n itself",
)
NOT_COVERED_BY_SELECTION: tuple[str, ...] = (
    "the other runs of the sweep: nothing of them may be released, not even how many there were; the sweep's folder "
    "holds it and is as private as the data",
    "scores, step metrics and reports in the sweep's folder, which are computed on private data",
    *(item for item in NOT_COVERED[2:] if not item.startswith("the choice of this configuration")),
)
"""Items that ε does not cover if `private_selection` covers the choice of the run."""

INFINITE = "epsilon is infinite"
"""The reason why a record with an infinite ε is not certified."""

SEED_POLICY: dict[str, str] = {
    "secret": "sampling masks and noise come from a secret 256-bit sweep key; no two runs share noise; the public seed "
    "only labels a repetition",
    "test": "sampling masks and noise come from the fixed test key, which is public",
    "none": "no noise is drawn; the public seed only labels a repetition",
}


def privacy_record(
    *,
    event: Event,
    epsilon: float,
    delta: float,
    target_epsilon: float | None,
    accountant: str,
    accountant_version: str,
    unit: str,
    max_grad_norm: float | None,
    noise_key: Literal["secret", "test"],
    clipping: str | None = None,
    caveats: Sequence[str] = (),
    private_selection: Mapping[str, Any] | None = None,
    sampler: str | None = None,
    divisor: str = "expected batch size",
    released_weights: Mapping[str, Any] | None = None,
    claimed_epsilon: float | None = None,
    mechanism: str | None = None,
    observer: str = "sees every step",
    also_not_covered: Sequence[str] = (),
    data_sets: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the privacy record of one run, ready for strict JSON (infinity is the string "inf").

    Args:
        event: what the run released.
        epsilon: the accountant's bound for the event at delta; inf for NonPrivate.
        delta: in (0, 1).
        target_epsilon: the requested ε; None if none was requested.
        accountant: registry name.
        accountant_version: library and version.
        unit: the privacy unit, in words: "example", "e-mail", ...
        max_grad_norm: clipping norm c; None if nothing is clipped.
        noise_key: source of masks and noise: the sweep's secret key or the public test key.
        clipping: how gradients are scaled to max_grad_norm: "flat", "automatic", or "adaptive", which starts from it.
        caveats: further reasons why the guarantee does not hold as stated (a sampler that shuffles, a claim without
            proof). Each makes the record uncertified.
        private_selection: for the best of a random number of runs, where epsilon is that of the whole choice:
            "distribution", "mean" and "eta" of the number, "single_run_epsilon", "configurations" and "assumed".
        sampler: how batches are drawn; by default as the event says.
        divisor: divisor of the sums of gradients.
        released_weights: if noise is added once, to the trained weights: its "noise_std", and the "sensitivity" or
            "claimed_sensitivity".
        claimed_epsilon: ε that the method claims without proof; epsilon is then inf.
        mechanism: what was run, in words, if the event only dominates it.
        observer: what the attacker sees against whom the guarantee holds.
        also_not_covered: further items that epsilon does not cover.
        data_sets: the result of `data_sets_record` if training and reference data have separate weights. epsilon then
            holds for an example of either set.

    Returns:
        A dict of JSON values. "certified" is true only if epsilon is a proven, finite bound for how the run was made.
        Otherwise "not_certified_because" lists the reasons.

    Raises:
        ValueError: epsilon is negative, NaN, above the target, or finite for a run without noise; or there is a
            claimed_epsilon although the run's ε is known.
    """
    check_delta(delta)
    private = not isinstance(event, NonPrivate)
    _check_epsilon(epsilon, target_epsilon, private)
    if claimed_epsilon is not None and private:
        raise ValueError(
            f"claimed_epsilon must be left out of a run with an epsilon, got {claimed_epsilon}. Remove it."
        )
    reasons = list(caveats)
    if math.isinf(epsilon):
        reasons.append(INFINITE)
    if private and noise_key == "test":
        reasons.append("noise comes from the public test key")
    record: dict[str, Any] = {
        "accountant": accountant,
        "accountant_version": accountant_version,
        "adjacency": "add-or-remove-one",
        "unit": unit,
        "sampler": sampler or ("none" if isinstance(event, NonPrivate) else "poisson"),
        "noise_multiplier": 0.0 if isinstance(event, NonPrivate) else event.noise_multiplier,
        "sample_rate": None if isinstance(event, NonPrivate) else event.sample_rate,
        "num_steps": None if isinstance(event, NonPrivate) else event.num_steps,
        "epsilon": _json_number(epsilon),
        "delta": delta,
        "target_epsilon": None if target_epsilon is None else _json_number(target_epsilon),
        "max_grad_norm": max_grad_norm,
        "clipping": clipping,
        "divisor": divisor,
        "seed_policy": SEED_POLICY[noise_key if private or claimed_epsilon is not None else "none"],
        "certified": not reasons,
        "not_certified_because": reasons,
        "tuning": "ignored",
        "not_covered": [*also_not_covered, *NOT_COVERED],
        "observer": observer,
    }
    if claimed_epsilon is not None:
        record["claimed_epsilon"] = claimed_epsilon
    if released_weights is not None:
        record["released_weights"] = dict(released_weights)
    if mechanism is not None:
        record["mechanism"] = mechanism
    if data_sets is not None:
        record["data_sets"] = dict(data_sets)
    if private_selection is not None:
        record |= {
            "tuning": "private_selection",
            "private_selection": dict(private_selection),
            "not_covered": [*also_not_covered, *NOT_COVERED_BY_SELECTION],
        }
    return record


def composed_epsilon(events: Sequence[Event], delta: float, accountant_name: str) -> float:
    """Return an upper bound on ε, at one δ, of releasing the models of several runs on the same records.

    Args:
        events: one per released run; the result is inf if one of them is NonPrivate.
        delta: in (0, 1), for all runs together.
        accountant_name: registry name. The accountant's own composition is used (pld: convolution of loss
            distributions; prv: heterogeneous composition; rdp: divergences add up).

    Guarantee:
        The bound holds under two conditions. Each record takes part in every run, sampled and noised independently of
        the other runs. The runs' events were fixed before any result was seen. (A grid is fixed. A search that reacts
        to scores is not: trials that steered it count even if they are not released.) Gradients may depend on earlier
        releases.

    Raises:
        ValueError: there are no events, delta is not in (0, 1), or the accountant is unknown.
        AccountantError: the accountant cannot handle the events together; the message names the limit.

    Source: Dwork and Roth 2014 (adaptive composition); Doroshenko et al. 2022; Gopi et al. 2021; Mironov 2017.
    """
    accountant: Accountant = resolve("accountants", accountant_name, field="accountant")()
    return accountant.composed_epsilons(events, [delta])[0]


def _check_epsilon(epsilon: float, target_epsilon: float | None, private: bool) -> None:
    """Raise ValueError for figures that would make a record false."""
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be >= 0, got {epsilon}. Take it from the accountant.")
    if not private and math.isfinite(epsilon):
        raise ValueError(f"epsilon must be inf for a run without noise, got {epsilon}. Use math.inf.")
    if target_epsilon is not None and epsilon > target_epsilon:
        raise ValueError(f"epsilon must be <= target_epsilon {target_epsilon}, got {epsilon}. Calibrate the run again.")


def _json_number(value: float) -> float | str:
    """Return the number, or the string "inf"."""
    return "inf" if math.isinf(value) else value
