"""Marked values in the cells of every table that a command reads: no message of any command shows one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import Answer
from tests.security.planted import MARKED, marks_in
from tests.security.test_fuzzed_points import TABLE

POINTS = TABLE.assign(
    epsilon=8.0, delta=1e-5, settings="", method="dp", noise_multiplier=1.0, **{"score.vmr": TABLE["score"]}
)
READERS = {
    "select": ["select", "FILE"],
    "select a score": ["select", "FILE", "--score", "vmr"],
    "analyze": ["analyze", "heuristics", "FILE"],
    "regression": ["analyze", "regression", "FILE"],
    "variance": ["analyze", "variance", "FILE"],
    "methods": ["analyze", "methods", "FILE", "--by", "method"],
    "correlations": ["analyze", "correlations", "GOOD", "--audit", "FILE"],
    "report": ["report", "FILE"],
    "calibrate": ["calibrate", "--from", "FILE"],
    "pate": ["pate", "FILE"],
    "init": ["init", "FILE", "--yes"],
    "mia": ["mia", "FILE"],
    "import": ["import", "SPEC", "FILE"],
}


def written(folder: Path, table: pd.DataFrame, suffix: str) -> Path:
    path = folder / f"table{suffix}"
    if suffix == ".csv":
        table.map(lambda cell: json.dumps(cell) if isinstance(cell, dict | list) else cell).to_csv(path, index=False)
    else:
        table.to_parquet(path)
    return path


NEAR = {"select", "analyze", "calibrate", "pate", "mia", "import"}
PLACES = [(column, MARKED[0]) for column in ("learning_rate", "seed", "epsilon", "settings", "status", "score.vmr")]
PLACES += [(column, value) for column in ("epsilon", "score", "settings") for value in MARKED[1:]]


@pytest.mark.parametrize("reader", [pytest.param(r, marks=[] if r in NEAR else pytest.mark.slow) for r in READERS])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_no_message_shows_a_cell(reader: str, suffix: str, raydp: Callable[..., Answer], tmp_path: Path) -> None:
    """Text, a list, a mapping and a number in the columns that commands read."""
    good, spec = tmp_path / "good.csv", tmp_path / "spec.yaml"
    POINTS.to_csv(good, index=False)
    spec.write_text("name: other\n")
    places = {"GOOD": good, "SPEC": spec}
    for column, value in PLACES:
        cells = POINTS[column].astype(object).tolist()
        cells[1::2] = [value] * len(cells[1::2])
        try:
            path = written(tmp_path, POINTS.assign(**{column: pd.Series(cells, dtype=object)}), suffix)
        except (ValueError, TypeError):  # pyarrow writes no column of two kinds: all cells are marked
            everywhere = pd.Series([value] * len(cells), dtype=object)
            path = written(tmp_path, POINTS.assign(**{column: everywhere}), suffix)
        answer = raydp(*[str({**places, "FILE": path}.get(word, word)) for word in READERS[reader]])
        assert answer.code in (0, 2), (reader, column, type(value), answer.err)
        assert "Traceback" not in answer.err, (reader, column, type(value))
        if answer.code:
            assert not marks_in(answer.out + answer.err), (reader, column, type(value))


@pytest.mark.parametrize("column", ["epsilon", "delta", "base_utility_loss"])
def test_text_in_a_column_of_numbers_is_named_by_column_and_row(column: str, raydp, tmp_path: Path) -> None:
    cells = POINTS[column].astype(object).tolist()
    cells[2] = MARKED[0]
    path = written(tmp_path, POINTS.assign(**{column: cells}), ".csv")
    for command in (["select"], ["report"]):
        answer = raydp(*command, path)
        assert answer.code == 2
        assert f"{column} must be a number, got text in row 3. Correct the row." in answer.err
