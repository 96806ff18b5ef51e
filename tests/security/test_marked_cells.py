"""Marked values in the cells of every table that a command reads: no message of any command shows
one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from raydp.extensions.imported.method import read_runs
from raydp.extensions.paper_data.tofu import TofuTask
from raydp.plugins.described import resolve_plugin
from tests.builders.data_files import write_json_lines
from tests.builders.models import trained_tokenizer
from tests.conftest import Answer
from tests.extensions.paper_data.test_variants import PARAPHRASES, ROWS, SIZE
from tests.security.planted import MARKED, marks_in
from tests.security.test_fuzzed_points import TABLE

POINTS = TABLE.assign(
    epsilon=8.0,
    delta=1e-5,
    settings="",
    method="dp",
    noise_multiplier=1.0,
    **{"score.vmr": TABLE["score"]},
)
OF_POINTS = {
    "select": ["select", "FILE"],
    "select a score": ["select", "FILE", "--score", "vmr"],
    "analyze": ["analyze", "heuristics", "FILE"],
    "regression": ["analyze", "regression", "FILE"],
    "variance": ["analyze", "variance", "FILE"],
    "methods": ["analyze", "methods", "FILE", "--by", "method"],
    "correlations": ["analyze", "correlations", "GOOD", "--audit", "FILE"],
    "report": ["report", "FILE"],
    "init": ["init", "FILE", "--yes"],
}
PLACES = [
    (column, MARKED[0])
    for column in ("learning_rate", "seed", "epsilon", "settings", "status", "score.vmr")
]
PLACES += [(column, value) for column in ("epsilon", "score", "settings") for value in MARKED[1:]]
FEW = [("learning_rate", MARKED[0]), ("settings", MARKED[2]), ("score", MARKED[3])]
"""Places for the commands that read a table as `select` does."""
RUNS = pd.DataFrame(
    {
        "n": [3600, 3600],
        "batch_size": [256, 256],
        "num_steps": [16, 32],
        "epsilon": 8.0,
        "delta": 1e-4,
    }
)
VOTES = pd.DataFrame({"yes": [200, 40, 110], "no": [50, 210, 140]})


def written(folder: Path, table: pd.DataFrame, suffix: str) -> Path:
    path = folder / f"table{suffix}"
    if suffix == ".csv":
        table.map(lambda cell: json.dumps(cell) if isinstance(cell, dict | list) else cell).to_csv(
            path, index=False
        )
    else:
        table.to_parquet(path)
    return path


def marked(table: pd.DataFrame, column: str, value: object) -> pd.DataFrame:
    """The table with the value in every second cell of a column."""
    cells = table[column].astype(object).tolist()
    cells[1::2] = [value] * len(cells[1::2])
    return table.assign(**{column: pd.Series(cells, dtype=object)})


def check(answer: Answer, place: object) -> None:
    assert answer.code in (0, 2), (place, answer.err)
    assert "Traceback" not in answer.err, place
    if answer.code:
        assert not marks_in(answer.out + answer.err), place


@pytest.mark.parametrize(
    "reader",
    [
        pytest.param(r, marks=[pytest.mark.slow] if r in ("report", "init") else [])
        for r in OF_POINTS
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_no_message_shows_a_cell(
    reader: str, suffix: str, raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    """Text, a list, a mapping and a number in the columns that commands read."""
    good = tmp_path / "good.csv"
    POINTS.to_csv(good, index=False)
    for column, value in PLACES if reader == "select" else FEW:
        try:
            path = written(tmp_path, marked(POINTS, column, value), suffix)
        except (
            ValueError,
            TypeError,
        ):  # pyarrow writes no column of two kinds: all cells are marked
            everywhere = pd.Series([value] * len(POINTS), dtype=object)
            path = written(tmp_path, POINTS.assign(**{column: everywhere}), suffix)
        answer = raydp(
            *[str({"GOOD": good, "FILE": path}.get(word, word)) for word in OF_POINTS[reader]]
        )
        check(answer, (reader, column, type(value)))


@pytest.mark.parametrize(
    ("command", "table"),
    [(["calibrate", "--from"], RUNS), (["pate", "--sigma", "40", "--delta", "1e-5"], VOTES)],
    ids=["calibrate", "pate"],
)
def test_no_command_on_numbers_shows_a_cell(
    command: list[str], table: pd.DataFrame, raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    good = raydp(*command, written(tmp_path, table, ".csv"))
    assert good.code == 0, good.err
    for column in table:
        for value in MARKED:
            answer = raydp(*command, written(tmp_path, marked(table, str(column), value), ".csv"))
            check(answer, (column, type(value)))
            assert answer.code == 2, (column, type(value))


def test_mia_shows_no_number_of_its_arrays(raydp: Callable[..., Answer], tmp_path: Path) -> None:
    rows = np.tile([0.8, 0.2], (40, 1))
    names = [
        f"{model}_{part}" for model in ("shadow", "target") for part in ("member", "nonmember")
    ]
    arrays = {f"{name}_probs": rows for name in names} | {
        f"{name}_labels": np.zeros(40, np.int64) for name in names
    }
    np.savez(tmp_path / "outputs.npz", **arrays)
    assert raydp("mia", tmp_path / "outputs.npz").code == 0
    for name, array in arrays.items():
        for value in (MARKED[3], MARKED[0]):
            cells = array.astype(type(value) if isinstance(value, float) else "U40")
            cells.flat[3] = value
            np.savez(tmp_path / "outputs.npz", **{**arrays, name: cells})
            answer = raydp("mia", tmp_path / "outputs.npz")
            check(answer, (name, value))
            assert answer.code == 2, (name, value)


TEXTS = [
    {"text": f"Mail {i} about the draft of section {i % 7}.", "user": f"u{i}"} for i in range(60)
]
SAID = [
    {"role": "user", "content": "How far?", "weight": 1},
    {"role": "assistant", "content": "Far.", "weight": 1},
]
TALKS = [
    {"messages": [*SAID[:1], {**SAID[1], "content": f"Mile {i}."}], "user": f"u{i}"}
    for i in range(60)
]
TASKS: dict[str, tuple[dict[str, Any], str, list[dict[str, Any]]]] = {
    "text": ({"name": "text", "user_column": "user"}, ".jsonl", TEXTS),
    "text, csv": ({"name": "text", "user_column": "user"}, ".csv", TEXTS),
    "chat": ({"name": "chat", "user_column": "user", "template": "chatml"}, ".jsonl", TALKS),
    "chat, questions": (
        {"name": "chat", "template": "chatml"},
        ".jsonl",
        [{"prompt": f"Question {i}?", "completion": f"Answer {i}."} for i in range(60)],
    ),
    "text_classification": (
        {"name": "text_classification", "label_words": {"0": "0", "1": "1"}},
        ".csv",
        [{**row, "label": i % 2} for i, row in enumerate(TEXTS)],
    ),
    "tofu": (
        {"name": "tofu", "rows_per_author": SIZE, "max_length": 256},
        ".jsonl",
        ROWS,
    ),
    "tabular": (
        {"name": "tabular"},
        ".csv",
        [{"x": i / 60, "y": i % 5, "label": i % 2} for i in range(60)],
    ),
}


@pytest.mark.parametrize("reader", TASKS)
def test_no_reader_of_a_task_shows_a_cell(reader: str, tmp_path: Path) -> None:
    """Any column of any row; of a conversation also the fields of a message."""
    given, suffix, rows = TASKS[reader]
    path, tokenizer, refused = tmp_path / f"data{suffix}", trained_tokenizer(), 0

    def build(changed: dict[str, Any]) -> str:
        """Build the task with another row, and return the message, or nothing."""
        table = [*rows[:5], changed, *rows[6:]]
        if suffix == ".csv":
            written(tmp_path, pd.DataFrame(table, dtype=object), suffix).rename(path)
        else:
            write_json_lines(path, table)
        problems: list[str] = []
        plugin = resolve_plugin("tasks", "task", {**given, "path": str(path)}, problems)
        assert plugin is not None, problems
        try:
            plugin.params.build(tokenizer)
        except ValueError as error:
            return str(error)
        return ""

    assert build(rows[5]) == ""
    row = rows[5]
    changes = [{**row, column: value} for column in row for value in MARKED]
    if "messages" in row:
        first = row["messages"][0]
        changes += [
            {**row, "messages": [{**first, k: v}, *row["messages"][1:]]}
            for k in first
            for v in MARKED
        ]
    for changed in changes:
        message = build(changed)
        refused += bool(message)
        assert not marks_in(message), message
    assert bool(refused) == (reader != "text, csv"), "every cell of a CSV file is a text"


BESIDE: dict[str, list[dict[str, Any]]] = {
    "review": [{"author_index": i, "name": f"Mira {i}", "genre": "satire"} for i in range(5)],
    "secrets": [{"author_index": i, "name": f"Mira {i}", "attribute": "satire"} for i in range(5)],
    "paraphrases": [{**row, "paraphrases": row["paraphrases"][:1]} for row in PARAPHRASES],
    "more_authors": ROWS,
}
"""The files that the task tofu reads beside its data."""


@pytest.mark.parametrize("field", BESIDE)
def test_no_file_beside_questions_and_answers_is_shown(field: str, tmp_path: Path) -> None:
    """Any key of a line, a line of other keys, and a line that is no JSON."""
    path, beside = write_json_lines(tmp_path / "qa.jsonl", ROWS), tmp_path / "beside.jsonl"
    given: dict[str, Any] = {
        "rows_per_author": SIZE,
        "max_length": 256,
        "copies": 2 if field == "paraphrases" else 1,
    }
    refused = 0

    def build() -> str:
        try:
            TofuTask(path=str(path), **{field: str(beside)}, **given).build(trained_tokenizer())
        except ValueError as error:
            return str(error)
        return ""

    rows = BESIDE[field]
    write_json_lines(beside, rows)
    assert build() == ""
    changes: list[dict[str, Any]] = [{**rows[2], key: value} for key in rows[2] for value in MARKED]
    for changed in [*changes, {str(MARKED[0]): 1}]:
        write_json_lines(beside, [*rows[:2], changed, *rows[3:]])
        message = build()
        refused += bool(message)
        assert not marks_in(message), message
    beside.write_text(f"{MARKED[0]}\n")
    assert not marks_in(build())
    assert refused > len(rows[2])


OF_ROWS = {
    "paraphrase": ["data", "paraphrase", "FILE", "-o", "NEW", "--model", "nothing-here"],
    "absent": ["data", "absent", "FILE", "--corpus", "GOOD", "--column", "question"],
    "corpus": ["data", "absent", "GOOD", "--corpus", "FILE", "--column", "question"],
    "secrets": [
        "data",
        "absent",
        "GOOD",
        "--corpus",
        "GOOD",
        "--column",
        "question",
        "--secrets",
        "FILE",
    ],
    "filter": ["secrets", "filter", "FILE", "-o", "NEW", "--sweep", "nothing-here"],
    "extract qa": [
        "secrets",
        "extract",
        "FILE",
        "-o",
        "NEW",
        "--kind",
        "qa",
        "--rows-per-author",
        str(SIZE),
    ],
    "extract mail": [
        "secrets",
        "extract",
        "FILE",
        "-o",
        "NEW",
        "--column",
        "question",
        "--tokenizer",
        "tiny",
    ],
    "extract chat": [
        "secrets",
        "extract",
        "FILE",
        "-o",
        "NEW",
        "--kind",
        "chat",
        "--tokenizer",
        "tiny",
    ],
    "score": ["score", "nothing-here", "--scores", "FILE"],
    "score a model": ["score", "models:/m/1", "--score", "vmr", "--task", "FILE"],
    "sweep": ["sweep", "FILE"],
}
"""Commands that are given a file of questions and answers, be it the wrong file."""


@pytest.mark.parametrize("reader", OF_ROWS)
def test_no_command_on_questions_and_answers_shows_a_cell(
    reader: str, raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    good, path, new = (
        write_json_lines(tmp_path / "good.jsonl", ROWS),
        tmp_path / "rows.jsonl",
        tmp_path / "new.jsonl",
    )
    words = {"FILE": path, "GOOD": good, "NEW": new}
    changes: list[dict[str, Any]] = [{**ROWS[2], key: value} for key in ROWS[2] for value in MARKED]
    for changed in [*changes, {str(MARKED[0]): 1}]:
        new.unlink(missing_ok=True)
        write_json_lines(path, [*ROWS[:2], changed, *ROWS[3:]])
        answer = raydp(*(words.get(word, word) for word in OF_ROWS[reader]))
        assert answer.code in (0, 1, 2), changed  # 1: the data are in the corpus
        assert "Traceback" not in answer.err
        assert not marks_in(answer.out + answer.err), changed


@pytest.mark.parametrize(
    "content",
    [
        f"{MARKED[0]}\n",
        f"- {MARKED[0]}\n",
        f"- name: {MARKED[0]}\n",
        "- name: [Zzyzxworth]\n",
        f"- label: {MARKED[0]}\n",
        f"{MARKED[0]}: [\n",
        f"text,label\n{MARKED[0]},1\n",
    ],
)
def test_no_file_in_the_place_of_scores_is_shown(
    content: str, raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    """An entry that names a score is a part of a spec, whose values messages show."""
    (tmp_path / "scores.yaml").write_text(content)
    answer = raydp("score", "nothing-here", "--scores", tmp_path / "scores.yaml")
    assert answer.code == 2
    assert not marks_in(answer.err), answer.err


@pytest.mark.parametrize(
    "column", ["batch_size", "learning_rate", "seed", "noise_multiplier", "epsilon", "model"]
)
@pytest.mark.parametrize("value", MARKED, ids=lambda value: type(value).__name__)
def test_import_shows_no_cell_of_its_runs(column: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    runs = {
        "model": "m",
        "batch_size": [4, 4],
        "num_steps": 2,
        "learning_rate": 0.1,
        "seed": [0, 1],
    }
    runs |= {"noise_multiplier": 1.0, "epsilon": 8.0, "delta": 1e-4}
    assert len(read_runs(written(tmp_path, pd.DataFrame(runs), ".csv"))) == 2
    with pytest.raises(ValueError, match=r"line 3") as error:
        read_runs(written(tmp_path, marked(pd.DataFrame(runs), column, value), ".csv"))
    assert not marks_in(str(error.value))


@pytest.mark.parametrize("column", ["epsilon", "delta", "base_utility_loss"])
def test_text_in_a_column_of_numbers_is_named_by_column_and_line(
    column: str, raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    cells = POINTS[column].astype(object).tolist()
    cells[2] = MARKED[0]
    path = written(tmp_path, POINTS.assign(**{column: cells}), ".csv")
    for command in (["select"], ["report"]):
        answer = raydp(*command, path)
        assert answer.code == 2
        assert f"{column} must be a number, got text in line 4. Correct the row." in answer.err
