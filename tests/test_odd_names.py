"""Any name that a file system allows works for data, storage, stores and output, or is refused at once."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest
from pyarrow import fs
from sqlalchemy import make_url

from raydp.analysis import load_points
from raydp.io.files import write_atomically
from raydp.spec.reading import load_spec
from raydp.sweep.store.folder import SweepFolder
from raydp.tasks.reading import is_file_of_rows, read_rows
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
]
MISREAD = {"a%20b", "100%", "a?b", "a\nb"}
"""Names that SQLAlchemy or MLflow would read as a part of a URI."""
every_name = pytest.mark.parametrize("name", NAMES)


@every_name
def test_rows_are_read_from_files_of_any_name(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    rows = [{"text": f"Mail {i} about the draft."} for i in range(30)]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / f"{name}.jsonl").write_text(lines)
    (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    with (folder / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([row["text"]] for row in rows)])
    for suffix in ("jsonl", "jsonl.gz", "csv"):
        path = str(folder / f"{name}.{suffix}")
        assert is_file_of_rows(path)
        assert [dict(row) for _, row in read_rows(path, "task.path")] == rows
    assert TextTask(path=path).build(trained_tokenizer()).facts().num_examples > 20


@every_name
def test_a_sweep_is_kept_and_its_points_are_read_in_a_folder_of_any_name(name: str, tmp_path: Path) -> None:
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
def test_a_store_of_any_name_is_the_file_that_it_names_or_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    uri = f"sqlite:///{tmp_path}/{name}/{name}.db"
    if name in MISREAD:
        with pytest.raises(ValueError, match=r"tracking\.uri must be a file whose absolute path holds no %"):
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
