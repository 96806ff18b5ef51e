"""The page of a study over several ε: which ε, in words, in a figure and in a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
import plotly.graph_objects as go

from raydp.analysis.figures.style import (
    LINE,
    POINT,
    SCORE,
    SEQUENCE,
    blank,
    describe,
    plain,
    quiet_axes,
)
from raydp.analysis.report.markup import (
    Cell,
    bullets,
    page,
    paragraph,
    percent,
    plot,
    section,
    table,
)
from raydp.extensions.study.safe_epsilon import SafeEpsilon, StudyScores, sentences
from raydp.search_spaces.settings import settings_in_words

BLUE, ORANGE, GREEN = SEQUENCE[:3]
BAND = "rgba(213, 94, 0, 0.15)"
MOST_POINTS = 2000
_WIDTH = 0.12  # width of the points of one ε, as a share of the distance between two
_GOLDEN = 0.6180339887498949  # its multiples modulo 1 are spread evenly
_LOGARITHMIC = 10.0  # scores that differ by more have a logarithmic axis


def envelope(scores: StudyScores, answer: SafeEpsilon) -> go.Figure:
    """Plot the scores of all configurations against ε, with the highest and lowest useful ones.

    Args:
        scores: the scores of the study.
        answer: one of its answers.

    Source: Hu et al. 2025, Figure 4.
    """
    asked, _ = scores.questions[answer.on]
    figure = blank(xaxis_title_text="Target ε", yaxis_title_text=SCORE, xaxis_type="log")
    values = scores.means["score"].to_numpy(dtype=float)
    for name, members, marker in (
        ("not useful enough", asked & ~scores.useful, {"color": LINE, "symbol": "circle-open"}),
        ("useful", asked & scores.useful, {"color": POINT, "symbol": "circle"}),
    ):
        at = np.flatnonzero(members)
        if not len(at):
            continue
        at = at[np.argsort(values[at], kind="stable")][:: -(-len(at) // MOST_POINTS)]
        aside = np.exp(_WIDTH * ((np.arange(len(at)) * _GOLDEN) % 1 - 0.5))
        figure.add_trace(
            go.Scatter(
                x=(scores.epsilons[at] * aside).tolist(),
                y=values[at].tolist(),
                mode="markers",
                name=name,
                marker={"size": 7, "opacity": 0.7, **marker},
                text=[describe(scores.listed[k]) for k in at],
                hovertemplate="%{text}<br>score %{y:.4g}<extra></extra>",
            )
        )
    _add_bounds(figure, answer)
    _add_answer(figure, answer)
    drawn = values[asked]
    if drawn.min() > 0 and drawn.max() > _LOGARITHMIC * drawn.min():
        figure.update_yaxes(type="log")
    ticks = [level["epsilon"] for level in answer.levels]
    figure.update_xaxes(tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    return quiet_axes(figure)


def _add_bounds(figure: go.Figure, answer: SafeEpsilon) -> None:
    """Draw the highest leak of the useful configurations with its interval, and the lowest one."""
    known = [level for level in answer.levels if level["highest_interval"] is not None]
    x = [level["epsilon"] for level in known]
    low, high = zip(*[level["highest_interval"] or (0, 0) for level in known], strict=True)
    edge = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
    figure.add_trace(go.Scatter(x=x, y=list(low), **edge))
    figure.add_trace(go.Scatter(x=x, y=list(high), fill="tonexty", fillcolor=BAND, **edge))
    for name, key, colour in (
        (f"highest useful, {percent(answer.confidence)}", "highest", ORANGE),
        ("lowest useful", "lowest", GREEN),
    ):
        figure.add_trace(
            go.Scatter(
                x=x,
                y=[level[key] for level in known],  # type: ignore[literal-required]
                mode="lines+markers",
                name=name,
                line={"color": colour, "width": 2},
                hovertemplate=f"ε = %{{x}}<br>{plain(name)} %{{y:.4g}}<extra></extra>",
            )
        )


def _add_answer(figure: go.Figure, answer: SafeEpsilon) -> None:
    """Draw the limit, ε^gold and the selected configuration."""
    if answer.max_leak is not None:
        figure.add_hline(y=answer.max_leak, line_dash="dash", line_color=LINE)
    if answer.gold is not None:
        figure.add_vline(x=answer.gold, line_dash="dot", line_color=LINE)
        # On a logarithmic axis plotly places a text by the logarithm.
        figure.add_annotation(
            x=float(np.log10(answer.gold)),
            y=1,
            yref="paper",
            text="ε<sup>gold</sup>",
            showarrow=False,
            xanchor="left",
            yanchor="top",
        )
    if (chosen := answer.configuration) is not None:
        figure.add_trace(
            go.Scatter(
                x=[answer.epsilon],
                y=[chosen["score"]],
                mode="markers",
                name="selected",
                marker={"symbol": "circle-open", "size": 16, "color": BLUE, "line": {"width": 3}},
                hovertemplate="selected<br>score %{y:.4g}<extra></extra>",
            )
        )


def study_page(title: str, parts: Sequence[tuple[StudyScores, SafeEpsilon]]) -> str:
    """Return the page of a study: each answer in words, as a figure and as a table."""
    body, figures = [f"<h1>{escape(title)}</h1>"], {}
    for place, (scores, answer) in enumerate(parts):
        first, *others = sentences(answer)
        heading = settings_in_words(answer.on) or "Which ε"
        has_useful = any(level["highest"] is not None for level in answer.levels)
        if has_useful:
            figures[f"envelope-{place}"] = envelope(scores, answer)
        body.append(
            section(
                heading,
                paragraph(first, css="headline"),
                *(paragraph(other) for other in others),
                plot(f"envelope-{place}", *_FIGURE) if has_useful else "",
                _table(answer),
            )
        )
    body.append(section("What these figures assume", bullets(_ASSUMPTIONS)))
    return page(title, body, figures)


_FIGURE = (
    "Scores of all configurations against the target ε, with the highest and the lowest score of "
    "the useful ones. The table holds the figures.",
    "One point per configuration. The orange line is the highest leak that a certificate by ε alone "
    "allows among the useful configurations, with its interval; the green line is the lowest.",
)
_ASSUMPTIONS = (
    "The leak is what the score measures on these secrets. Another attack may find more.",
    "The interval holds for the measured configurations. A configuration that nobody measured may "
    "leak more at the same ε.",
    "Choosing ε by what private models leak is not covered by ε. The joint ε of all models covers "
    "it.",
)


def level_rows(answer: SafeEpsilon) -> list[dict[str, float | str | None]]:
    """Return a row for each ε, by the headers of the table."""
    rows = []
    for level in answer.levels:
        safest, interval = level["safest"], level["highest_interval"]
        row: dict[str, float | str | None] = {
            "ε": level["epsilon"],
            "useful": f"{level['admissible']} of {level['configurations']}",
            "lowest leak": level["lowest"],
            "highest leak": level["highest"],
            "at most": None if interval is None else interval[1],
        }
        if answer.max_leak is not None:
            row["safest keeps"] = None if safest is None else safest["probability"]
            row["all keep"] = level["probability_all"]
        rows.append(row)
    return rows


def _table(answer: SafeEpsilon) -> str:
    """Return the table of the levels."""
    rows = level_rows(answer)
    cells: list[list[Cell]] = [
        [percent(v, 1) if isinstance(v, float) and "keep" in k else v for k, v in row.items()]
        for row in rows
    ]
    marked = [at for at, row in enumerate(rows) if row["ε"] == answer.epsilon]
    return table("What was found at each ε", list(rows[0]), cells, marked=marked)
