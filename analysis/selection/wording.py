"""A decision in words."""

from __future__ import annotations

from raydp.analysis.selection.by_threshold import ThresholdChange
from raydp.analysis.selection.decision import Alternative, Decision, chance
from raydp.analysis.selection.default import DEFAULT_RULE, WITHOUT_SCORES
from raydp.analysis.selection.selected import Selection
from raydp.search_spaces.configuration import Configuration

NOT_MEASURED = (
    "No score was measured: the rule looked at hyperparameters and utility alone. How much the "
    "model leaks, and how probable it is that another leaks less, is not known."
)
_LARGEST_SHARE = 10.0
"""A larger share of the lowest score is not shown as a percentage."""


def in_words(selection: Selection) -> list[str]:
    """Say in sentences how sure a selection is, what it may cost and what else could be chosen.

    They follow a line that names the selected configuration. The list is empty if there is no
    decision though there are scores.
    """
    decision = selection.decision
    if selection.score is None:
        return [NOT_MEASURED, *_changes(selection)]
    if decision is None:
        return []
    # How sure the choice is comes first: it tells what the other figures are worth.
    first = _alone(decision) if decision.pool_size == 1 else _state(decision)
    sentences = [first, *_equivalents(decision, selection.rule)]
    # The first sentence may have given the reason already.
    if (
        decision.reason is not None
        and decision.state != "only one"
        and decision.reason not in first
    ):
        sentences.append(f"{capitalised(decision.reason)}.")
    if decision.reason is None or decision.pool_size == 1:
        sentences += _estimate(selection, decision)
    # The figures beside the decision: other scores, utility, alternatives.
    further = [
        f"{name} {score:.4g}"
        for name, score in selection.scores.items()
        if name != selection.score_name
    ]
    if further:
        sentences.append(f"Its other scores: {', '.join(further)}.")
    if decision.utility_probability is not None:
        kept = chance(decision.utility_probability)
        sentences.append(f"Its utility keeps to the threshold with a probability of {kept}.")
    if decision.alternatives:
        others = "; ".join(_alternative(each) for each in decision.alternatives)
        sentences.append(f"What else may have the lowest score: {others}.")
    return [*sentences, *_changes(selection)]


def _changes(selection: Selection) -> list[str]:
    """Say which thresholds would change the choice."""
    if not selection.changes:
        return []
    return [f"What would change the choice: {'; '.join(map(_change, selection.changes))}."]


def _alone(decision: Decision) -> str:
    """Say why no other configuration was compared."""
    if decision.estimate is not None and decision.state == "undecided":
        return f"Undecided: {decision.reason}. This one is the most likely to."
    if decision.utility_probability is None or decision.utility_probability < decision.confidence:
        return "Only one configuration passes the constraints: no scores were compared."
    return (
        "Only one configuration is sure to pass the threshold, with a probability of at least "
        f"{chance(decision.confidence)}: no scores were compared."
    )


def _state(decision: Decision) -> str:
    """Say how probable the selected configuration is the lowest, and what it may cost."""
    if decision.probability is None or decision.probability_within is None:
        return f"Undecided: it is not known which of the {decision.pool_size} that may be selected has the lowest score."
    lowest = f"it has the lowest score of the {decision.pool_size} that may be selected with a probability of"
    # The scores speak against the choice, which "undecided" would hide.
    if decision.probability_within < 1 - decision.confidence:
        start = "Not the lowest:"
    elif decision.state == "equivalent":
        start = (
            f"Equivalent to the best: its score is within {100 * decision.tolerance:g} % of the "
            f"lowest with a probability of {chance(decision.probability_within)};"
        )
    else:
        start = f"{capitalised(decision.state)}:"
    return f"{start} {lowest} {chance(decision.probability)}.{_regret(decision)}"


def _regret(decision: Decision) -> str:
    """Say what a choice that is not decided may cost, after a blank; "" beside a decided one."""
    # Beside the probability of a decided choice, an expected excess reads as a contradiction.
    if decision.state == "decided":
        return ""
    if not decision.expected_regret:
        return " It is expected to leak no more than the lowest does."
    relative = decision.relative_regret
    share = ""
    if relative is not None and relative <= _LARGEST_SHARE:
        share = f" ({100 * relative:.0f} %)" if relative >= 0.1 else f" ({100 * relative:.2g} %)"
    more = f"{decision.expected_regret:.3g}{share}"
    return f" As far as the scores leave it open, it leaks {more} more than the lowest on average."


def _equivalents(decision: Decision, rule: str) -> list[str]:
    """Say why this one of equivalent configurations was selected, or which others are close."""
    others = decision.equivalents
    if not others:
        return []
    close = f"within {100 * decision.tolerance:g} % of the lowest with a probability of at least"
    if decision.state == "decided" or rule != DEFAULT_RULE:
        first = (
            f"{Configuration.from_json(others[0])}, {_loss_in_words(others[0]['loss_difference'])}"
        )
        more = f", and {len(others) - 1} more" if len(others) > 1 else ""
        return [f"Also {close} {chance(decision.confidence)}: {first}{more}."]
    useful = others[0]["loss_difference"]
    reason = "has the lowest utility loss"
    if useful < 0:
        reason = (
            "costs the least to train of those whose utility loss is within one standard error of "
            f"the lowest, which is {-useful:.3g} less, of {Configuration.from_json(others[0])}"
        )
    return [f"Of {len(others) + 1} that are {close} {chance(decision.confidence)}, it {reason}."]


def _estimate(selection: Selection, decision: Decision) -> list[str]:
    """Return the expected score, its interval and the errors left out; nothing if unknown."""
    if decision.interval is None:
        return []
    low, high = decision.interval
    # Three digits, unless rounding would push the estimate out of its own interval.
    digits = (
        3 if float(f"{low:.3g}") <= float(f"{decision.estimate:.4g}") <= float(f"{high:.3g}") else 4
    )
    # A rule that ignores scores does not bias the score of what it selects.
    chosen = decision.pool_size > 1 and selection.rule not in WITHOUT_SCORES
    levels = () if selection.contenders is None else selection.contenders.levels
    alone = (
        " over seeds alone, without the choice of secrets or examples"
        if levels == ("seeds",)
        else ""
    )
    corrected = ", corrected for having been selected" if chosen else ""
    return [
        f"Its expected score is {decision.estimate:.4g}{corrected}; "
        f"{100 * decision.confidence:g} % interval {low:.{digits}g} to {high:.{digits}g}{alone}."
    ]


def _alternative(other: Alternative) -> str:
    return (
        f"{Configuration.from_json(other)} with {chance(other['probability'])}, expected score "
        f"{other['score']:.4g}, {_loss_in_words(other['loss_difference'])}"
    )


def _loss_in_words(loss_difference: float) -> str:
    """Return a difference in utility loss as text."""
    if loss_difference == 0:
        return "equal loss"
    return f"{abs(loss_difference):.3g} {'more' if loss_difference > 0 else 'less'} loss"


def _change(other: ThresholdChange) -> str:
    score = "" if other.score is None else f" and score {other.score:.4g}"
    return (
        f"at a utility threshold of {other.text} the rule selects {other.configuration}, with "
        f"utility loss {other.utility_loss:.4f}{score}"
    )


def capitalised(text: str) -> str:
    """Return a text with a capital letter first."""
    return text[:1].upper() + text[1:]
