"""A finished sweep that is run again: nothing runs twice, no other takes its place, and a lost
store is filled."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from raydp import Sweep
from raydp.cli.show.sweeps import show_result
from raydp.spec.reading import load_spec
from raydp.sweep.store.folder import SweepFolder
from raydp.system.interruption import Interrupted
from raydp.tracking import show_model
from tests.sweep.undisturbed import Done, runs_in, spec_of

pytestmark = pytest.mark.xdist_group("sweep")


def test_a_finished_sweep_resumed_runs_nothing(done: Done) -> None:
    results = sorted((done.result.folder / "trials").glob("*/result.json"))
    before = [p.stat().st_mtime_ns for p in results]
    again = done.sweep.run(resume=True)
    assert [p.stat().st_mtime_ns for p in results] == before
    assert again.selected == done.result.selected
    assert runs_in(done.uri) == {"parents": 1, "children": 4, "versions": 4}


@pytest.mark.slow
def test_an_interruption_after_the_last_run_is_an_answer_too(
    done: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("raydp.sweep.ending.finish.finish", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:  # a user's script stops too
            done.sweep.run(resume=True)
    assert isinstance(caught.value, Interrupted)
    stopped = caught.value.partial
    assert stopped.interrupted
    assert stopped.selected is None
    assert stopped.counts.finished == 4
    assert done.sweep.run(resume=True).selected == done.result.selected


@pytest.mark.slow
@pytest.mark.parametrize("step", ["set_aliases", "write_report", "_publish"])
def test_an_interruption_after_the_selection_says_what_was_selected(
    done: Done, step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"raydp.sweep.ending.finish.{step}", interrupted)
        with pytest.raises(Interrupted) as caught:
            done.sweep.run(resume=True)
    stopped = caught.value.partial
    assert (stopped.interrupted, stopped.reason) == (True, None)
    assert stopped.selected == done.result.selected
    assert stopped.best_utility == done.result.best_utility
    show_result(done.sweep, stopped)
    said = capsys.readouterr().out
    assert "Selected   b=" in said
    assert "interrupted after the selection: --resume records the rest" in said
    assert "nothing selected" not in said
    assert done.sweep.run(resume=True).selected == done.result.selected


def test_a_changed_spec_cannot_be_resumed(done: Done) -> None:
    changed = {**done.spec, "seeds": [1]}
    with pytest.raises(ValueError, match="seeds must hold the"):
        Sweep(changed).run(resume=True)


def test_other_names_in_the_registry_cannot_be_resumed_into(done: Done) -> None:
    """The aliases would point at another sweep's models."""
    changed = {**done.spec, "tracking": {**done.spec["tracking"], "registered_model": "another"}}
    with pytest.raises(ValueError, match=r"got changes in tracking\.registered_model"):
        Sweep(changed).run(resume=True)


def test_a_sweep_that_is_running_cannot_be_run_beside_it(done: Done) -> None:
    with (
        SweepFolder.running(load_spec(done.spec)),
        pytest.raises(ValueError, match=r"which another process runs\. Wait for its end"),
    ):
        done.sweep.run(resume=True)


@pytest.mark.slow
def test_a_store_that_was_lost_is_filled_again(done: Done, tmp_path: Path) -> None:
    """On a copy: the tables name the versions of the store that they were written with."""
    uri, storage = f"sqlite:///{tmp_path}/another.db", tmp_path / "copy"
    shutil.copytree(done.result.folder, storage / "small")
    moved = {
        **done.spec,
        "storage": str(storage),
        "tracking": {**done.spec["tracking"], "uri": uri},
    }
    result = Sweep(moved).run(resume=True)
    assert runs_in(uri) == {"parents": 1, "children": 4, "versions": 4}
    assert (
        show_model("models:/small@privacy-preferred", tracking_uri=uri)["model_uri"]
        == result.selected.model_uri
    )


@pytest.mark.slow
def test_a_store_that_cannot_be_opened_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, but text\n")
    spec = spec_of(tmp_path)
    for uri in (
        f"sqlite:///{tmp_path}/text.db",
        "http://127.0.0.1:9",
        "mysql://x",
        f"sqlite:///{tmp_path}/no/x.db",
    ):
        with pytest.raises(ValueError, match=r"tracking\.uri must"):
            Sweep({**spec, "tracking": {**spec["tracking"], "uri": uri}}).run()
    assert not (Path(spec["storage"]) / "small").exists()
