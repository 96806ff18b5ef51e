"""The body of a page: the decision and the model first, then the sections with the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import pandas as pd

from raydp.analysis.report.card import card, guarantee_in_words
from raydp.analysis.report.markup import bullets, code, contents, paragraph, section
from raydp.analysis.selection.selected import Selection
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
    sentences: Sequence[str],
    sections: Mapping[str, Sequence[str]],
    texts: PageTexts,
    *,
    chart: Sequence[str] = (),
    between: Sequence[str] = (),
    about: Sequence[str] = (),
) -> list[str]:
    """Return the parts of a page as HTML.

    Args:
        points: the points table.
        headline: the selection that the page is about.
        sentences: the decision in a sentence, and what follows its reasons.
        sections: heading -> parts of the evidence, as HTML.
        chart, between, about: HTML beside the decision, below it, and below the warnings.
    """
    # The first screen: what to use, why, and what it guarantees.
    words = [guarantee_in_words(points, headline, texts.card_rows), *in_words(headline)]
    decision = section(
        "The decision",
        paragraph(sentences[0], css="headline"),
        bullets([text for text in words if text]),
        *map(paragraph, sentences[1:]),
        css="decision",
    )
    load = "" if headline.load_call is None else code(headline.load_call)
    every = {**sections, **({"Notes": [bullets(texts.notes)]} if texts.notes else {})}
    # Warnings stand above the evidence.
    return [
        f"<h1>{escape(texts.title)}</h1>",
        '<div class="first">',
        decision,
        f'<div class="model">{load}{card(points, headline, texts.card_rows)}</div>',
        *chart,
        "</div>",
        *between,
        bullets([*texts.warnings, *headline.warnings], css="warnings"),
        *about,
        contents(list(every)),
        *(section(heading, *parts) for heading, parts in every.items()),
    ]
