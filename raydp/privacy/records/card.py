"""The privacy card of a model: its privacy record as a page for people."""

from __future__ import annotations

import math

from raydp.analysis.tables.statements import UNPROVEN, Statement
from raydp.privacy.accounting.documents import AttackSummary, Guarantee
from raydp.privacy.records.card_content import PrivacyCard, ReleasedTogether, Searched
from raydp.privacy.records.cautions import cautions_of_model, stated
from raydp.privacy.records.record import ADJACENCY, INFINITE, PrivacyRecord
from raydp.search_spaces.settings import value_in_words


def card_markdown(card: PrivacyCard) -> str:
    """Return a run's privacy card as Markdown."""
    record = card.record
    certified = "certified" if record.certified else "not certified"
    # The guarantee and its doubts come first: many readers stop there.
    lines = [
        "# Privacy card",
        "",
        f"**{guarantee_sentence(record)}** This guarantee is {certified}.",
        *[f"- Not certified: {reason}." for reason in record.not_certified_because],
        *[
            f"- Warning: {caution}"
            for caution in cautions_of_model(
                epsilon=record.accounted.epsilon,
                delta=record.accounted.delta,
                together=card.released_together,
            )
        ],
        "",
        # The facts, then the guarantee at other δ and against attackers.
        "| | |",
        "| --- | --- |",
        *[f"| {name} | {value} |" for name, value in _facts(card)],
        "",
        *_profile(card.guarantee),
        *_attack(card.guarantee["attack"], record.procedure.observer),
        *_assumed(record),
        # A card without its gaps would be read as a promise that it does not make.
        "## Not covered",
        "",
        *[f"- {item}" for item in record.not_covered],
        "",
    ]
    return "\n".join(lines)


def remarks(record: PrivacyRecord) -> list[str]:
    """Return what a table's ε and σ need beside them: why ε is infinite, the method's remarks.

    Returns:
        An empty list for a run whose every step is the Gaussian mechanism with this σ.
    """
    lines = []
    # Every reason but the infinite ε itself, which the sentence has said.
    if math.isinf(record.accounted.epsilon):
        lines.append(guarantee_sentence(record))
        reasons = [reason for reason in record.not_certified_because if reason != INFINITE]
        # The sentence has also said that a stated ε is not certified.
        said = "" if record.stated is None else f"{UNPROVEN[record.stated.column]}: "
        lines += [f"Not certified: {reason.removeprefix(said)}." for reason in reasons]
    if mechanism := record.procedure.description:
        lines.append(f"σ is the accounted noise multiplier of: {mechanism}")
    return [*lines, *([] if record.part is None else record.part.remarks(record.unit))]


def guarantee_sentence(record: PrivacyRecord) -> str:
    """Return a run's guarantee as a sentence, with its ε and δ or why there is no guarantee."""
    accounted = record.accounted
    return epsilon_sentence(accounted.epsilon, accounted.delta, record.unit, record.stated)


def epsilon_sentence(epsilon: float, delta: float, unit: str, said: Statement | None) -> str:
    """Return a guarantee as a sentence. If ε is infinite, it says why, and uses no unit.

    Args:
        said: ε that the method states without proof; None if it states nothing.
    """
    if said is not None:
        return (
            f"No privacy guarantee is known: ε is infinite. ({stated(said.epsilon)}, "
            f"{delta:.3g}) is {said.level}, and nothing proves it: {UNPROVEN[said.column]}."
        )
    if math.isinf(epsilon):
        return "Trained without a privacy guarantee: nothing bounds what one record does, so ε is infinite, whatever δ is."
    return f"This model is ({stated(epsilon)}, {delta:.3g})-differentially private for one {unit} added or removed."


def _facts(card: PrivacyCard) -> list[tuple[str, str]]:
    """Return the rows of the card's table."""
    record, mechanism, procedure = card.record, card.record.mechanism, card.record.procedure
    # The mechanism that every run has.
    rows = [
        ("adjacency", ADJACENCY),
        ("privacy unit", record.unit),
        ("sampler", str(procedure.sampler)),
        ("accountant", f"{record.accounted.accountant} ({record.accounted.accountant_version})"),
        ("noise multiplier σ", figure(mechanism.noise_multiplier)),
        ("sampling rate q", figure(mechanism.sample_rate)),
        ("steps T", figure(mechanism.num_steps)),
        ("clipping norm c", figure(mechanism.max_grad_norm)),
        ("clipping", mechanism.clipping or "–"),
        ("divisor", procedure.divisor),
        ("randomness", record.seed_policy),
        ("tuning", record.tuning),
    ]
    # Parts that only some methods and sweeps have.
    if procedure.released_weights is not None:
        released = procedure.released_weights.to_json()
        rows += [(name.replace("_", " "), figure(value)) for name, value in released.items()]
    if procedure.description:
        rows.append(("mechanism", procedure.description))
    if record.part is not None:
        rows += record.part.rows()
    if card.searched is not None:
        rows += _searched(card.searched)
    if record.choice is not None:
        rows.append(("chosen as", record.choice.in_words()))
    if ledger := card.ledger:
        rows.append(
            (
                "noisy steps executed",
                f"{ledger['executions']} for {ledger['noisy_steps']} steps; {ledger['note']}",
            )
        )
    if card.released_together is not None:
        rows.append(("released with it", _together(card.released_together)))
    return rows


def _together(together: ReleasedTogether) -> str:
    """Return what all released models cost together, for one cell."""
    remarks = [together["reason"]] if together.get("reason") else []
    remarks += [together["note"]] if together.get("note") else []
    return (
        f"{_models(together['models'])} of one sweep: ({bound(together['epsilon'])}, "
        f"{together['delta']:.3g}) for all that was released together"
    ) + "".join(f" ({remark})" for remark in remarks)


def _searched(tuned: Searched) -> list[tuple[str, str]]:
    """Return the rows about tuning: what was searched, how it is chosen, and earlier tuning."""
    rows = [("searched", "nothing: one configuration")]
    # One configuration is no choice, even if the sweep named hyperparameters.
    if tuned["configurations"] > 1:
        searched = tuned["hyperparameters"].items()
        values = "; ".join(
            f"{name}: {', '.join(map(value_in_words, tried))}" for name, tried in searched
        )
        on = " and ".join(tuned["chosen_on"])
        rows = [("searched", f"{tuned['configurations']} configurations of {values}")]
        rows.append(
            (
                "one is chosen by",
                f"{tuned['rule']}, on {on}; what the choice tells of them is not in ε",
            )
        )
    return [*rows, ("may have been tuned before", ", ".join(tuned["elsewhere"]))]


def _models(count: int) -> str:
    return "1 model" if count == 1 else f"{count} models"


def _assumed(record: PrivacyRecord) -> list[str]:
    """Return the further assumptions of a guarantee that covers a choice."""
    if record.choice is None:
        return []
    return ["## Assumed", "", *[f"- {item}" for item in record.choice.assumed], ""]


def _profile(guarantee: Guarantee) -> list[str]:
    rows = [f"| {row['delta']:.0e} | {bound(row['epsilon'])} |" for row in guarantee["profile"]]
    mu = guarantee["gdp_mu"]
    gaussian = (
        f"The whole profile lies below that of a Gaussian mechanism with μ = {stated(mu)} (δ ≥ "
        "1e-10)."
        if mu is not None
        else f"No single μ stands for the whole profile: {guarantee['gdp_mu_reason']}."
    )
    return ["## ε at other δ", "", "| δ | ε |", "| --- | --- |", *rows, "", gaussian, ""]


def _attack(attack: AttackSummary, observer: str) -> list[str]:
    """Return the section about attackers, as lines of Markdown."""
    if "reason" in attack:
        return ["## What an attacker can reach", "", f"Not known: {attack['reason']}", ""]
    rows = [
        f"| {row['false_positive_rate']:g} | {stated(row['bound'])} |"
        for row in attack["true_positive_rates"]
    ]
    return [
        "## What an attacker can reach",
        "",
        "Whoever wants to know whether one record was in the training data, knows all others and "
        f"{observer}:",
        "",
        "| false positive rate | true positive rate at most |",
        "| --- | --- |",
        *rows,
        "",
        f"The advantage (true minus false positive rate) is at most {stated(attack['advantage'])}.",
        "",
    ]


def bound(epsilon: float | str | None) -> str:
    """Return an ε for a cell, rounded up."""
    return (
        stated(epsilon)
        if isinstance(epsilon, float | int) and math.isfinite(epsilon)
        else figure(epsilon)
    )


def figure(value: float | str | None) -> str:
    """Return a figure for a cell."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return "∞" if value == "inf" else value
    return "∞" if math.isinf(value) else f"{value:.6g}"
