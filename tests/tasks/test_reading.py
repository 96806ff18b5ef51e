from __future__ import annotations

import csv
import gzip
import re
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from raydp.tasks.row_files import read_column, read_rows

TEXTS = [
    "first, with a comma",
    'a "quoted" word',
    "two\nlines\n",
    " blanks ",
    "x" * 200_000,
    "ø 中 🙂",
]


def write_csv(path, texts):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "content"])
        writer.writerows(enumerate(texts))


def test_every_layout_gives_the_same_texts(tmp_path, write_jsonl):
    rows = [{"content": text, "other": 1} for text in TEXTS]
    write_csv(tmp_path / "mails.csv", TEXTS)
    (tmp_path / "mails.csv.gz").write_bytes(gzip.compress((tmp_path / "mails.csv").read_bytes()))
    paths = [write_jsonl("m.jsonl", rows), write_jsonl("m.jsonl.gz", rows), tmp_path / "mails.csv"]
    for path in [*paths, tmp_path / "mails.csv.gz"]:
        assert read_column(path, "content", "task.path") == TEXTS


def test_a_text_file_has_a_row_per_line(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("one\n\n  two\r\nthree", encoding="utf-8")
    assert list(read_rows(path, "task.path")) == [
        (1, {"text": "one"}),
        (3, {"text": "  two"}),
        (4, {"text": "three"}),
    ]


def test_the_limit_of_the_csv_module_is_restored(tmp_path):
    before = csv.field_size_limit()
    write_csv(tmp_path / "long.csv", ["x" * (before + 1)])
    read_column(tmp_path / "long.csv", "content", "task.path")
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            b'{"content": "ok"}\n{"content": private\n',
            r"task\.path must hold one JSON object.*a\.jsonl, line 2",
        ),
        ("a.jsonl", b'{"content": "ok"}\n\n["private"]\n', r"got a list in a\.jsonl, line 3"),
        (
            "a.jsonl",
            b'{"content": 7, "x": "private"}\n',
            r"string 'content'.*got a number in a\.jsonl, line 1",
        ),
        (
            "a.jsonl",
            b'{"contents": "private"}\n',
            r"string 'content'.*only 1 column of other names in a\.jsonl, line 1",
        ),
        ("a.csv", b"id,content\n1,private,3\n", r"as many values.*a\.csv, line 2"),
        ("a.csv", b"id,content\n1\n", r"as many values.*a\.csv, line 2"),
        (
            "a.csv",
            b'id,content\n1,"private',
            r"a quote that is never closed in a\.csv, in the row .* in line 2\.",
        ),
        (
            "a.csv",
            b'id,content\n1,x\n\n"1\n2",x\n2,"private\n3,y\n',
            r"never closed in a\.csv, .* in line 6\.",
        ),
        (
            "a.csv",
            b'"id,content\n1,private\n',
            r"never closed in a\.csv, in the row that begins in line 1\.",
        ),
        (
            "a.csv",
            b'id,content\n1,"private\n2,x\n3,"y"\n',
            r"in a\.csv, a row from line 2 to line 4\. Correct",
        ),
        (
            "a.csv",
            b'id,content\n1,"private\n2,"\n3,x,"\n"\n',
            r"as many values.*a row from line 4 to line 5",
        ),
        (
            "a.jsonl",
            b'{"content": "x"}\n{"content": "private", "content": 1}',
            r"got content twice in a\.jsonl, line 2",
        ),
        (
            "a.jsonl",
            b'{"content": {"private": 1, "private": 2}}',
            r"got 1 column of other names twice in a\.jsonl",
        ),
        (
            "a.json",
            b'[{"content": "private", "content": "x"}]',
            r"got content twice in a\.json\. Remove one",
        ),
        ("a.jsonl", b'{"content": "\xff private"}\n', r"UTF-8 text.*a\.jsonl"),
        ("a.jsonl.gz", b'{"content": "private"}\n', r"whole gzip file, got a\.jsonl\.gz"),
        (
            "a.jsonl.gz",
            gzip.compress(b'{"content": "private"}\n', mtime=0)[:-9],
            r"whole gzip file, got a\.jsonl\.gz",
        ),
        (
            "a.jsonl.gz",
            gzip.compress(b"private", mtime=0)[:10] + b"\xff" * 40,
            r"whole gzip file, got a\.jsonl\.gz",
        ),
        ("a.jsonl", b"[" * 200_000, r"got too deep a nesting in a\.jsonl, line 1"),
        (
            "a.jsonl",
            b'{"content": ' + b"9" * 5000 + b"}",
            r"got a number of too many digits in a\.jsonl, line 1",
        ),
        (
            "a.jsonl",
            b'{"content": "private \\ud800"}',
            r"half a surrogate pair.* in a\.jsonl, line 1",
        ),
        ("a.json", b'[{"content": "private"},]', r"got a list that is damaged in a\.json"),
        ("a.json", b'\n [{"content": "x"}, "private"]', r"got text in a\.json, entry 2"),
        (
            "a.json",
            b'[{"content": "private \\ud800"}]',
            r"half a surrogate pair.* in a\.json, entry 1",
        ),
        ("a.json", b'{"content": private}', r"one JSON object per line.* in a\.json, line 1"),
        ("a.feather", b"private", r"end in one of \.jsonl.*got 'a\.feather'"),
        ("a.parquet", b"private", r"whole Parquet file, got '.*a\.parquet'"),
    ],
)
def test_a_malformed_file_is_named_with_its_line_and_without_its_text(
    tmp_path, name, content, message
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_column(tmp_path / name, "content", "task.path")
    assert "private" not in str(caught.value)


ODD = {
    "repeated": lambda: pa.StructArray.from_arrays([pa.array([1, 2])] * 2, names=["x", "x"]),
    "date": lambda: pa.array([2**30, 2], pa.date32()),
    "time zone": lambda: pa.array([1, 2], pa.timestamp("us", tz="Foo/Bar")),
    "decimal": lambda: pa.array([Decimal("1.1"), None]),
    "dictionary": lambda: pa.array(["x", "y"]).dictionary_encode(),
}


@pytest.mark.parametrize("odd", ODD)
def test_reader_accepts_unreadable_column_that_is_not_needed(tmp_path: Path, odd: str) -> None:
    table = pa.Table.from_arrays(
        [pa.array(["a", "b"]), ODD[odd](), ODD[odd]()], names=["text", "odd", "odd"]
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    assert read_column(tmp_path / "a.parquet", "text", "task.path") == ["a", "b"]
    with pytest.raises(
        ValueError, match=r"string 'odd' .* got two columns of this name in a\.parquet, line 1"
    ):
        read_column(tmp_path / "a.parquet", "odd", "task.path")


def test_reader_names_needed_column_that_python_cannot_hold(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"text": ODD["date"]()}), tmp_path / "a.parquet")
    with pytest.raises(
        ValueError,
        match=r"string 'text' .* got a value that Python cannot hold in a\.parquet, line 1",
    ):
        read_column(tmp_path / "a.parquet", "text", "task.path")


def test_a_missing_file_is_an_error_of_its_field(tmp_path):
    with pytest.raises(
        ValueError, match=r"task\.secrets must be an existing file, got '.*nowhere\.jsonl'"
    ):
        read_column(tmp_path / "nowhere.jsonl", "content", "task.secrets")


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (
            {"body": "private"},
            r"task\.column must be a column of the file, got 'content'\. The file has body, id\. Choose one\.",
        ),
        (
            {"body": "private", "content": "ok"},
            r"task\.path must have a string 'content' .* line 2\. Correct the row",
        ),
    ],
)
def test_a_column_that_no_row_has_is_a_mistake_in_the_spec_and_else_in_the_row(
    write_jsonl, first, message
):
    path = write_jsonl("a.jsonl", [first, {"id": "private"}])
    with pytest.raises(ValueError, match=message) as caught:
        read_column(path, "content", "task.path", column_field="task.column")
    assert "private" not in str(caught.value)


def test_a_first_row_without_the_column_is_named_where_others_have_it(write_jsonl):
    path = write_jsonl("a.jsonl", [{"id": "x"}, {"content": "y"}])
    with pytest.raises(ValueError, match=r"got only id in a\.jsonl, line 1"):
        read_column(path, "content", "task.path", column_field="task.column")


def test_columns_of_unusual_names_are_counted_and_not_shown(write_jsonl):
    path = write_jsonl("a.jsonl", [{f"column-{k}": "x" for k in range(1000)}])
    with pytest.raises(
        ValueError, match=r"got 'content'\. The file has 1000 columns of other names"
    ):
        read_column(path, "content", "task.path", column_field="task.column")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            gzip.compress(b'{"text": "Nora"}\n', mtime=0),
            "got gzip in rows.jsonl. Add .gz to the file's name",
        ),
        (
            b'{"text": "a"}\n{"text": "Nora is',
            "got an object without its end in rows.jsonl, line 2",
        ),
        (b'{"text": "a"}\n{"text": "Nora",', "got an object without its end in rows.jsonl, line 2"),
        (
            b'{"text": "%s"}' % (b"N" * 5_000_000),
            "at most 4194304 characters, got a longer one in rows.jsonl, line 1",
        ),
    ],
)
def test_a_file_of_another_type_than_its_suffix_is_named_with_its_line(
    tmp_path: Path, content, message: str
) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        list(read_rows(tmp_path / "rows.jsonl", "task.path"))
    assert "Nora" not in str(error.value)
