"""The privacy card of a model: its privacy record as a page for people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from raydp.privacy.mechanisms.claimed import CLAIM
from raydp.privacy.mechanisms.reference import DATA_SETS
from raydp.privacy.records.record import INFINITE


def card_markdown(record: Mapping[str, Any]) -> str:
    """Return a run's privacy record as Markdown.

    Args:
        record: the result of `privacy_record`, with "searched", "ledger" and "released_together" if known.
    """
    certified = "certified" if record["certified"] else "not certified"
    lines = [
        "# Privacy card",
        "",
        f"**{guarantee_sentence(record)}** This guarantee is {certified}.",
        *[f"- Not certified: {reason}." for reason in record["not_certified_because"]],
        "",
        "| | |",
        "| --- | --- |",
        *[f"| {name} | {value} |" for name, value in _facts(record)],
        "",
        *_profile(record["guarantee"]),
        *_attack(record["guarantee"]["attack"], record.get("observer", "sees every step")),
        *_assumed(record.get("private_selection")),
        "## Not covered",
        "",
        *[f"- {item}" for item in record["not_covered"]],
        "",
    ]
    return "\n".join(lines)


def remarks(record: Mapping[str, Any]) -> list[str]:
    """Return remarks that the ε and σ of a table need: a missing ε, the data sets that ε is for, the real mechanism.

    Args:
        record: the result of `privacy_record`.

    Returns:
        An empty list for a run whose every step is the Gaussian mechanism with this σ.
    """
    lines = []
    if record["epsilon"] == "inf":
        lines.append(guarantee_sentence(record))
        reasons = [reason for reason in record["not_certified_because"] if reason != INFINITE]
        lines += [f"Not certified: {reason.removeprefix(f'{CLAIM}: ')}." for reason in reasons]
    if mechanism := record.get("mechanism"):
        lines.append(f"σ is the accounted noise multiplier of: {mechanism}")
    if "epsilon_is" in (sets := record.get("data_sets", {})):
        lines.append(f"ε is {sets['epsilon_is']}, of a {record['unit']} of the training and of the reference data.")
    return lines


def guarantee_sentence(record: Mapping[str, Any]) -> str:
    """Return a run's guarantee as a sentence, with its ε and δ or why there is no guarantee."""
    if claimed := record.get("claimed_epsilon"):
        return (
            "No privacy guarantee is known: ε is infinite. The method claims "
            f"({claimed:.4g}, {record['delta']:.3g}), and nothing proves it: claimed ε, not certified."
        )
    if record["epsilon"] == "inf":
        return (
            "Trained without a privacy guarantee: nothing bounds what one record does, so ε is infinite, whatever δ is."
        )
    return (
        f"This model is ({record['epsilon']:.4g}, {record['delta']:.3g})-differentially private for one "
        f"{record['unit']} added or removed."
    )


def _facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the card's table."""
    rows = [
        ("adjacency", record["adjacency"]),
        ("privacy unit", record["unit"]),
        ("sampler", record["sampler"]),
        ("accountant", f"{record['accountant']} ({record['accountant_version']})"),
        ("noise multiplier σ", _figure(record["noise_multiplier"])),
        ("sampling rate q", _figure(record["sample_rate"])),
        ("steps T", _figure(record["num_steps"])),
        ("clipping norm c", _figure(record["max_grad_norm"])),
        ("clipping", record["clipping"] or "–"),
        ("divisor", record["divisor"]),
        ("randomness", record["seed_policy"]),
        ("tuning", record["tuning"]),
    ]
    if released := record.get("released_weights"):
        rows += [(name.replace("_", " "), _figure(value)) for name, value in released.items()]
    if mechanism := record.get("mechanism"):
        rows.append(("mechanism", mechanism))
    if sets := record.get("data_sets"):
        rows += _data_sets(sets)
    if tuned := record.get("searched"):
        rows += _searched(tuned)
    if selection := record.get("private_selection"):
        rows.append(("chosen as", _selection(selection)))
    if ledger := record.get("ledger"):
        rows.append(
            ("noisy steps executed", f"{ledger['executions']} for {ledger['noisy_steps']} steps; {ledger['note']}")
        )
    if together := record.get("released_together"):
        rows.append(
            (
                "released with it",
                f"{_models(together['models'])} of one sweep: ({_figure(together['epsilon'])}, "
                f"{together['delta']:.3g}) for all that was released together"
                + "".join(f" ({together[name]})" for name in ("reason", "note") if together.get(name)),
            )
        )
    return rows


def _data_sets(sets: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows about training and reference data, with the ε of each."""
    rows = [
        ("weight of the reference data w", _figure(sets["reference_weight"])),
        ("training and reference data", f"{sets['num_training']} and {sets['num_reference']}"),
        ("effective number of examples", _figure(sets["effective_examples"])),
        ("an example of the training data moves an update", f"{_figure(sets['relative_privacy'])} times as far as one "
         "of the reference data"),
    ]  # fmt: skip
    for name in DATA_SETS:
        if own := sets.get(name):
            reason = f" ({own['reason']})" if "reason" in own else ""
            rows.append((f"ε of the {name} data", _figure(own["epsilon"]) + reason))
    return rows


def _searched(tuned: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows about tuning: what was searched, how one configuration is chosen, and possible earlier tuning."""
    rows = [("searched", "nothing: one configuration")]
    if tuned["configurations"] > 1:
        searched = tuned["hyperparameters"].items()
        values = "; ".join(f"{name}: {', '.join(f'{value:g}' for value in tried)}" for name, tried in searched)
        on = " and ".join(tuned["chosen_on"])
        rows = [("searched", f"{tuned['configurations']} configurations of {values}")]
        rows.append(("one is chosen by", f"{tuned['rule']}, on {on}; what the choice tells of them is not in ε"))
    return [*rows, ("may have been tuned before", ", ".join(tuned["elsewhere"]))]


def _models(count: int) -> str:
    return "1 model" if count == 1 else f"{count} models"


def _selection(selection: Mapping[str, Any]) -> str:
    """Return how the model was chosen, for one cell."""
    kind = str(selection["distribution"]).replace("_", " ")
    eta = "" if selection["eta"] is None else f", η {selection['eta']:g}"
    return (
        f"the best, by utility on public data, of a random number of runs ({kind}, mean {selection['mean']:g}{eta}), "
        f"each of one of {selection['configurations']} configurations drawn at random; alone it would have "
        f"ε = {selection['single_run_epsilon']:.4g}"
    )


def _assumed(selection: Mapping[str, Any] | None) -> list[str]:
    """Return the further assumptions of a private selection."""
    if selection is None:
        return []
    return ["## Assumed", "", *[f"- {item}" for item in selection["assumed"]], ""]


def _profile(guarantee: Mapping[str, Any]) -> list[str]:
    rows = [f"| {row['delta']:.0e} | {_figure(row['epsilon'])} |" for row in guarantee["profile"]]
    mu = guarantee["gdp_mu"]
    gaussian = (
        f"The whole profile lies below that of a Gaussian mechanism with μ = {mu:.4g} (δ ≥ 1e-10)."
        if mu is not None
        else f"No single μ stands for the whole profile: {guarantee['gdp_mu_reason']}."
    )
    return ["## ε at other δ", "", "| δ | ε |", "| --- | --- |", *rows, "", gaussian, ""]


def _attack(attack: Mapping[str, Any], observer: str) -> list[str]:
    """Return the section about attackers, as lines of Markdown."""
    if "reason" in attack:
        return ["## What an attacker can reach", "", f"Not known: {attack['reason']}", ""]
    rows = [f"| {row['false_positive_rate']:g} | {row['bound']:.4g} |" for row in attack["true_positive_rates"]]
    return [
        "## What an attacker can reach",
        "",
        f"Whoever wants to know whether one record was in the training data, knows all others and {observer}:",
        "",
        "| false positive rate | true positive rate at most |",
        "| --- | --- |",
        *rows,
        "",
        f"The advantage (true minus false positive rate) is at most {attack['advantage']:.4g}.",
        "",
    ]


def _figure(value: float | str | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return "∞" if value == "inf" else value
    return "∞" if math.isinf(value) else f"{value:.6g}"
