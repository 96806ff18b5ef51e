"""Warnings that a user should read before relying on a selection."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.selection.contenders import Contenders
from raydp.analysis.selection.decision import Decision, chance
from raydp.analysis.selection.default import DEFAULT_RULE
from raydp.analysis.statistics.results import Warned
from raydp.analysis.tables.columns import KEY, SETTINGS
from raydp.analysis.tables.per_secret import PREFIX
from raydp.analysis.tables.points import configurations, other_rows
from raydp.search_spaces.configuration import HYPERPARAMETERS, Configuration

_NAMED = 3
_FEW = 2
"""The largest number of compared configurations that is no choice."""
_POSSIBLE = 0.05
"""Probability from which a configuration may keep to the utility threshold."""
_MOST_PARTS = 1_000_000
"""The largest denominator of a figure that two runs may share by chance."""


def without_guarantee(points: pd.DataFrame, selected: pd.Series) -> list[Warned]:
    """Warn if the selected models have no finite ε."""
    if "epsilon" not in points:
        return []
    own = np.all([points[name] == selected[name] for name in KEY], axis=0)
    # One infinite ε among the seeds is enough.
    if not np.isinf(points.loc[own, "epsilon"].to_numpy(dtype=np.float64)).any():
        return []
    text = "The selected configuration has no privacy guarantee: its epsilon is infinite."
    return [Warned(text, short="no privacy guarantee: its ε is infinite")]


def worse_than_untrained(means: pd.DataFrame, selected: int) -> list[Warned]:
    """Warn if the selected models are less useful than the untrained one."""
    base = means.get("base_utility_loss")
    loss = means["utility_loss"].iloc[selected]
    if base is None or not loss > base.iloc[selected]:
        return []
    text = f"its loss {loss:.4g} is worse than the untrained model's {base.iloc[selected]:.4g}"
    return [Warned(f"Training did harm: {text}.", short=text)]


def may_pass(means: pd.DataFrame, others: NDArray[np.bool_], certainty: NDArray[np.float64]) -> str:
    """Name the others that may keep to the utility threshold in a sentence; "" if none may.

    Args:
        means: configuration means.
        others: [m] configurations that were not compared, and keep to the other constraints.
        certainty: [m] probability that each configuration keeps to the utility threshold.
    """
    possible = [
        int(k)
        for k in np.argsort(-certainty, kind="stable")
        if others[k] and certainty[k] >= _POSSIBLE
    ]
    if not possible:
        return ""
    listed = configurations(means)
    named = ", ".join(f"{listed[k]} with {chance(float(certainty[k]))}" for k in possible[:_NAMED])
    more = f", and {len(possible) - _NAMED} more" if len(possible) > _NAMED else ""
    return f" Others may keep to it too: {named}{more}."


def few_pass(
    means: pd.DataFrame, compared: NDArray[np.bool_], decision: Decision, doubtful: str
) -> list[Warned]:
    """Warn if one or two of several configurations were compared, and name their ends of the grid.

    Args:
        doubtful: the sentence of `may_pass`.
    """
    members = int(compared.sum())
    # A small table offers no more, and an undecided single pass has a warning of its own.
    if members > _FEW or len(means) <= _FEW or (members == 1 and decision.state == "undecided"):
        return []
    # If a threshold is met only at an end of the grid, the grid should extend there.
    ends = []
    for name in HYPERPARAMETERS:
        values, kept = means[name], means.loc[compared, name]
        for end, word in ((values.max(), "largest"), (values.min(), "smallest")):
            if values.nunique() > 1 and (kept == end).all():
                ends.append(f"{name} {end:g} is the {word}")
    remedy = (
        f"In the grid {' and '.join(ends)}: extend it there"
        if ends
        else "Add configurations near them"
    )
    sure = f"{'is' if members == 1 else 'are'} sure to pass"
    if (
        decision.utility_probability is not None
        and decision.utility_probability < decision.confidence
    ):
        # `improbable` names the others
        sure, doubtful = (f"pass{'es' if members == 1 else ''} by the mean loss", "")
    first = f"Only {members} of {len(means)} configurations {sure}, so the scores had next to nothing to choose from."
    first += f"{doubtful} "
    return [
        Warned(
            f"{first}{remedy}, or relax the threshold.",
            short=f"only {members} of {len(means)} configurations {sure}: relax the threshold",
        )
    ]


def left_out(points: pd.DataFrame) -> list[Warned]:
    """Warn if runs are missing, other than those that no search or seed needed."""
    others = {status: count for status, count in other_rows(points).items() if status != "skipped"}
    if not others:
        return []
    counts = ", ".join(f"{count} {status}" for status, count in sorted(others.items()))
    text = f"The table has rows that are not finished and were left out: {counts}."
    return [Warned(text, short=f"left out, because they are not finished: {counts}")]


def entered_twice(points: pd.DataFrame) -> list[Warned]:
    """Warn if two seeds of a configuration are identical in every figure.

    Short figures may agree by chance, so at least one must have the digits of a double.
    """
    figures = [
        "utility_loss",
        "score",
        *(column for column in points if str(column).startswith(PREFIX)),
    ]
    copies = points[points.duplicated([*KEY, *figures])]
    copies = copies[
        [any(map(_many_digits, row)) for row in copies[figures].itertuples(index=False)]
    ]
    if copies.empty:
        return []
    first = copies.iloc[0]
    alike = np.all([points[name] == first[name] for name in (*KEY, "utility_loss")], axis=0)
    one, two = points.loc[alike, "seed"].iloc[:2]
    same = (
        f"{len(copies)} of {len(points)} runs are identical in every figure to a run with another"
    )
    return [
        Warned(
            f"{same} seed, such as seeds {one} and {two} of {configurations(copies.iloc[[0]])[0]}. "
            "A run that was entered twice hides the error over seeds: remove the copies.",
            short=f"{same} seed: remove the copies",
        )
    ]


def _many_digits(figure: float) -> bool:
    """Return whether a figure has too many digits to recur by chance."""
    if not np.isfinite(figure) or float(f"{figure:.9g}") == figure:
        return False
    exact = Fraction(float(figure))
    # A share of counts has a small denominator. The factor forgives rounding of a double.
    return abs(exact - exact.limit_denominator(_MOST_PARTS)) > abs(exact) * Fraction(1, 2**48)


def at_the_corner(
    means: pd.DataFrame, passed: NDArray[np.bool_], constraints: Constraints
) -> list[Warned]:
    """Warn if the procedure must end at the corner of a grid."""
    values = [means[name].nunique() for name in HYPERPARAMETERS]
    strata = means[SETTINGS].nunique()
    # A full grid: every combination of b, T and η occurs in every stratum.
    if not passed.all() or not strata < len(means) == int(np.prod(values)) * strata:
        return []
    always = "the procedure always selects the smallest b, T and η, whatever their utility"
    given, remedy = "", ""
    if constraints.max_loss is not None:
        given, remedy = f"max_loss {constraints.max_loss:g}", "Lower it"
    elif constraints.min_gain_share is not None:
        given, remedy = f"min_gain_share {constraints.min_gain_share:g}", "Raise it"
    if not given:
        text, remedy = (
            f"On a full grid without a utility threshold, {always}. Set max_loss or min_gain_share.",
            "Set a utility threshold",
        )
    else:
        text = f"{given} excluded nothing: on a full grid {always}. {remedy} to exclude something."
    return [Warned(text, short=f"the rule always selects the smallest b, T and η. {remedy}")]


def improbable(decision: Decision, doubtful: str) -> list[Warned]:
    """Warn if the selected configuration keeps to the threshold with too little probability."""
    probability = decision.utility_probability
    if probability is None or probability >= decision.confidence:
        return []
    return [
        Warned(
            "The selected configuration keeps to the utility threshold with a probability of "
            f"{chance(probability)} only.{doubtful} Add seeds, or relax the threshold.",
            short=f"useful enough with {chance(probability)} only: add seeds, or relax the threshold",
        )
    ]


def not_trusted(
    means: pd.DataFrame,
    passed: NDArray[np.bool_],
    compared: NDArray[np.bool_],
    certainty: NDArray[np.float64],
) -> list[Warned]:
    """Warn if the lowest score was left out because its utility may not keep to the threshold."""
    score = means["score"].to_numpy()
    lowest = int(np.where(passed, score, np.inf).argmin())
    if compared[lowest]:
        return []
    kept, name = chance(float(certainty[lowest])), configurations(means)[lowest]
    return [
        Warned(
            f"The lowest measured score of those within the utility threshold, {score[lowest]:.4g} "
            f"of {name}, was left out: it keeps to the threshold with a probability of {kept} only.",
            short=f"{name} leaks less, and is useful enough with {kept} only",
        )
    ]


def unsupported(compared: Contenders, members: int) -> list[Warned]:
    """Warn if it is not known whether the scores support the choice, or if they contradict it."""
    if compared.verdict == "unknown" and members > 1:
        text = f"How far the data support the choice is not known: {compared.reason}. Run another seed."
        return [Warned(text, short="the errors of the scores are not known. Run another seed")]
    if compared.verdict == "contradicted":
        text = (
            f"The scores speak against the choice: at {100 * compared.confidence:g} % the lowest "
            f"is among {_may_be_lowest(compared)}. See `raydp analyze heuristics`."
        )
        return [Warned(text, short="the scores speak against this choice")]
    return []


def undecided(compared: Contenders, members: int) -> str | None:
    """Warn if several configurations may have the lowest score, the selected one among them."""
    if compared.verdict != "undecided":
        return None
    inside = sum(bool(row["indistinguishable"]) for row in compared.rows)
    which = f"{inside} of {members}" if inside < members else f"the {members}"
    return (
        "The data do not decide which configuration has the lowest score: at "
        f"{100 * compared.confidence:g} % it may be any of {which}, "
        f"{_may_be_lowest(compared)}."
    )


def _may_be_lowest(compared: Contenders) -> str:
    """Name the first configurations that may have the lowest score, and the errors counted."""
    inside = [row for row in compared.rows if row["indistinguishable"]]
    names = ", ".join(str(Configuration.from_json(row)) for row in inside[:_NAMED])
    more = ", ..." if len(inside) > _NAMED else ""
    return f"{names}{more} (errors over {' and '.join(compared.levels)})"


def beaten(
    means: pd.DataFrame, passed: NDArray[np.bool_], selected: int, *, rule: str
) -> list[Warned]:
    """Warn if another configuration has less loss and a lower score, which speaks against the rule.

    The default rule is not warned of: it has weighed the measured scores by their errors.
    """
    if rule == DEFAULT_RULE:
        return []
    loss, score = means["utility_loss"].to_numpy(), means["score"].to_numpy()
    better = passed & (loss < loss[selected]) & (score < score[selected])
    if not better.any():
        return []
    one = configurations(means)[int(np.where(better, score, np.inf).argmin())]
    return [
        Warned(
            f"{int(better.sum())} of {int(passed.sum())} configurations have less loss and a lower "
            f"score than the selected one, such as {one}: here the scores speak against the rule. "
            "See `raydp analyze heuristics`.",
            short=f"{one} has less loss, and leaks less by its measured score",
        )
    ]
