"""A store that lost entries or files of an ended sweep: a resume delivers them again and sets the
aliases again."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from raydp.sweep.driver import ending_of
from raydp.sweep.ending.finish import Finish
from raydp.sweep.engine import recorder
from raydp.sweep.engine.context import SweepContext
from raydp.tracking import NotDeliveredError, find_models, load_model, trials
from raydp.tracking.store import open_store
from tests.sweep.trained import Trained

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Path]:
    """An ended sweep of two runs, and a copy of its folder with its store."""
    root = tmp_path_factory.mktemp("lost") / "sweep"
    sweep = Trained(root, seeds=[0], scores=[{"name": "vmr_exact"}])
    assert sweep.ending.finish().selected is not None
    kept = root.with_name("kept")
    shutil.copytree(root, kept)
    return sweep, kept


@pytest.fixture
def ended(trained: tuple[Trained, Path]) -> Trained:
    """The ended sweep, as it was before any test touched it."""
    sweep, kept = trained
    root = kept.with_name("sweep")
    shutil.rmtree(root / "runs")
    shutil.rmtree(root / "mlruns")
    shutil.copytree(kept, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("mlflow.db*"))
    fill(sweep, kept / "mlflow.db")
    return sweep


def database(ended: Trained) -> Path:
    return Path(ended.uri.removeprefix("sqlite:///"))


def fill(ended: Trained, source: Path) -> None:
    """Replace the store's content.

    MLflow keeps the file open for the whole process, so the file itself stays.
    """
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(database(ended))) as new:
        old.backup(new)


def resume(ended: Trained) -> Finish:
    """Do what a driver does that finds every run trained."""
    old = ended.context
    context = SweepContext(
        spec=old.spec, folder=old.folder, facts=old.facts, weight_hash=old.weight_hash
    )
    ending = ending_of(context)
    ending.listener.deliver_missing(list(ended.trials))
    return ending.finish()


def has_all(ended: Trained) -> None:
    """Check that both models are in the store, sealed, loadable and under the folder's URIs, with
    both aliases."""
    found = find_models(ended.uri, registered_model="small", max_epsilon=8, verify=True)
    assert (len(found), found.attrs["left_out"]) == (2, {})
    assert set(found.model_uri) == {ended.folder.model_uri(trial.run_id) for trial in ended.trials}
    assert sorted(a for aliases in found.aliases for a in aliases) == [
        "best-utility",
        "privacy-preferred",
    ]
    for uri in found.model_uri:
        load_model(uri, tracking_uri=ended.uri)


def lose_mlruns(ended: Trained, _: Path | None = None) -> None:
    shutil.rmtree(database(ended).parent / "mlruns")


def lose_one_file(ended: Trained, _: Path) -> None:
    next(database(ended).parent.glob("mlruns/models/*/artifacts/privacy.json")).unlink()


def lose_a_version(ended: Trained, _: Path) -> None:
    open_store(ended.uri).client.delete_model_version("small", "1")


def lose_a_model(ended: Trained, _: Path) -> None:
    client = open_store(ended.uri).client
    client.delete_logged_model(client.get_model_version("small", "1").tags["model_id"])


def lose_a_run(ended: Trained, _: Path) -> None:
    """What a store lacks that is older than the run."""
    client = open_store(ended.uri).client
    version = client.get_model_version("small", "1")
    client.delete_model_version("small", "1")
    client.delete_logged_model(version.tags["model_id"])
    client.delete_run(version.run_id)
    for alias in client.search_registered_models("name = 'small'")[0].aliases:
        client.delete_registered_model_alias("small", alias)


def lose_the_store(ended: Trained, empty_store: Path) -> None:
    lose_mlruns(ended)
    fill(ended, empty_store)


LOSSES = [lose_mlruns, lose_one_file, lose_a_version, lose_a_model, lose_a_run, lose_the_store]


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_a_resume_delivers_again_the_results_that_the_store_lost(
    ended: Trained, empty_store: Path, lose: Callable[[Trained, Path], None]
) -> None:
    lose(ended, empty_store)
    assert resume(ended).selected is not None
    has_all(ended)


def test_a_driver_that_dies_between_the_files_and_their_seal_leaves_no_broken_model(
    ended: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = trials.upload

    def dying(*args: object) -> None:
        upload(*args)  # type: ignore[arg-type]
        raise NotDeliveredError("the driver dies here")

    lose_mlruns(ended)
    with monkeypatch.context() as patch:
        patch.setattr(trials, "upload", dying)
        patch.setattr(recorder, "PATIENCE_SECONDS", 0.0)
        assert resume(ended).selected is None
    resume(ended)
    has_all(ended)


def test_a_resume_changes_nothing_where_nothing_was_lost(
    ended: Trained, caplog: pytest.LogCaptureFixture
) -> None:
    marks = {
        path: path.stat().st_mtime_ns for path in ended.folder.path.glob("trials/*/tracked.json")
    }
    resume(ended)
    assert {path: path.stat().st_mtime_ns for path in marks} == marks
    assert "lost" not in caplog.text
    has_all(ended)


@pytest.mark.parametrize(
    "place", [("utility_loss",), ("scores", "vmr_exact", "value")], ids=["loss", "score"]
)
def test_an_edited_figure_moves_no_alias(ended: Trained, place: tuple[str, ...]) -> None:
    """The selection would follow the file while MLflow shows the delivered figure."""
    run_id = ended.trials[0].run_id
    path = ended.folder.trial(run_id) / "result.json"
    document = json.loads(path.read_text())
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = -5.0
    path.write_text(json.dumps(document))
    with pytest.raises(
        ValueError, match=f"{place[0].rstrip('s')}.* in .*{run_id} must be the figure that"
    ):
        resume(ended)
