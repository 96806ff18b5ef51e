"""The part of the page that follows the slider: each rule's selection at each utility threshold."""

from __future__ import annotations

import numpy as np
import pandas as pd

from raydp.analysis.figures.scatter import drawn_rows
from raydp.analysis.report.markup import Cell, filled, number, percent, plot, table
from raydp.analysis.selection.by_threshold import SelectionsByThreshold
from raydp.analysis.tables.columns import SETTINGS
from raydp.analysis.tables.coordinates import further_columns
from raydp.analysis.tables.points import configurations
from raydp.analysis.tables.utility_filter import shown_threshold, threshold_text, within
from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.search_spaces.settings import settings_in_words

MOST_LISTED = 1000
"""The largest number of configurations in the table. Those with the lowest loss are kept."""
_HEADERS = {
    "batch_size": "b",
    "num_steps": "T",
    "learning_rate": "η",
    "further": "Further fields",
    "utility_loss": "Utility loss",
    "score": "Score",
    "gain": "Share of gain",
    "above": "Above oracle",
    "model": "Model",
}


def threshold_chart(selections: SelectionsByThreshold) -> tuple[str, str]:
    """Return the slider and the scatter plot "layout", as HTML."""
    at, last = _start_at(selections), len(selections.thresholds) - 1
    slider = filled("slider.html", {"last": last, "at": at, "text": start_text(selections)})
    scatter = plot(
        "layout",
        "Scatter plot of the mean score against the mean utility loss of configurations, with "
        "labels at the selected one, the most useful one and the runner-up. The tables hold the "
        "same figures.",
        f"{_drawn(selections)}; bars are one standard deviation over seeds. Lower left is better.",
        css="chart",
    )
    return slider, scatter


def threshold_section(
    selections: SelectionsByThreshold, rule: str, base_utility_loss: float | None, *, relative: bool
) -> list[str]:
    """Return the table of rules and the figure "by_threshold", which follow the slider, as HTML.

    Args:
        selections: every rule's selections.
        rule: the rule that the page is about.
        base_utility_loss: loss of the untrained model, if it is known.
        relative: whether ratios of scores are meaningful. They are not for logarithms.
    """
    lines = plot(
        "by_threshold",
        "Lines of the score of what each rule selects, against the utility threshold.",
        "What each rule would select at every threshold. The oracle's line is the best that scores "
        "allow: a rule that stays near it wherever the threshold is set can be relied on.",
        css="low",
    )
    # The table of rules at the starting threshold; the script updates it when the slider moves.
    figures = _figures(selections, base_utility_loss)
    score = selections.means["score"].to_numpy()
    # "above" depends on the oracle at the threshold, so it is no column by configuration.
    shown = [key for key in _HEADERS if key in figures or key == "above"]
    rows: list[list[Cell]] = []
    for name, at in selections.start.items():
        cells = {key: column[at] for key, column in figures.items()}
        cells["above"] = _above(score[at], score[selections.start["oracle"]], relative=relative)
        rows.append([name, *(cells[key] for key in shown)])
    rules = table(
        "What each rule selects at the threshold",
        ["Rule", *(_HEADERS[key] for key in shown)],
        rows,
        marked=[list(selections.start).index(rule)] if rule in selections.start else [],
        of_row=[{"data-rule": name} for name in selections.start],
        of_column={at: {"data-figure": name} for at, name in enumerate(shown, start=1)},
    )
    return [rules, lines]


def live_data(
    selections: SelectionsByThreshold, rule: str, base_utility_loss: float | None, *, relative: bool
) -> dict[str, object]:
    """Return the data of the slider's script: selections by rule and threshold, with texts."""
    loss = selections.means["utility_loss"].to_numpy()
    return {
        "rule": rule,
        "relative": relative,
        "thresholds": selections.thresholds.tolist(),
        "texts": _labels(selections),
        # `within` forgives rounding, the script does not: give it the largest loss admitted.
        "limits": [float(loss[within(loss, u)].max()) for u in selections.thresholds],
        "members": selections.members.tolist(),
        "selected": {name: positions.tolist() for name, positions in selections.selected.items()},
        "start": dict(selections.start),
        "start_at": _start_at(selections),
        "start_threshold": selections.threshold,
        "start_text": start_text(selections),
        "start_members": int(selections.passed.sum()),
        "allowed": selections.allowed.tolist(),
        "passed": selections.passed.tolist(),
        "drawn": drawn_rows(selections).tolist(),
        "loss": loss.tolist(),
        "score": selections.means["score"].tolist(),
        "names": [str(c) for c in configurations(selections.means)],
        "figures": _figures(selections, base_utility_loss),
    }


def configurations_table(selections: SelectionsByThreshold, rule: str) -> str:
    """Return the table of all configurations' means. The slider changes the style of its rows."""
    means = selections.means
    listed = means
    caption = "Means over seeds, sorted by T, b, η"
    # A shortened table keeps the low losses, which are the likeliest selections.
    if len(means) > MOST_LISTED:
        listed = means.nsmallest(MOST_LISTED, "utility_loss", keep="first").sort_index()
        caption = (
            f"Means over seeds of the {MOST_LISTED} configurations of lowest loss of {len(means)}"
        )
    further = further_columns(listed)
    headers = [
        "b",
        "T",
        "η",
        *further,
        "C = bT",
        "U = Cη",
        "Seeds",
        "Utility loss",
        "Loss std",
        "Score",
        "Score std",
        "Chosen by",
    ]
    # One row per configuration, with the rules that select it at the starting threshold.
    rows: list[list[Cell]] = []
    columns = listed[
        ["num_seeds", "utility_loss", "utility_loss_std", "score", "score_std"]
    ].itertuples(index=False)
    of_fields = list(zip(*further.values(), strict=True)) if further else [()] * len(listed)
    every = zip(listed.index, configurations(listed), of_fields, columns, strict=True)
    for at, c, fields, (seeds, *values) in every:
        chosen = ", ".join(name for name, position in selections.start.items() if position == at)
        name: list[Cell] = [
            c.batch_size,
            c.num_steps,
            c.learning_rate,
            *fields,
            c.compute,
            float(c.updates),
        ]
        rows.append([*name, int(seeds), *map(float, values), chosen])
    marked = [place for place, at in enumerate(listed.index) if at == selections.start.get(rule)]
    # The script finds a row's configuration by its position, also in a shortened table.
    attributes: list[dict[str, str | int]] = [
        {"data-position": int(at)}
        if place in marked or selections.passed[at]
        else {"data-position": int(at), "class": "excluded"}
        for place, at in enumerate(listed.index)
    ]
    return table(caption, headers, rows, marked=marked, of_row=attributes)


def _figures(
    selections: SelectionsByThreshold, base_utility_loss: float | None
) -> dict[str, list[str]]:
    """Return the texts of the table of rules: column -> [m] texts, one per configuration."""
    means = selections.means
    names = (*HYPERPARAMETERS, "utility_loss", "score")
    columns = {name: [number(value) for value in means[name].tolist()] for name in names}
    if any(means[SETTINGS]):
        columns["further"] = [settings_in_words(c.settings) or "–" for c in configurations(means)]
    # The best gain that the constraints other than the threshold allow counts as 100 %.
    best = float(means.loc[selections.allowed, "utility_loss"].min())
    if base_utility_loss is None or base_utility_loss <= best:
        gain = ["–"] * len(means)
    else:
        share = (base_utility_loss - means["utility_loss"]) / (base_utility_loss - best)
        gain = [percent(value) for value in share]
    uris = ["none recorded" if pd.isna(uri) else str(uri) for uri in means["model_uri"]]
    return {**columns, "gain": gain, "model": uris}


def _above(score: float, oracle: float, *, relative: bool) -> str:
    """Return the relative risk at one threshold, formatted as the script does."""
    # JavaScript rounds halves up, Python's format to even: round as the script does.
    return (
        f"{np.floor(100 * (score - oracle) / oracle + 0.5):.0f} %"
        if relative and oracle > 0
        else "–"
    )


def _drawn(selections: SelectionsByThreshold) -> str:
    """Return a text on how many configurations the scatter draws."""
    drawn, count = len(drawn_rows(selections)), len(selections.means)
    return "One point per configuration" if drawn == count else f"{drawn} of {count} configurations"


def start_text(selections: SelectionsByThreshold) -> str:
    """Return the given threshold with just enough digits to select the same configurations."""
    return shown_threshold(selections.means["utility_loss"].to_numpy(), selections.threshold)


def _labels(selections: SelectionsByThreshold) -> list[str]:
    """Return the thresholds with the digits to select the same configurations, [k]."""
    losses = np.unique(selections.means["utility_loss"].to_numpy())
    following = np.searchsorted(losses, selections.thresholds, side="right")
    above = [float(losses[at]) if at < len(losses) else np.inf for at in following]
    return [
        threshold_text(float(u), next_one)
        for u, next_one in zip(selections.thresholds, above, strict=True)
    ]


def _start_at(selections: SelectionsByThreshold) -> int:
    """Return the position of the given threshold on the slider."""
    # The last threshold that is not above the highest loss that passed.
    highest = float(selections.means.loc[selections.passed, "utility_loss"].max())
    return int(np.searchsorted(selections.thresholds, highest, side="right")) - 1
