"""Privacy profiles: ε against δ, one curve per accountant (Hu et al. 2025, Fig. 11, 26-28)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import plotly.graph_objects as go

from raydp.analysis.figures.style import SEQUENCE, blank, plain, quiet_axes
from raydp.analysis.report.markup import bullets, number, page, plot, section, table


def write_profiles(
    curves: Mapping[str, Sequence[tuple[float, float | None]]],
    path: str | Path,
    *,
    title: str,
    attack: Sequence[tuple[float, float]] = (),
    notes: Sequence[str] = (),
) -> None:
    """Write the page.

    Args:
        curves: label -> (δ, ε) pairs, ε None where it is unknown; at most four curves.
        path: path of the self-contained HTML file.
        title: title of the page.
        attack: (false positive rate, upper bound on the true positive rate) pairs.
        notes: plain sentences to print at the end.

    Raises:
        ValueError: no curve.
    """
    if not curves:
        raise ValueError("curves must hold at least one profile, got none. Choose an accountant.")
    # One row for each δ of any curve: accountants may know different δ.
    deltas = sorted({delta for curve in curves.values() for delta, _ in curve}, reverse=True)
    known = {label: dict(curve) for label, curve in curves.items()}
    rows = [[f"{delta:.3g}", *(known[label].get(delta) for label in known)] for delta in deltas]
    body = [
        f"<h1>{escape(title)}</h1>",
        section(
            "Privacy profile",
            plot(
                "profile",
                "Upper bounds on epsilon against delta, one line per accountant. The table below "
                "holds the figures.",
                "Every point is a guarantee; all hold at once. Lower is more private.",
            ),
            table("ε at each δ", ["δ", *known], rows),
        ),
    ]
    # The same guarantee in terms of an attacker, if the caller has worked it out.
    if attack:
        body.append(
            section(
                "Membership inference",
                table(
                    "Bounds on an attacker who knows all other records and sees every step",
                    ["false positive rate", "true positive rate at most"],
                    [[number(rate), power] for rate, power in attack],
                ),
            )
        )
    if notes:
        body.append(section("Notes", bullets(notes)))
    Path(path).write_text(page(title, body, {"profile": _figure(curves)}), encoding="utf-8")


def _figure(curves: Mapping[str, Sequence[tuple[float, float | None]]]) -> go.Figure:
    figure = blank()
    for (label, curve), colour in zip(curves.items(), SEQUENCE, strict=False):
        points = sorted((delta, epsilon) for delta, epsilon in curve if epsilon is not None)
        figure.add_trace(
            go.Scatter(
                x=[delta for delta, _ in points],
                y=[epsilon for _, epsilon in points],
                mode="lines+markers",
                name=plain(label),
                line={"color": colour},
                hovertemplate="δ %{x:.3g}<br>ε %{y:.4g}<extra>" + plain(label) + "</extra>",
            )
        )
    quiet_axes(figure)
    figure.update_xaxes(title_text="δ", type="log", exponentformat="power")
    figure.update_yaxes(title_text="ε", rangemode="tozero")
    return figure
