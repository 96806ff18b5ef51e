"""The body of a page: the first screen, then the evidence, folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from raydp.analysis.report.card import card
from raydp.analysis.report.first_screen import FirstScreen, first_screen
from raydp.analysis.report.markup import bullets, code, paragraph, section
from raydp.analysis.selection.selected import Selection
from raydp.analysis.selection.verdict import Verdict
from raydp.analysis.selection.wording import in_words


@dataclass(frozen=True, kw_only=True)
class PageTexts:
    """The texts that a caller of `write_report` gives to the page."""

    title: str
    card_rows: Mapping[str, str]
    warnings: Sequence[str]
    notes: Sequence[str]


def body_of(
    points: pd.DataFrame,
    headline: Selection,
    screen: FirstScreen,
    sections: Mapping[str, Sequence[str]],
    texts: PageTexts,
    *,
    chart: Sequence[str] = (),
    slider: Sequence[str] = (),
    about: Sequence[str] = (),
    detail: Sequence[str] = (),
) -> list[str]:
    """Return the parts of a page as HTML.

    Args:
        points: the points table.
        headline: the selection that the page is about.
        screen: what the first screen compares it with.
        sections: heading -> parts of the evidence, as HTML.
        chart, slider, about: HTML of the first screen, and below the warnings.
        detail: sentences that follow the reasons of the decision.
    """
    shown = screen.texts(headline)
    brief = Verdict.of(headline, None, screen.words, None).cautions
    limits = [*texts.warnings, *headline.warnings]
    folded = {
        "The decision": [bullets(in_words(headline)), *map(paragraph, detail)],
        **({"What limits the choice": [bullets(limits)]} if limits else {}),
        "The selected model": [card(points, headline, texts.card_rows)],
        **sections,
        **({"Notes": [bullets(texts.notes)]} if texts.notes else {}),
    }
    return [
        first_screen(texts.title, shown, chart),
        *slider,
        code(shown["load"], name="first-load"),
        # What limits the choice is never folded away as a whole.
        bullets([*texts.warnings, *brief], css="warnings"),
        *about,
        *(section(heading, *parts, folded=True) for heading, parts in folded.items()),
    ]
