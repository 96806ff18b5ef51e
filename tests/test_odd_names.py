"""Any name that a file system allows works for data, storage, stores and output, or is refused at
once."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyarrow import fs
from rich.console import Console
from sqlalchemy import make_url

from raydp.analysis import load_points, save_points
from raydp.spec.reading import load_spec
from raydp.sweep.planning.start import check_storage
from raydp.sweep.store.folder import SweepFolder
from raydp.system.files import write_atomically
from raydp.system.output import WordConsole, stderr, stdout
from raydp.tasks.row_files import is_file_of_rows, read_rows
from raydp.tasks.text.any_text import TextTask
from raydp.tracking.address import check_store, database_of
from raydp.tracking.store import artifact_bytes, open_experiment, open_store
from tests.builders.models import trained_tokenizer
from tests.builders.specs import small_spec

NAMES = [
    "a b",
    "a#b",
    "it's",
    'say "x"',
    "a:b",
    "a@b",
    "a%20b",
    "100%",
    "a?b",
    "a&b=c",
    "$(x)",
    "a\nb",
    "~",
    "-n",
    "é",
    "*",
    "a.",
    "a ",
    "http:",
    "[red]b",
]
MISREAD = {"a%20b", "100%", "a?b", "a\nb"}
"""Names that SQLAlchemy or MLflow would read as a part of a URI."""
POINTS = pd.DataFrame(
    {
        "batch_size": [4],
        "num_steps": 2,
        "learning_rate": 0.1,
        "seed": 0,
        "utility_loss": 1.0,
        "score": [0.25],
    }
)
NOT_UTF8 = os.fsdecode(b"a\xff")
LONGEST = 255
"""Bytes of the longest name that file systems allow."""
every_name = pytest.mark.parametrize("name", NAMES)


@pytest.mark.parametrize("name", [*NAMES, NOT_UTF8])
def test_rows_are_read_from_files_of_any_name(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    rows = [{"text": f"Mail {i} about the draft."} for i in range(30)]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / f"{name}.jsonl").write_text(lines)
    (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    with (folder / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([row["text"]] for row in rows)])
    with (folder / f"{name}.parquet").open("wb") as stream:
        pd.DataFrame(rows).to_parquet(stream)
    for suffix in ("jsonl", "jsonl.gz", "csv", "parquet"):
        path = str(folder / f"{name}.{suffix}")
        assert is_file_of_rows(path)
        assert [dict(row) for _, row in read_rows(path, "task.path")] == rows
    assert TextTask(path=path).build(trained_tokenizer()).facts().num_examples > 20


@every_name
def test_a_sweep_is_kept_and_its_points_are_read_in_a_folder_of_any_name(
    name: str, tmp_path: Path
) -> None:
    storage = tmp_path / name
    spec = load_spec(small_spec(tmp_path, storage=str(storage)))
    path = storage / spec.name
    path.mkdir(parents=True)
    local, inside = fs.FileSystem.from_uri(str(path))  # as Ray reads its storage path
    assert isinstance(local, fs.LocalFileSystem)
    assert inside == str(path)
    write_atomically(path / "spec.yaml", b"name: other\n")
    assert SweepFolder.is_at(path)
    points = path / "points.csv"
    points.write_text("batch_size,num_steps,learning_rate,seed,utility_loss,score\n4,2,0.1,0,1,1\n")
    assert len(load_points(points)) == 1


@every_name
def test_a_store_of_any_name_is_the_file_that_it_names_or_is_refused(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).mkdir()
    uri = f"sqlite:///{tmp_path}/{name}/{name}.db"
    if name in MISREAD:
        with pytest.raises(
            ValueError, match=r"tracking\.uri must be a file whose absolute path holds no %"
        ):
            check_store(uri)
        return
    check_store(uri)
    assert make_url(uri).database == str(database_of(uri))


@pytest.mark.slow
def test_artifacts_are_found_beside_a_store_of_an_odd_name(tmp_path: Path) -> None:
    """All characters at once, because a new store takes seconds."""
    folder = tmp_path / "".join(name for name in NAMES if name not in MISREAD)
    folder.mkdir()
    uri = f"sqlite:///{folder}/it's #1.db"
    store = open_store(uri, create=True)
    run = store.client.create_run(open_experiment(store, "odd"))
    store.client.log_text(run.info.run_id, "content", "kept.txt")
    again = open_store(uri)
    location = again.client.get_run(run.info.run_id).info.artifact_uri
    assert artifact_bytes(again, location, "kept.txt") == b"content"
    assert {path.name for path in folder.iterdir()} >= {"it's #1.db", "mlruns"}
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize("name", [*NAMES, NOT_UTF8])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_is_written_and_read_under_any_name(
    name: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pandas would take some relative names for addresses."""
    monkeypatch.chdir(tmp_path)
    save_points(POINTS, f"{name}{suffix}")
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}{suffix}"]
    assert load_points(f"{name}{suffix}")["score"].tolist() == POINTS["score"].tolist()


@pytest.mark.parametrize("name", [*NAMES, "[/red]"])
@pytest.mark.parametrize("terminal", [False, True])
def test_a_name_is_shown_as_it_is(name: str, terminal: bool) -> None:
    """Rich reads brackets as markup, and stops at those that close nothing."""
    options: dict[str, Any] = {
        "file": StringIO(),
        "force_terminal": terminal,
        "color_system": None,
        "width": 80,
    }
    console = WordConsole(**options)
    with console.status(f"sending it to {name}") as status:
        status.update(f"sent to {name}")
        shown = Console(**options)
        shown.print(status.renderable)
    assert f"sent to {name.splitlines()[0]}".rstrip() in shown.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("console", [stdout, stderr], ids=["stdout", "stderr"])
@pytest.mark.parametrize("name", ["[red]b", "[/red]"])
def test_a_printed_line_shows_a_name_as_it_is(
    name: str, console: WordConsole, capsys: pytest.CaptureFixture[str]
) -> None:
    console.print(f"written to {name}")
    assert f"written to {name}\n" in "".join(capsys.readouterr())


def test_a_name_of_any_length_is_written(tmp_path: Path) -> None:
    """The temporary file has a longer name than the file only if the file's name is short."""
    for letter in ("x", "é"):
        path = tmp_path / (letter * (LONGEST // len(letter.encode())))
        write_atomically(path, b"content")
        assert path.read_bytes() == b"content"


@pytest.mark.extensions
def test_a_name_that_is_not_utf8_is_printed_with_escapes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "raydp", "models", "keygen", "-o", NOT_UTF8]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(rb"a\udcff (keep it secret)")
    again = subprocess.run(
        [*command[:-1], f"{NOT_UTF8}2", "--json"], capture_output=True, cwd=tmp_path
    )
    assert json.loads(again.stdout)["signing_key"] == f"{NOT_UTF8}2"


def test_storage_that_is_not_utf8_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / NOT_UTF8).mkdir()
    with pytest.raises(ValueError, match="storage must be a folder whose path is UTF-8"):
        check_storage(str(tmp_path / NOT_UTF8 / "runs"))
    with pytest.raises(ValueError, match=r"tracking\.uri must be a file whose absolute path"):
        check_store(f"sqlite:///{tmp_path}/{NOT_UTF8}/mlflow.db")
