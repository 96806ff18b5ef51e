"""Files of points that somebody damaged: every command works or says what to change, with exit code
0 or 2."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Answer
from tests.marks import slow_after
from tests.security.fuzzing import FUZZ_SECONDS, Clock, assert_answers, fuzzed

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
TABLE = pd.DataFrame(
    [
        (b, t, rate, seed, 2 - b / 400 - t / 300 + seed / 50, b * t * rate / 20 + seed / 30)
        for b in (32, 64)
        for t in (20, 40)
        for rate in (0.01, 0.02)
        for seed in (0, 1)
    ],
    columns=COLUMNS,
).assign(status="finished", run_id=[f"r{i}" for i in range(16)], base_utility_loss=2.5)
CSV = TABLE.to_csv(index=False).encode()
COMMANDS = [
    ["select"],
    ["analyze", "heuristics"],
    ["analyze", "regression"],
    ["analyze", "variance"],
    ["analyze", "risk"],
    ["report"],
]
CELLS = [
    "", "NaN", "inf", "-inf", "1e400", "-0", "0", "9" * 400, "1" * 20, "0x10", "True", "abc", "'", '"', '""', "\0",
    "\r", "\x1b[2J", "é", "\ud7ff", "1_000", "1,5", " 32 ", "32.5", "1e-400", "None", "=1+1", "[1, 2]",
    "x" * 200_000,
]  # fmt: skip
STAMP = pd.Timestamp("2020-01-01", tz="UTC")


def parquet(table: pd.DataFrame = TABLE) -> bytes:
    stream = io.BytesIO()
    table.to_parquet(stream, index=False)
    return stream.getvalue()


PARQUET = parquet()


@st.composite
def damaged_csv(draw: st.DrawFn) -> bytes:
    """The real table with cells, rows, columns or bytes changed."""
    rows = [line.split(",") for line in CSV.decode().splitlines()]
    for _ in range(draw(st.integers(1, 3))):
        row = draw(st.integers(0, len(rows) - 1))
        column = draw(st.integers(0, max(0, len(rows[row]) - 1)))
        kind = draw(
            st.sampled_from(
                ["cell", "cell", "cell", "drop", "add", "twice", "cut", "column", "header"]
            )
        )
        if kind == "cell" and rows[row]:
            rows[row][column] = draw(st.sampled_from(CELLS) | st.text(max_size=8))
        elif kind == "drop" and rows[row]:
            del rows[row][column]
        elif kind == "add":
            rows[row].append(draw(st.sampled_from(CELLS)))
        elif kind == "twice":
            rows.insert(row, rows[row])
        elif kind == "cut":
            rows = rows[: row + 1]
        elif kind == "column":
            value = draw(st.sampled_from(CELLS))
            rows = [
                rows[0],
                *([value if i == column else cell for i, cell in enumerate(r)] for r in rows[1:]),
            ]
        else:
            rows[0] = (
                [rows[0][min(column, len(rows[0]) - 1)], *rows[0]]
                if rows[0]
                else ["score", "score"]
            )
    content = "\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass")
    return _with_other_bytes(draw, content) if draw(st.integers(0, 3)) == 0 else content


@st.composite
def damaged_parquet(draw: st.DrawFn) -> bytes:
    """The real file with bytes changed or missing."""
    if draw(st.booleans()):
        return PARQUET[: draw(st.integers(0, len(PARQUET)))]
    return _with_other_bytes(draw, PARQUET)


@st.composite
def strange_parquet(draw: st.DrawFn) -> bytes:
    """Whole files that hold what no points table holds."""
    table = TABLE.astype(object)
    for _ in range(draw(st.integers(1, 2))):
        column = draw(st.sampled_from([*COLUMNS, "status", "base_utility_loss"]))
        value = draw(
            st.sampled_from(
                [None, "x", b"\xff", 2**62, -1, 1e308, float("nan"), True, [1], {"a": 1}, STAMP]
            )
        )
        table[column] = pd.Series([value] * len(table), dtype=object)
    try:
        return parquet(table)
    except (ValueError, TypeError):  # pyarrow writes no such column
        return b""


def _with_other_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        if changed:
            changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    return bytes(changed)


def fuzz(
    raydp: Callable[..., Answer],
    folder: Path,
    suffix: str,
    content: st.SearchStrategy[bytes],
    n: int,
) -> None:
    clock = Clock(FUZZ_SECONDS * max(1, n / 100))

    @fuzzed(n)
    @given(content=content, command=st.sampled_from(COMMANDS))
    def one(content: bytes, command: list[str]) -> None:
        if clock.over:
            return
        path = folder / f"points{suffix}"
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = raydp(*command, path)
        assert_answers(answer.code, answer.out, answer.err, (command, content[:300]))

    one()


KINDS = {
    "bytes as CSV": (".csv", st.binary(max_size=300)),
    "text as CSV": (".csv", st.text(max_size=200).map(lambda t: t.encode("utf-8", "ignore"))),
    "a damaged CSV": (".csv", damaged_csv()),
    "bytes as Parquet": (".parquet", st.binary(max_size=300).map(lambda b: b"PAR1" + b + b"PAR1")),
    "a damaged Parquet": (".parquet", damaged_parquet()),
    "a strange Parquet": (".parquet", strange_parquet()),
}


@pytest.mark.parametrize("kind", slow_after(1, KINDS))
def test_no_file_of_points_ends_in_a_traceback(
    kind: str, raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    fuzz(raydp, tmp_path, *KINDS[kind], 30)


def test_a_parquet_that_is_damaged_in_mid_file_is_bad_input(
    raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    path = tmp_path / "points.parquet"
    path.write_bytes(PARQUET[:60] + bytes(200) + PARQUET[260:])
    answer = raydp("select", path)
    assert answer.code == 2
    assert "points must be a Parquet file" in answer.err


def test_a_column_that_is_there_twice_is_refused(
    raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    import pyarrow
    from pyarrow import parquet as files

    table = pyarrow.Table.from_pandas(TABLE, preserve_index=False).replace_schema_metadata()
    files.write_table(table.append_column("score", table["score"]), tmp_path / "points.parquet")
    answer = raydp("select", tmp_path / "points.parquet")
    assert answer.code == 2
    assert "points must" in answer.err
