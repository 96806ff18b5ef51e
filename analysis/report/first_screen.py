"""The first screen of a page: the verdict in a sentence, three figures, the chart, the command."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd

from raydp.analysis.report.card import upper_bound
from raydp.analysis.report.markup import number, percent
from raydp.analysis.selection.by_threshold import SelectionsByThreshold
from raydp.analysis.selection.selected import Selection
from raydp.analysis.selection.verdict import Verdict, Words, few_fields, ratio
from raydp.analysis.selection.wording import capitalised
from raydp.analysis.tables.columns import known
from raydp.analysis.tables.points import configurations
from raydp.search_spaces.configuration import Configuration

_MOST_CHARACTERS = 120
"""A configuration's name is no longer, so that the figures stay on a phone's first screen."""
_VALUE = re.compile(r"1 in [\d.,e+-]+|[\d.,]*\d(e[+-]?\d+)?( %| times)?|\binf\b")
"""The figure in a score's words."""
Tile = tuple[str, str, str]
"""A figure, what it says, and what it is compared with."""


class NoWords:
    """The words of a score that the caller has none for."""

    no_leak = 0.0
    log_base = None

    def say(self, value: float) -> None:
        """Say nothing."""

    def span(self, low: float, high: float) -> None:
        """Say no interval."""

    def compare(self, value: float, other: float) -> None:
        """Compare nothing."""


@dataclass(frozen=True, kw_only=True)
class FirstScreen:
    """What the first screen compares a selection with.

    Attributes:
        points: the points table.
        headline: the selection that the page is about.
        best: the selection by utility alone.
        words: how a person says the score.
        base_score, base_utility_loss: of the untrained model; None if they are not known.
        told: the further rows of the card.
        advantage_fn: the largest true minus false positive rate of a test of membership against a
            configuration's models, None where it is not known.
    """

    points: pd.DataFrame
    headline: Selection
    best: Selection
    words: Words
    base_score: float | None
    base_utility_loss: float | None
    told: Mapping[str, str]
    advantage_fn: Callable[[Configuration], float | None] = lambda _: None

    def texts(self, selection: Selection) -> dict[str, str]:
        """Return the texts of `first_screen.html` for a selection, by name."""
        verdict = Verdict.of(selection, None, self.words, None)
        tiles = {
            "leak": self._leak(selection, verdict.leak),
            "use": self._use(selection),
            "guarantee": self._guarantee(selection.configuration),
        }
        parts = {
            f"{tile}_{part}": text
            for tile, texts in tiles.items()
            for part, text in zip(("figure", "text", "beside"), texts, strict=True)
        }
        load = selection.load_call
        told = {"verdict": _sentence(selection, verdict), **parts}
        return {
            **{name: text.replace(" %", "\u00a0%") for name, text in told.items()},
            "load": "" if load is None else f"import raydp\nmodel = {load}",
        }

    def along(self, selections: SelectionsByThreshold) -> dict[str, object]:
        """Return the texts for what the headline's rule selects at any threshold, by position."""
        means, rule = selections.means, self.headline.rule
        rule = rule if rule in selections.selected else "oracle"
        listed, uris = configurations(means), means.get("model_uri")
        chosen: dict[str, object] = {}
        # How sure a choice is was computed at the given threshold alone.
        for at in sorted(set(selections.selected[rule].tolist())):
            own = means.iloc[at]
            chosen[str(at)] = self.texts(
                replace(
                    self.headline,
                    rule=rule,
                    configuration=listed[at],
                    utility_loss=float(own["utility_loss"]),
                    score=known(own["score"]),
                    model_uri=None if uris is None or pd.isna(uris.iloc[at]) else uris.iloc[at],
                    decision=None,
                    cautions=(),
                    undecided=None,
                )
            )
        return chosen

    @cached_property
    def _rows(self) -> Mapping[Configuration, list[int]]:
        """Return the positions of each configuration's rows in the table."""
        rows: dict[Configuration, list[int]] = {}
        for at, configuration in enumerate(configurations(self.points)):
            rows.setdefault(configuration, []).append(at)
        return rows

    def _leak(self, selection: Selection, phrase: str | None) -> Tile:
        """Return what the score says, and how it compares with others."""
        score = selection.score
        if score is None:
            return "not measured", "How much the model leaks is not known.", ""
        if phrase is None:
            phrase = f"score {selection.score_name or ''}".strip() + "; higher leaks more"
        others = self._others(selection, self.best.score, self.base_score)
        beside = []
        for who, other in others.items():
            said, value = ratio(self.words, other, selection), self._value(other)
            beside.append(f"{who}: {value}" if said is None else f"{who} {said} ({value})")
        return self._value(score), f"{capitalised(phrase)}.", _joined(beside)

    def _others(
        self, selection: Selection, best: float | None, base: float | None
    ) -> dict[str, float]:
        """Return the figures of the models that a selection is compared with."""
        own = selection.configuration == self.best.configuration
        others = {"the most useful model": None if own else best, "the untrained model": base}
        return {who: other for who, other in others.items() if other is not None}

    def _value(self, score: float) -> str:
        """Return the figure that the words of a score hold, or else the score."""
        said, base = self.words.say(score) or "", self.words.log_base
        if (found := _VALUE.search(said)) is not None:
            return found.group()
        return f"{base**score:.3g} times" if said and base is not None else f"{score:.3g}"

    def _use(self, selection: Selection) -> Tile:
        """Return the share of the largest gain in utility, or else the loss."""
        loss, best, base = selection.utility_loss, self.best.utility_loss, self.base_utility_loss
        others = self._others(selection, best, base)
        beside = [f"{who} {number(other)}" for who, other in others.items()]
        # A share needs a gain and another model: a private selection shows a single one.
        if base is None or base <= best or len(self._rows) == 1:
            return number(loss), "Utility loss; lower is better.", _joined(beside)
        text = "Kept of the largest gain in utility over the untrained model."
        beside = [f"loss {number(loss)}", *beside]
        return percent((base - loss) / (base - best)), text, _joined(beside)

    def _guarantee(self, configuration: Configuration) -> Tile:
        """Return ε, what it says of an attacker, and what it depends on."""
        own = self.points.iloc[self._rows[configuration]]
        epsilon, delta = (upper_bound(own, name) for name in ("epsilon", "delta"))
        # Without a known ε for every run, say nothing rather than name a wrong guarantee.
        if epsilon is None or delta is None:
            return number(None), "The table names no guarantee.", ""
        if math.isinf(epsilon):
            return "none", "It has no guarantee: its ε is infinite.", ""
        unit = self.told.get("Unit of privacy", "record").partition(" (")[0]
        certified = self.told.get("Certified")
        # With even odds, a test of (ε, δ)-DP is right with at most (e^ε + δ) / (1 + e^ε).
        single = _percent_up((1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)))
        text = f"A guess whether one {unit} was trained on is right in at most {single} of cases."
        beside = ["blind guessing: 50 %"]
        # Who must guess of all is right in at most (1 + advantage) / 2. Who guesses only where it is
        # sure, of few, is bounded by ε alone.
        if (advantage := self.advantage_fn(configuration)) is not None:
            text = (
                f"An attacker who guesses of every {unit} whether it was trained on is right in at "
                f"most {_percent_up((1 + advantage) / 2)} of cases."
            )
            beside.append(f"a guess on the surest: at most {single}")
        # What takes the guarantee back comes before it.
        if certified is not None and certified != "yes":
            why = certified.removeprefix("no, because ")
            text = f"Not certified, do not release: {why}. Where it holds: {text}"
        beside.append(f"at δ = {number(delta)}, for one {unit} added or removed")
        if joint := self.told.get("All models together"):
            beside.append(f"all models together: {joint}")
        return f"ε ≤ {number(epsilon)}", text, _joined(beside)


def _percent_up(share: float) -> str:
    """Return an upper bound in percent, rounded up."""
    return f"{min(100, math.ceil(1e4 * share) / 100):g} %"


def in_words(configuration: Configuration) -> str:
    """Name a configuration without symbols, but for its further fields, of which some may do."""
    c = configuration
    name = f"batch size {c.batch_size}, {c.num_steps} steps, learning rate {c.learning_rate:g}"
    return few_fields(c.settings, name, equals=" = ", between=", ", most=_MOST_CHARACTERS)


def _sentence(selection: Selection, verdict: Verdict) -> str:
    """Return the choice, and how sure it is, in one sentence."""
    name, certainty = in_words(selection.configuration), verdict.certainty
    state = None if selection.decision is None else selection.decision.state
    if state in ("decided", "equivalent"):
        return f"Use {name}: it is {certainty}."
    if verdict.doubt is not None:
        return f"Not decided yet: {name} is {verdict.doubt}."
    chosen = f"The rule {selection.rule} selects {name}"
    return f"{chosen}." if certainty.startswith("selected by") else f"{chosen}; {certainty}."


def _joined(clauses: Sequence[str]) -> str:
    """Return clauses as one text."""
    return "".join(f"{capitalised(clause)}. " for clause in clauses).strip()
