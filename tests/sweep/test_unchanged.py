"""A resume of a sweep that has ended does nothing, unless something has changed that it would look
at."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from raydp.spec.document import SweepSpec
from raydp.spec.reading import draft_spec
from raydp.sweep.store import unchanged

SPEC = {
    "name": "ended",
    "task": {"name": "text", "path": "data.jsonl", "column": "text", "secrets": "secrets.jsonl"},
    "model": {"name": "base"},
    "method": {"name": "dp_adam", "max_grad_norm": 0.5},
    "privacy": {"target_epsilon": 8, "delta_exponent": 1.1},
    "space": {"batch_size": [8], "num_steps": [4], "learning_rate": [0.1]},
    "seeds": [0, 1],
    "scores": [{"name": "logprob"}],
    "select": {"score": "logprob"},
    "tracking": {"uri": "sqlite:///store.db", "experiment": "e", "registered_model": "m"},
}
SWEEP = Path("raydp_runs/ended")
RUN = SWEEP / "trials/ab12"
FILES = [
    Path("data.jsonl"), Path("secrets.jsonl"), Path("base/model.safetensors"), Path("mlruns/models/m-1/seal.json"),
    SWEEP / "spec.yaml", SWEEP / "plan.json", SWEEP / "sweep.key", SWEEP / "summary.json", SWEEP / "report.html",
    RUN / "result.json", RUN / "tracked.json", RUN / "model/adapter.safetensors", SWEEP / "scores/vmr/ab12.json",
]  # fmt: skip
PASSING = [
    SWEEP / name
    for name in ("points.csv", "secrets.parquet", "driver.lock", "progress.json", "ray/state.json")
]


def in_store(statement: str) -> None:
    with closing(sqlite3.connect("store.db")) as store, store:
        store.execute(statement)


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepSpec:
    """A sweep that has ended, with files of any content: nobody reads them."""
    monkeypatch.chdir(tmp_path)
    for file in [*FILES, *PASSING]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("first")
    in_store("CREATE TABLE experiments (name, artifact_location)")
    in_store(f"INSERT INTO experiments VALUES ('e', '{(tmp_path / 'mlruns').as_uri()}')")
    spec = draft_spec(SPEC)
    unchanged.remember(spec)
    return spec


def edit(file: Path) -> None:
    """Write other content of the same size, and set the time of the last change back."""
    before = file.stat()
    file.write_text("other")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_sweep_is_unchanged_after_its_end(spec: SweepSpec) -> None:
    assert unchanged.is_unchanged(spec)
    for file in PASSING:
        edit(file)
    assert unchanged.is_unchanged(draft_spec(SPEC))


@pytest.mark.parametrize("change", [edit, Path.unlink, lambda file: file.chmod(0o644)])
@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_change_of_a_file_is_noticed(
    spec: SweepSpec, file: Path, change: Callable[[Path], None]
) -> None:
    change(file)
    assert not unchanged.is_unchanged(spec)


@pytest.mark.parametrize(
    "file", [SWEEP / "audits.json", RUN / "mia-1.npz", Path("base/config.json")], ids=str
)
def test_a_new_file_is_noticed(spec: SweepSpec, file: Path) -> None:
    file.write_text("new")
    assert not unchanged.is_unchanged(spec)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE runs (name)",
        "DROP TABLE experiments",
        "DELETE FROM experiments",
        "UPDATE experiments SET artifact_location = 's3://bucket/mlruns'",
    ],
)
def test_a_write_into_the_store_is_noticed(spec: SweepSpec, statement: str) -> None:
    in_store(statement)
    assert not unchanged.is_unchanged(spec)
    unchanged.remember(spec)
    assert unchanged.is_unchanged(spec) == statement.startswith("CREATE")


@pytest.mark.parametrize(
    "changed",
    [
        {"seeds": [0, 1, 2]},
        {"select": {"score": "logprob", "max_loss": 2.0}},
        {"method": {"name": "dp_adam", "max_grad_norm": 0.6}},
        {"tracking": {**SPEC["tracking"], "uri": "http://127.0.0.1:1"}},  # type: ignore[dict-item]
    ],
)
def test_another_spec_or_version_is_a_change(
    spec: SweepSpec, changed: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = draft_spec({**SPEC, **changed})
    assert not unchanged.is_unchanged(other)
    monkeypatch.setattr(unchanged, "__version__", "another")
    assert not unchanged.is_unchanged(spec)


def test_a_sweep_that_never_ended_here_is_no_unchanged_one(spec: SweepSpec, tmp_path: Path) -> None:
    (SWEEP / "ended.json").unlink()
    assert not unchanged.is_unchanged(spec)
    assert not unchanged.is_unchanged(draft_spec({**SPEC, "name": "another"}))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"state": nul', '{"state": null}'])
def test_a_damaged_note_of_the_end_is_none(spec: SweepSpec, text: str) -> None:
    (SWEEP / "ended.json").write_text(text)
    assert not unchanged.is_unchanged(spec)
    unchanged.remember(spec)
    assert unchanged.is_unchanged(spec)


@pytest.mark.parametrize("linked", [SWEEP / "trials", Path("mlruns/models"), Path("base")], ids=str)
def test_files_behind_links_are_checked(spec: SweepSpec, linked: Path, tmp_path: Path) -> None:
    linked.rename(tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")
    unchanged.remember(spec)
    assert unchanged.is_unchanged(spec)
    edit(next(file for file in linked.rglob("*") if file.is_file()))
    assert not unchanged.is_unchanged(spec)
    (linked / "loop").symlink_to(linked)
    unchanged.remember(spec)
    unchanged.is_unchanged(spec)  # ends


def test_a_changed_object_at_an_address_is_fetched_again(spec: SweepSpec, tmp_path: Path) -> None:
    at_address = draft_spec(
        {**SPEC, "task": {**SPEC["task"], "path": (tmp_path / "data.jsonl").as_uri()}}
    )  # type: ignore[dict-item]
    unchanged.remember(at_address)
    assert not unchanged.is_unchanged(at_address)


def test_a_write_that_lies_in_the_stores_log_is_noticed(spec: SweepSpec) -> None:
    with closing(sqlite3.connect("store.db")) as store:
        store.execute("PRAGMA journal_mode=WAL")
        unchanged.remember(spec)
        assert unchanged.is_unchanged(spec)
        store.execute("INSERT INTO experiments VALUES ('another', 'mlruns')")
        store.commit()
        assert not unchanged.is_unchanged(spec)


def test_an_end_that_an_earlier_version_noted_still_counts(spec: SweepSpec) -> None:
    """That version called select.min_gain_share min_utility_gain."""
    noted: list[str] = []
    dumps = json.dumps
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            unchanged.json, "dumps", lambda *a, **o: noted.append(dumps(*a, **o)) or noted[-1]
        )
        unchanged.remember(spec)
    assert '"min_utility_gain": 0.9' in noted[0]
    assert "min_gain_share" not in noted[0]
