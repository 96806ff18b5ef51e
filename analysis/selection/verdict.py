"""A selection in the few lines that a person reads first: the choice, how sure, against what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from raydp.analysis.selection.decision import Decision, chance
from raydp.analysis.selection.default import DEFAULT_RULE
from raydp.analysis.selection.rules import UTILITY_CHECK
from raydp.analysis.selection.selected import Selection
from raydp.search_spaces.configuration import Configuration
from raydp.search_spaces.settings import Settings, short_names, value_in_words

SAME = "the selected one"
"""The best utility where it is that of the selected configuration."""
_MOST_COLUMNS = 58
"""A configuration's name is no longer, so that a label fits beside it."""


class Words(Protocol):
    """How a person says the values of a score. Implemented by `raydp.scores.words.ScoreWords`.

    Attributes:
        no_leak: the value of a model that leaks nothing; None if it is not known.
        log_base: the base of the logarithm that the value is; None if it is none.
    """

    @property
    def log_base(self) -> float | None: ...

    @property
    def no_leak(self) -> float | None: ...

    def say(self, value: float) -> str | None:
        """Say a value in a clause; None where no words hold."""

    def span(self, low: float, high: float) -> str | None:
        """Say an interval of values; None where no words hold."""

    def compare(self, value: float, other: float) -> str | None:
        """Say how much a value leaks beside another one; None where their ratio says nothing."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a person wants to know of a selection first, a clause each.

    Attributes:
        configuration: the selected configuration.
        figures: its utility loss, its score and its guarantee.
        leak: what its score means; None if no words hold.
        certainty: how sure it is that no other configuration leaks less.
        doubt: the same where its probability is below the confidence; None where it is not.
        best_utility: the configuration of the best utility beside it; None if it is not known.
        runner_up: the configuration that leaks least with the second probability; None without one.
        cautions: what limits the choice, the remedy with it.
    """

    configuration: str
    figures: tuple[str, ...]
    leak: str | None
    certainty: str
    doubt: str | None
    best_utility: str | None
    runner_up: str | None
    cautions: tuple[str, ...]

    @classmethod
    def of(
        cls, selection: Selection, best: Selection | None, words: Words, guarantee: str | None
    ) -> Verdict:
        """Put a selection into words.

        Args:
            selection: the selection.
            best: the selection by utility alone, from the same runs.
            words: how a person says the score.
            guarantee: its guarantee in a few words; None if it has none, or it is not known.
        """
        certainty, doubt = _certainty(selection)
        return cls(
            configuration=_name(selection.configuration),
            figures=_figures(selection, guarantee),
            leak=_leak(selection, words),
            certainty=certainty,
            doubt=doubt,
            best_utility=None if best is None else _beside(best, selection, words),
            runner_up=None if selection.nothing_leaks else _runner_up(selection.decision),
            cautions=_cautions(selection),
        )


def _leak(selection: Selection, words: Words) -> str | None:
    """Say what the score means, and whether its interval includes no leak; None without words."""
    leak = None if selection.score is None else words.say(selection.score)
    if leak is None:
        return None
    if (selection.score_name or "").startswith("worst case of "):
        leak = f"at worst, {leak}"
    # The interval is of the score, which may be at the end of what the words can say.
    decision = selection.decision
    if decision is not None and decision.interval is not None:
        low, high = decision.interval
        sure, span = f"{100 * decision.confidence:g} %", words.span(low, high)
        if words.no_leak is not None and low <= words.no_leak <= high:
            leak += f'; "no leak" is within its {sure} interval{(span and f", {span}") or ""}'
        elif span is not None:
            leak += f"; {sure} interval {span}"
    return leak


def _figures(selection: Selection, guarantee: str | None) -> tuple[str, ...]:
    """Return the utility loss, the score and the guarantee."""
    score = "no score" if selection.score is None else f"score {selection.score:.3g}"
    base = selection.base_utility_loss
    untrained = "" if base is None else f" (untrained {base:.4g})"
    loss = f"loss {selection.utility_loss:.4g}{untrained}"
    known = [loss, score] if guarantee is None else [loss, score, guarantee]
    if selection.own_score is not None:
        seeds = f"loaded: one of {selection.num_seeds} seeds"
        known.append(f"{seeds}, its own score {selection.own_score:.3g}")
    return tuple(known)


def _certainty(selection: Selection) -> tuple[str, str | None]:
    """Say how probable it is that no other configuration leaks less, and say it as a doubt."""
    decision = selection.decision
    if selection.score is None:
        return "no score was measured, so how much it leaks is not known", None
    if decision is None:
        return f"selected by the rule {selection.rule}", None
    number = decision.pool_size
    common = _pool(selection, decision)
    among = f"of the {number} {common}"
    if number == 1:
        alone = "there is no other one" if common is None else f"the only one {common}"
        return f"{alone}: no scores were compared", None
    if selection.nothing_leaks:
        return (
            f"none {among} leaks measurably more than the untrained model, so the utility decides",
            None,
        )
    if decision.probability is None or decision.probability_within is None:
        return f"how sure it is to leak least {among} is not known", None
    least = f"{chance(decision.probability)} likely to leak least {among}"
    if decision.probability_within < 1 - decision.confidence:
        return f"another one leaks less: this one is {least}", None
    if decision.state == "equivalent":
        close = f"{chance(decision.probability_within)} likely to leak at most"
        return f"{close} {100 * decision.tolerance:g} % more than the least {among}", None
    if decision.state == "decided":
        return least, None
    # The mean over what is not known decides, where another one is the lowest more often.
    rivals = [other["probability"] for other in decision.alternatives]
    by_mean = selection.rule == DEFAULT_RULE and max(rivals, default=0) > decision.probability
    why = "; its expected score is lowest" if by_mean else ""
    doubt = f"{least}{why}; {100 * decision.confidence:g} % decides"
    return f"not decided: {doubt}", doubt


def _pool(selection: Selection, decision: Decision) -> str | None:
    """Say what the compared ones have in common; None if no other one was left out."""
    number, bound = decision.pool_size, selection.max_loss
    # A step that comes after the comparison leaves fewer than were compared.
    by = {s.name for s in selection.steps if s.dropped and len(s.survivors) >= number}
    if not by and number == 1:
        return None
    kept = decision.utility_probability or 0.0
    likely = "sure" if kept >= decision.confidence else f"{chance(kept)} likely"
    sure = f"{likely} to " if UTILITY_CHECK in by else ""
    if by - {UTILITY_CHECK, "utility threshold"}:
        keep = f"{sure}keep" if sure else f"that keep{'s' if number == 1 else ''}"
        return f"{keep} to the constraints"
    useful = f"{sure}{'be ' if sure else ''}useful enough"
    return "compared" if bound is None else f"{useful} (loss ≤ {bound:.4g})"


def ratio(words: Words, other: float, selection: Selection) -> str | None:
    """Say how much a score leaks beside the selected one; None if that may leak nothing."""
    decision, score, no_leak = selection.decision, selection.score, words.no_leak
    if score is None or no_leak is None or decision is None or decision.interval is None:
        return None
    return words.compare(other, score) if decision.interval[0] > no_leak else None


def _beside(best: Selection, selection: Selection, words: Words) -> str:
    """Compare the configuration of the best utility with the selected one."""
    if best.configuration == selection.configuration:
        return SAME
    leaks = None
    if best.score is not None and selection.score is not None:
        leaks = ratio(words, best.score, selection) or f"score {best.score:.3g}"
    return ", ".join([f"loss {best.utility_loss:.4g}", *([] if leaks is None else [leaks])])


def _runner_up(decision: Decision | None) -> str | None:
    if decision is None or not decision.alternatives:
        return None
    first = decision.alternatives[0]
    likely = chance(first["probability"])
    return f"{_name(Configuration.from_json(first))}, {likely} likely to leak least"


def _name(configuration: Configuration) -> str:
    """Name a configuration in a line, with as many of its further fields as fit."""
    c = configuration
    hyperparameters = f"b={c.batch_size} T={c.num_steps} η={c.learning_rate:g}"
    return few_fields(c.settings, hyperparameters, equals="=", between=" ", most=_MOST_COLUMNS)


def few_fields(fields: Settings, before: str, *, equals: str, between: str, most: int) -> str:
    """Return a text and the fields after it that fit a number of columns, and how many more."""
    said, left = before, len(fields)
    for path, name in short_names(fields).items():
        longer = f"{said}{between}{name}{equals}{value_in_words(fields[path])}"
        if len(longer) + len(_more(left - 1, between)) > most:
            break
        said, left = longer, left - 1
    return said + _more(left, between)


def _more(fields: int, between: str) -> str:
    return f"{between}and {fields} more" if fields else ""


def _cautions(selection: Selection) -> tuple[str, ...]:
    """Return the short forms of the warnings, what would decide first."""
    # Where nothing leaks, more runs would rank what differs by chance alone.
    ranks = selection.undecided is not None and not selection.nothing_leaks
    outlook = selection.outlook if ranks else None
    remedy = None if outlook is None else outlook.short
    return (
        *([] if remedy is None else [remedy]),
        *(caution.short for caution in selection.cautions),
    )
