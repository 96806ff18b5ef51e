"""Data and models by URI: copied once, again when they change; nothing that is wrong with a URI
passes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from raydp.models import base_models as models
from raydp.spec.reading import load_spec
from raydp.spec.sections import ModelSpec
from raydp.sweep.planning.inputs import build_task
from raydp.system.locations import local_copy, refuse_credentials
from tests.builders.specs import small_spec
from tests.marks import slow_after


def test_a_path_is_itself(tmp_path: Path) -> None:
    assert local_copy(tmp_path / "absent", "task.path") == tmp_path / "absent"
    assert local_copy("HuggingFaceTB/SmolLM2-135M", "model.name") == Path(
        "HuggingFaceTB/SmolLM2-135M"
    )


def test_a_file_is_copied_once_and_again_when_it_changes(tmp_path: Path) -> None:
    source = tmp_path / "mails.jsonl"
    source.write_text("one")
    copy = local_copy(source.as_uri(), "task.path")
    assert (copy.name, copy.read_text()) == ("mails.jsonl", "one")
    assert copy != source
    written = copy.stat().st_mtime_ns
    assert local_copy(source.as_uri(), "task.path").stat().st_mtime_ns == written
    source.write_text("two")
    os.utime(source, ns=(1, 1))
    assert local_copy(source.as_uri(), "task.path").read_text() == "two"
    assert copy.parent.stat().st_mode & 0o077 == 0, "the data are private"


def test_a_copied_folder_loses_the_files_that_its_source_lost(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "part").mkdir(parents=True)
    (folder / "a").write_text("a")
    (folder / "part" / "b").write_text("b")
    copy = local_copy(folder.as_uri() + "/", "task.path")
    assert sorted(p.name for p in copy.rglob("*") if p.is_file()) == ["a", "b"]
    (folder / "a").unlink()
    assert [
        p.name for p in local_copy(folder.as_uri() + "/", "task.path").rglob("*") if p.is_file()
    ] == ["b"]


def test_a_broken_copy_is_made_again(tmp_path: Path) -> None:
    source = tmp_path / "mails.jsonl"
    source.write_text("one")
    copy = local_copy(source.as_uri(), "task.path")
    copy.unlink()
    assert local_copy(source.as_uri(), "task.path").read_text() == "one"


@pytest.mark.parametrize(
    ("uri", "message"),
    slow_after(
        6,
        [
            ("file:///nowhere/at/all.jsonl", "task.path must name an existing file or folder"),
            ("file:///with a space", "task.path must be a URI that can be opened"),
            ("s3://key:word@bucket/data.jsonl", "without credentials"),
            ("s3://key@bucket/data.jsonl", "without credentials"),
            (
                "abfs://container:word@account.dfs.core.windows.net/data.jsonl",
                "without credentials",
            ),
            (
                "s3://bucket/data.jsonl?access_key=AKIA&secret_key=planted-secret",
                "without credentials",
            ),
            (
                "s3://bucket/data.jsonl?endpoint_override=127.0.0.1:9&scheme=http&region=x",
                "a store that answers",
            ),
        ],
    ),
)
def test_a_wrong_uri_is_an_error_that_tells_no_secret(
    uri: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
    with pytest.raises(ValueError, match=message) as raised:
        local_copy(uri, "task.path")
    assert "planted-secret" not in str(raised.value)
    assert "word" not in str(raised.value)


@pytest.mark.parametrize(
    "uri", ["abfss://container@account.dfs.core.windows.net/data", "hdfs://user@namenode/data"]
)
def test_a_name_before_the_host_is_no_credential(uri: str) -> None:
    refuse_credentials(uri, "task.path", "elsewhere")


def test_a_sweep_reads_data_and_model_by_uri(tmp_path: Path) -> None:
    """The spec keeps the URIs; the data's content alone is part of a run's identity."""
    model = tmp_path / "model"
    shutil.copytree(models.TINY, model)
    data = tmp_path / "mails.jsonl"
    data.write_text("".join(json.dumps({"text": f"Mail {k} of many"}) + "\n" for k in range(40)))
    changes = {
        "task": {"name": "text", "path": data.as_uri(), "max_length": 16},
        "model": {
            "name": model.as_uri(),
            "adapter": {"type": "lora", "r": 2, "alpha": 4, "target_modules": ["q_proj"]},
        },
        "scores": [],
        "select": {"min_gain_share": None},
    }
    spec = load_spec(small_spec(tmp_path, **changes))
    assert spec.model_dump(mode="json")["task"]["path"] == data.as_uri()
    task, weight_hash = build_task(spec)
    own = load_spec(
        small_spec(tmp_path, **{**changes, "task": {**changes["task"], "path": str(data)}})
    )
    assert build_task(own)[0].facts() == task.facts()
    assert (
        weight_hash
        == models.check(ModelSpec.model_validate({**changes["model"], "name": str(model)}))[1]
    )
