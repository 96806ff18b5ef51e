"""Tables fit the terminal: no cell and no header is broken over lines, and what is left out is
named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from raydp.system.table_layout import ELSEWHERE, FEW_ROWS, HEADERS, cell_text, lay_out, one_line

WIDTHS = (40, 60, 80, 100, 160, 200)
NAMES = st.lists(
    st.sampled_from([*HEADERS, "seed", "model_uri", "score (vmr_exact)", "reason", "日本"]),
    min_size=1,
    unique=True,
)
VALUES = st.one_of(
    st.none(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_infinity=True),
    st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
    st.text(max_size=30),
    st.just("models:/support-mails-of-2026/36"),
    st.just("The worker died. Its node has left the cluster, and its log says why: out of memory."),
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Rows of the same keys, some of them equal in all rows, and marks."""
    names = draw(NAMES)
    count = draw(st.integers(1, 7))
    columns = {
        name: [draw(VALUES)] * count
        if draw(st.booleans())
        else [draw(VALUES) for _ in range(count)]
        for name in names
    }
    rows = [{name: columns[name][at] for name in names} for at in range(count)]
    marks = (
        {at: "selected" for at in range(count) if draw(st.booleans())}
        if draw(st.booleans())
        else {}
    )
    return rows, marks


@given(tables(), st.integers(40, 200))
def test_every_cell_is_whole_on_one_line_and_a_column_that_is_not_shown_is_named(
    table: tuple[list[dict[str, Any]], dict[int, str]], width: int
) -> None:
    rows, marks = table
    lines = lay_out(rows, marks=marks, width=width)
    words = " ".join(line.text for line in lines)
    _, _, named = words.partition("Left out to fit")
    for name in rows[0]:
        header = HEADERS.get(name, name)
        assert header in words
        cells = [one_line(cell_text(row[name], name)).strip() for row in rows]
        shown = all(any(cell in line.text for line in lines) for cell in cells)
        assert shown or f" {header}" in named
    for line in lines:
        alone = [HEADERS.get(name, name) for name in rows[0]] + [
            cell_text(v, k) for row in rows for k, v in row.items()
        ]
        longest = max(map(cell_len, map(one_line, alone)))
        equal = longest + cell_len("in every row: , ") + max(map(cell_len, alone[: len(rows[0])]))
        assert cell_len(line.text) <= max(width, longest, equal if line.kind == "remark" else 0)


@given(tables())
def test_a_file_gets_every_column_and_one_line_a_row(
    table: tuple[list[dict[str, Any]], dict[int, str]],
) -> None:
    rows, marks = table
    lines = lay_out(rows, marks=marks, width=None)
    assert [line.kind for line in lines] == [
        "header",
        *("marked" if at in marks else "row" for at in range(len(rows))),
    ]
    for name in rows[0]:
        assert HEADERS.get(name, name) in lines[0].text
    for row, line in zip(rows, lines[1:], strict=True):
        assert all(one_line(cell_text(v, k)).strip() in line.text for k, v in row.items())


GRID = [
    {
        "batch_size": b,
        "num_steps": 60,
        "learning_rate": 0.01,
        "model_uri": f"models:/support-mails/{b}",
        "loss x": 1 / b,
    }
    for b in range(1, 9)
]


def texts(**options: Any) -> list[str]:
    return [line.text for line in lay_out(**options)]


def test_columns_that_are_equal_in_all_rows_are_said_once() -> None:
    assert texts(rows=GRID, width=40)[:3] == [
        "in every row: T 60, η 0.01.",
        "b  model_uri                loss x",
        "1  models:/support-mails/1       1",
    ]


def test_a_long_table_leaves_columns_out_and_says_which() -> None:
    rows = [
        {**row, "num_steps": row["batch_size"], "learning_rate": row["batch_size"] / 100}
        for row in GRID
    ]
    *shown, first, second, third = texts(rows=rows, width=40, spare=["num_steps"], keep=["loss x"])
    assert len(rows) > FEW_ROWS
    assert shown[0] == "b     η  model_uri                loss x"
    assert shown[1] == "1  0.01  models:/support-mails/1       1"
    remark = f"{first} {second} {third}"
    assert remark == f"Left out to fit 40 columns: T. {ELSEWHERE}"


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_that_fits_is_the_table_of_a_file(width: int) -> None:
    rows = [{"batch_size": 64, "num_steps": 60}, {"batch_size": 128, "num_steps": 60}]
    assert (
        texts(rows=rows, width=width)
        == texts(rows=rows, width=None)
        == ["  b   T", " 64  60", "128  60"]
    )


def test_few_rows_have_one_field_a_line() -> None:
    assert texts(rows=GRID[:1], marks={0: "selected"}, width=40) == [
        "selected",
        "b          1",
        "T          60",
        "η          0.01",
        "model_uri  models:/support-mails/1",
        "loss x     1",
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("epsilon", "7.991"), ("single_run_epsilon", "7.991"), ("ε at δ=1e-05", "7.991"), ("ε by pld", "7.991"),
        ("epsilon_hat", "7.99"), ("ε̂", "7.99"), ("utility_loss", "7.99"),
    ],
)  # fmt: skip
def test_an_upper_bound_is_rounded_up_and_no_other_figure(name: str, text: str) -> None:
    assert cell_text(7.9901, name) == text
    assert cell_text(8.0, name) == "8"
    assert cell_text(float("inf"), name) == "inf"
    row = [line.text for line in lay_out([{name: 7.9901}], width=None)][-1]
    assert row.strip() == text
