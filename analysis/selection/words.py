"""A decision in words."""

from __future__ import annotations

from analysis.selection.choice import Selection
from analysis.selection.decision import Alternative, Decision
from search_spaces.configuration import Configuration


def in_words(selection: Selection) -> list[str]:
    """Return sentences that say how sure a selection is, what it may cost and what else could be chosen.

    They follow a line that names the selected configuration. The list is empty if there is no decision.
    """
    decision = selection.decision
    if decision is None:
        return []
    if decision.pool_size == 1:
        first = "It is the only configuration that keeps to the constraints."
    else:
        first = f"{_state(decision)} {_regret(decision)}"
    sentences = [first]
    if decision.reason is not None:
        sentences.append(f"{_capitalised(decision.reason)}.")
    sentences.append(_estimate(decision))
    if decision.utility_probability is not None:
        kept = chance(decision.utility_probability)
        sentences.append(f"Its utility keeps to the threshold with a probability of {kept}.")
    if decision.alternatives:
        others = "; ".join(_alternative(each) for each in decision.alternatives)
        sentences.append(f"What else may have the lowest score: {others}.")
    return sentences


def chance(probability: float) -> str:
    """Return a probability for a reader. Draws never show that it is 0 or 1."""
    if probability > 0.999:
        return "more than 99.9 %"
    if probability < 0.001:
        return "less than 0.1 %"
    return f"{100 * probability:.3g} %"


def _state(decision: Decision) -> str:
    lowest = f"it has the lowest score of {decision.pool_size} configurations with a probability of"
    if decision.state == "decided":
        return f"Decided: {lowest} {chance(decision.probability)}."
    if decision.state == "equivalent":
        return (
            f"Equivalent to the best: its score is within {100 * decision.tolerance:g} % of the lowest with a "
            f"probability of {chance(decision.probability_within)}; {lowest} {chance(decision.probability)}."
        )
    return f"Undecided: {lowest} {chance(decision.probability)}."


def _regret(decision: Decision) -> str:
    share = "" if decision.relative_regret is None else f" ({100 * decision.relative_regret:.2g} %)"
    return f"It is expected to leak {decision.expected_regret:.3g}{share} more than the lowest does."


def _estimate(decision: Decision) -> str:
    low, high = decision.interval
    return (
        f"Its expected score is {decision.estimate:.4g}, corrected for having been selected; "
        f"{100 * decision.confidence:g} % interval {low:.3g} to {high:.3g}."
    )


def _alternative(other: Alternative) -> str:
    loss = other["loss_difference"]
    return (
        f"{Configuration.from_json(other)} with {chance(other['probability'])}, expected score {other['score']:.4g}, "
        f"{abs(loss):.3g} {'more' if loss > 0 else 'less'} loss"
    )


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
