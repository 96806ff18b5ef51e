"""Tables of the report: how their columns are aligned."""

from __future__ import annotations

import re

import pytest

from raydp.analysis.report import markup


@pytest.mark.parametrize(
    "figure", [-0.25, "-0.25", "−3 %", "+0.1", "< 0.1 %", ".5", "-1e-05 to 2", "∞", None, "–", ""]
)
@pytest.mark.parametrize("row", [0, 1, 2])
def test_every_column_of_numbers_is_aligned_alike(figure: str | float | None, row: int) -> None:
    """The sign, the format and the row do not matter.

    A column with a text is aligned as text, with its header.
    """
    cells = [[name, 0.5, 0.5] for name in "abc"]
    cells[row][1:] = [figure, "no answer"]
    drawn = markup.table("Scores", ["Configuration", "score", "reason"], cells)
    for name in ("th", "td"):
        written = re.findall(f"<{name}[^>]*>", drawn)
        assert sum('class="text"' in each for each in written) == {"th": 2 + 3, "td": 3}[name]
