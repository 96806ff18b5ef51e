"""The body of a page: the first screen, then the evidence, folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raydp.analysis.report.card import card
from raydp.analysis.report.first_screen import FirstScreen
from raydp.analysis.report.markup import bullets, filled, paragraph, section
from raydp.analysis.report.threshold_slider import threshold_chart
from raydp.analysis.selection.by_threshold import SelectionsByThreshold
from raydp.analysis.selection.verdict import Verdict
from raydp.analysis.selection.wording import capitalised, in_words

_FIXED = (
    '<p class="soft" id="first-fixed" hidden>These cautions are of the choice as selected. They do '
    "not follow the slider.</p>"
)
"""A paragraph that is shown while the slider is elsewhere."""


@dataclass(frozen=True, kw_only=True)
class PageTexts:
    """The texts that a caller of `write_report` gives to the page."""

    title: str
    card_rows: Mapping[str, str]
    warnings: Sequence[str]
    notes: Sequence[str]


def body_of(
    screen: FirstScreen,
    sections: Mapping[str, Sequence[str]],
    texts: PageTexts,
    *,
    selections: SelectionsByThreshold | None = None,
    about: str = "",
    detail: Sequence[str] = (),
) -> list[str]:
    """Return the parts of a page as HTML.

    Args:
        screen: the first screen.
        sections: heading -> parts of the evidence, as HTML.
        texts: the caller's texts.
        selections: every rule's selections, for the chart and the slider.
        about: a paragraph below the warnings.
        detail: sentences that follow the reasons of the decision.
    """
    headline = screen.headline
    slider, chart = ("", "") if selections is None else threshold_chart(selections)
    verdict = Verdict.of(headline, None, screen.words, None)
    limits = [*texts.warnings, *headline.warnings]
    folded = {
        "The decision": [bullets(in_words(headline)), *map(paragraph, detail)],
        **({"What limits the choice": [bullets(limits)]} if limits else {}),
        "The selected model": [card(screen.points, headline, texts.card_rows, verdict.leak)],
        **sections,
        **({"Notes": [bullets(texts.notes)]} if texts.notes else {}),
    }
    shown = {"title": texts.title, **screen.texts(headline)}
    return [
        filled("first_screen.html", shown, chart=chart, slider=slider),
        # What limits the choice is never folded away as a whole.
        bullets(
            [*texts.warnings, *(f"{capitalised(c)}." for c in verdict.cautions)], css="warnings"
        ),
        "" if selections is None else _FIXED,
        paragraph(about, css="soft") if about else "",
        *(section(heading, *parts, folded=True) for heading, parts in folded.items()),
    ]
