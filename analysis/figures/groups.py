"""Figures that compare several tables: spread, heuristics, risk of the rules (Hu et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from raydp.analysis.figures.style import (
    LINE,
    SCORE,
    SEQUENCE,
    blank,
    describe,
    group_mark,
    mark_of,
    plain,
    quiet_axes,
)
from raydp.analysis.selection.risk import privacy_risk
from raydp.analysis.statistics.heuristics import heuristic_accuracy
from raydp.analysis.statistics.variance import score_variance
from raydp.analysis.tables.columns import KEY
from raydp.analysis.tables.points import (
    configuration_means,
    configurations,
    require_hyperparameters,
)

_WIDTH = 0.45  # width of a group's column of points; neighbouring groups are 1 apart
# The golden ratio less 1: its multiples modulo 1 are spread evenly (Kronecker sequence).
_GOLDEN = 0.6180339887498949
_MOST_POINTS = 2000


def configurations_and_seeds(points: pd.DataFrame) -> go.Figure:
    """Plot the spread of one table over configurations beside its spread over seeds, on one axis.

    Args:
        points: a points table.

    Returns:
        Two columns of points. The first holds the configurations' mean scores. The second holds the
        single runs: each run's deviation from its configuration's mean, added to the overall mean.
        The second column is empty if no configuration has two seeds. Above the columns stand
        score_std and seed_std of `score_variance`.

    Raises:
        ValueError: as `configuration_means`.

    Source: Hu et al. 2025, Table 8 and App. C.3.
    """
    points = require_hyperparameters(points)
    means = configuration_means(points)
    merged = points.merge(means[[*KEY, "num_seeds", "score"]], on=KEY, suffixes=("", "_mean"))
    # A configuration with one seed says nothing of the spread over seeds.
    several = merged[merged["num_seeds"] > 1]
    # Move each run's deviation to the overall mean, so that both columns share one axis.
    runs = several.assign(score=several["score"] - several["score_mean"] + means["score"].mean())
    spread = score_variance(points)
    groups = {"Configurations": means, "Seeds, around the mean": runs}
    return strips(groups, dict(zip(groups, (spread["score_std"], spread["seed_std"]), strict=True)))


def strips(groups: Mapping[str, pd.DataFrame], spreads: Mapping[str, float | None]) -> go.Figure:
    """Plot one column of points per group, spread sideways, with its std above."""
    figure = blank(yaxis_title_text=SCORE, showlegend=False)
    for place, (name, table) in enumerate(groups.items()):
        # More points would only cover each other. The standard deviation above uses all of them.
        some = table if len(table) <= _MOST_POINTS else table.sample(_MOST_POINTS, random_state=0)
        some = some.sort_values("score", kind="stable")
        aside = (np.arange(len(some)) * _GOLDEN) % 1 - 0.5  # neighbours in score lie apart
        figure.add_trace(
            go.Scatter(
                x=(place + _WIDTH * aside).tolist(),
                y=some["score"].tolist(),
                mode="markers",
                name=plain(name),
                marker={"size": 7, "opacity": 0.7, **group_mark(place)},
                text=[describe(c) for c in configurations(some)],
                hovertemplate="%{text}<br>score %{y:.4g}<extra></extra>",
            )
        )
        # A group of one configuration has no standard deviation.
        if (std := spreads[name]) is not None:
            text = f"std {std:.4g}"
            figure.add_annotation(
                x=place, y=float(table["score"].max()), text=text, showarrow=False, yshift=14
            )
    figure.update_xaxes(tickvals=list(range(len(groups))), ticktext=list(map(plain, groups)))
    figure.update_xaxes(range=[-0.6, len(groups) - 0.4])
    quiet_axes(figure).update_xaxes(showgrid=False)
    return figure


def heuristic_accuracies(groups: Mapping[str, pd.DataFrame]) -> go.Figure:
    """Plot the accuracy of each heuristic, one bar per group.

    The dashed line is the accuracy of guessing.

    Args:
        groups: name -> points table.

    Raises:
        ValueError: as `heuristic_accuracy`.

    Source: Hu et al. 2025, Fig. 7 and 19.
    """
    # The axis ends above 1, so that the text over a full bar is not cut off.
    figure = blank(
        yaxis_title_text="Correct pairs",
        yaxis_range=[0, 1.08],
        yaxis_tickformat=".0%",
        barmode="group",
        bargap=0.4,
    )
    for place, (name, points) in enumerate(groups.items()):
        accuracy = heuristic_accuracy(points)
        # The text gives the number of pairs, since a share of few pairs is uncertain.
        figure.add_trace(
            go.Bar(
                x=list(accuracy),
                y=[figures["accuracy"] for figures in accuracy.values()],
                name=plain(name),
                text=[
                    f"{figures['correct']} of {figures['pairs']}" for figures in accuracy.values()
                ],
                textposition="outside",
                cliponaxis=False,
                marker_color=SEQUENCE[place % len(SEQUENCE)],
                hovertemplate="%{x}: %{y:.1%}, %{text} pairs<extra>" + plain(name) + "</extra>",
            )
        )
    figure.add_hline(y=0.5, line={"dash": "dash", "width": 1.5, "color": LINE})
    figure.update_layout(showlegend=len(groups) > 1)
    return quiet_axes(figure)


def selection_risks(groups: Mapping[str, pd.DataFrame]) -> go.Figure:
    """Plot each rule's privacy risk, averaged over the utility thresholds.

    The privacy risk is the selected score minus the oracle's.

    Args:
        groups: name -> points table.

    Returns:
        Bars of the relative risk, or of the absolute risk if the relative risk is undefined in some
        group.

    Raises:
        ValueError: as `privacy_risk`.

    Source: Hu et al. 2025, §4.3 (Figure 10) and App. D.3.
    """
    risks = {name: privacy_risk(points)["rules"] for name, points in groups.items()}
    # One scale for all groups: relative only if every group defines the relative risk.
    relative = all(
        "oracle" in rules and rules["oracle"]["relative"] is not None for rules in risks.values()
    )
    kind: Literal["relative", "absolute"] = "relative" if relative else "absolute"
    form = ".0%" if relative else ".3g"
    title = "Score above the oracle's, relative" if relative else "Score above the oracle's"
    figure = blank(xaxis_title_text=title, xaxis_tickformat=form, barmode="group", bargap=0.4)
    for place, (name, rules) in enumerate(risks.items()):
        # The oracle's own risk is 0 by definition, so it has no bar.
        shown = [
            rule for rule in reversed(rules) if rules[rule][kind] is not None and rule != "oracle"
        ]
        alone = len(risks) == 1
        figure.add_trace(
            go.Bar(
                y=shown,
                x=[rules[rule][kind] for rule in shown],
                orientation="h",
                name=plain(name),
                texttemplate=f"%{{x:{form}}}",
                textposition="outside",
                cliponaxis=False,
                # A single group takes the rules' colours of the other figures.
                marker_color=[mark_of(rule)[2] for rule in shown]
                if alone
                else SEQUENCE[place % len(SEQUENCE)],
                hovertemplate=f"%{{y}}: %{{x:{form}}}<extra>{plain(name)}</extra>",
            )
        )
    largest = max((x for bars in figure.data for x in bars.x), default=0.0)
    # Leave room for the figures beside the bars.
    figure.update_xaxes(range=[0, 1.12 * largest] if largest > 0 else None)
    figure.update_layout(showlegend=len(risks) > 1, legend_traceorder="reversed")
    return quiet_axes(figure)
