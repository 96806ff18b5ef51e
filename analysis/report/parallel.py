"""Parallel coordinates: a configuration is a line through hyperparameters, utility and score."""

from __future__ import annotations

from html import escape

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.figures.style import drawn_positions
from raydp.analysis.tables.coordinates import UNSET, is_numeric, level_of, varied_fields
from raydp.analysis.tables.thinning import evenly
from raydp.search_spaces.settings import short_names

_AXES = {
    "batch_size": "b",
    "num_steps": "T",
    "learning_rate": "η",
    "utility_loss": "Utility loss",
    "score": "Score",
}
_LOGARITHMIC = ("batch_size", "num_steps", "learning_rate")
_MOST_TICKS = 8
_LABEL = (
    "Every configuration as a line through its hyperparameters, its mean utility loss and its mean "
    "score. The table of configurations holds the figures."
)
_CAPTION = (
    "Drag along an axis to keep only the configurations of that range, on as many axes as you "
    "like: the table of configurations follows. A click on an axis takes its range back. Yellow "
    "lines leak most."
)


def parallel_section() -> str:
    """Return the place where the page's script draws the lines, as HTML."""
    return (
        f'<figure class="wide">\n<div class="scroll" tabindex="0" role="region" aria-label="{escape(_CAPTION)}">'
        f'<div id="parallel" role="img" aria-label="{escape(_LABEL)}"></div></div>\n'
        '<p id="parallel-says" class="soft" aria-live="polite"></p>\n'
        f"<figcaption>{escape(_CAPTION)}</figcaption>\n</figure>"
    )


def parallel_data(means: pd.DataFrame) -> dict[str, object]:
    """Return the data of the lines for the page's script.

    Args:
        means: [m] configuration means.

    Returns:
        "drawn": positions of the configurations that are drawn; "axes": label, values by drawn
        configuration (a logarithm for b, T, η and positive numbers of further fields) and ticks
        with their texts.
    """
    drawn = drawn_positions(means)
    some = means.iloc[drawn]
    axes = {
        name: _axis(some[name].to_numpy(dtype=np.float64), label, logarithmic=name in _LOGARITHMIC)
        for name, label in _AXES.items()
    }
    fields = varied_fields(some)
    names = short_names(list(fields))
    further = [_axis_of_field(values, names[path]) for path, values in fields.items()]
    # Hyperparameters stand left and results right, as lines are read.
    first = [axes.pop(name) for name in _LOGARITHMIC]
    return {"drawn": drawn.tolist(), "axes": [*first, *further, *axes.values()]}


def _axis_of_field(values: list[object], label: str) -> dict[str, object]:
    """Return the axis of a further field: of numbers, or of one place for each value."""
    # A configuration that does not set the field has no place on an axis of numbers.
    if is_numeric(values) and UNSET not in values:
        numbers = np.array(values, dtype=np.float64)
        return _axis(numbers, label, logarithmic=bool(numbers.min() > 0))
    texts = [*map(level_of, values)]
    levels = sorted(set(texts))
    places = [float(levels.index(text)) for text in texts]
    return {
        "label": label,
        "values": places,
        "ticks": [*map(float, range(len(levels)))],
        "texts": levels,
    }


def _axis(numbers: NDArray[np.float64], label: str, *, logarithmic: bool) -> dict[str, object]:
    ticks = np.linspace(numbers.min(), numbers.max(), 5)
    if not logarithmic:
        return {
            "label": label,
            "values": numbers.tolist(),
            "ticks": ticks.tolist(),
            "texts": _texts(ticks),
        }
    # Grids hold few values of b, T and η, so the values themselves are the ticks.
    ticks = np.unique(numbers)
    ticks = ticks[evenly(len(ticks), _MOST_TICKS)]
    logs = {"values": np.log(numbers).tolist(), "ticks": np.log(ticks).tolist()}
    return {"label": label, **logs, "texts": _texts(ticks)}


def _texts(ticks: NDArray[np.float64]) -> list[str]:
    """Return the texts of the ticks, with as many digits as it takes to tell them apart."""
    for digits in range(3, 17):
        texts = [
            str(int(t)) if t == int(t) and abs(t) < 1e7 else f"{t:.{digits}g}"
            for t in ticks.tolist()
        ]
        if len(set(texts)) == len(set(ticks.tolist())):
            break
    return texts
