"""`raydp delete`: what goes, what stays, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from mlflow import MlflowClient

from raydp import Sweep, find_models, load_model
from raydp.extensions.deletion.sweep_deletion import SweepRemains
from raydp.sweep.store.folder import SweepFolder
from tests.builders.specs import small_spec
from tests.conftest import Answer
from tests.sweep.without_ray import train_without_ray

Raydp = Callable[..., Answer]
pytestmark = pytest.mark.slow
SPACE = {"batch_size": [32], "num_steps": [2], "learning_rate": [0.01, 0.02]}


def store_of(folder: Path) -> str:
    return str(small_spec(folder)["tracking"]["uri"])


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished sweep of two runs, with its store beside it."""
    folder = tmp_path_factory.mktemp("swept")
    with pytest.MonkeyPatch.context() as patch:
        train_without_ray(patch)
        Sweep(small_spec(folder, space=SPACE)).run()
    return folder


def test_a_deletion_needs_an_answer_or_yes(raydp: Raydp, swept: Path) -> None:
    answer = raydp("delete", swept / "runs/small")
    assert answer.code == 2
    assert "--yes must be given where nobody can be asked" in answer.err
    assert "will be deleted: 2 registered models" in answer.out, "it says what would go"
    assert len(find_models(store_of(swept))) == 2


def test_a_running_sweep_is_not_deleted(raydp: Raydp, swept: Path) -> None:
    folder = SweepFolder.open(swept / "runs/small")
    with folder.locked():
        answer = raydp("delete", folder.path, "--yes")
    assert answer.code == 2
    assert "which another process runs" in answer.err
    assert len(find_models(store_of(swept))) == 2


def test_a_sweep_and_a_deletion_name_the_aliases_that_they_take_away(
    raydp: Raydp, swept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both sweeps have one registered model, so that the second one takes its aliases."""
    train_without_ray(monkeypatch)
    space = {"batch_size": [32], "num_steps": [2], "learning_rate": [0.03]}
    caplog.clear()
    Sweep(small_spec(swept, name="second", space=space)).run()
    moved = [r.getMessage() for r in caplog.records if "moves to this sweep" in r.getMessage()]
    assert sorted(text.split()[2] for text in moved) == ["best-utility", "privacy-preferred"]
    assert all("of the sweep small moves" in text for text in moved)
    caplog.clear()
    Sweep(small_spec(swept, name="second", space=space)).run(resume=True)
    assert "moves to this sweep" not in caplog.text, "they are this sweep's own"
    answer = raydp("delete", swept / "runs/second", "--yes")
    assert "will be without a model: the alias privacy-preferred of" in answer.out
    Sweep(small_spec(swept, space=SPACE)).run(resume=True)  # it has them again


def test_a_deletion_that_the_store_refuses_keeps_the_folder_and_goes_on_later(
    swept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remains = SweepRemains.of(SweepFolder.open(swept / "runs/small"), keep_selected=True)

    def refuse(run_id: str) -> None:
        raise OSError("no disk")

    monkeypatch.setattr(remains.store.client, "delete_run", refuse)
    with pytest.raises(ValueError, match=r"got: no disk\. 3 of 6 steps are done and stay so\."):
        remains.delete(lambda done, steps: None)
    assert SweepFolder.open(remains.folder.path).tracking_run() is not None


def test_the_selected_model_stays_if_that_is_asked_for_and_else_nothing(
    raydp: Raydp, swept: Path
) -> None:
    """After the deletion above that was broken off."""
    store, folder = store_of(swept), swept / "runs/small"
    shutil.copytree(folder, swept / "again")
    answer = raydp("delete", folder, "--keep-selected", "--yes")
    assert answer.code == 0, answer.err
    assert not folder.exists()
    (left,) = find_models(store)["model_uri"]
    assert load_model(f"{left.rpartition('/')[0]}@privacy-preferred", tracking_uri=store)
    weights = list((swept / "mlruns").rglob("*.safetensors"))
    assert len(weights) == 1
    # Without the option, the last model goes, too.
    (swept / "again").rename(folder)
    assert raydp("delete", folder, "--yes").code == 0
    assert find_models(store).empty
    assert not list((swept / "mlruns").rglob("*.safetensors"))
    models = [path for path in (swept / "mlruns").rglob("m-*") if path.is_dir()]
    assert not models, "no empty folders either"


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a sweep whose two models were also registered under other names.

    MLflow's default store is another one, which nothing may create.
    """
    train_without_ray(monkeypatch)
    Sweep(small_spec(tmp_path, space=SPACE)).run()
    client = MlflowClient(store_of(tmp_path), store_of(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store_of(tmp_path))
    summary = SweepFolder.open(tmp_path / "runs/small").summary()
    assert summary is not None
    for one in client.search_model_versions():
        uri = f"models:/{one.name}/{one.version}"
        kind = "kept" if uri == summary.selected.model_uri else "left"
        sources = {
            f"{kind}-source": (one.source, None),
            f"{kind}-run": (one.source, one.run_id),
            f"{kind}-model": (f"models:/{one.tags['model_id']}", one.run_id),
            f"{kind}-version": (uri, None),
        }
        for name, (source, run_id) in sources.items():
            client.create_registered_model(name)
            client.create_model_version(name, source, run_id)
        client.copy_model_version(uri, f"{kind}-copy")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other/mlflow.db")
    return tmp_path


def test_the_files_of_a_version_that_stays_are_not_deleted_whatever_its_name(
    raydp: Raydp, copied: Path
) -> None:
    store = store_of(copied)
    answer = raydp("delete", copied / "runs/small", "--keep-selected", "--yes")
    assert answer.code == 0, answer.err
    client = MlflowClient(store, store)
    left = {one.name: one for one in client.search_model_versions()}
    copies = ("copy", "model", "run", "source", "version")
    assert set(left) == {f"kept-{kind}" for kind in copies} | {"small"}
    for name, one in left.items():
        place = client.get_model_version_download_uri(name, one.version)
        assert list(Path(url2pathname(urlsplit(place).path)).rglob("*.safetensors")), name
        assert f"will stay: models:/{name}/1" in answer.out or name == "small"
    for kind in copies:
        assert f"will be deleted: models:/left-{kind}/1, a model of the sweep" in answer.out
    assert len(list((copied / "mlruns").rglob("*.safetensors"))) == 1
    assert not (copied / "other").exists()


def test_a_sweep_behind_a_link_is_deleted_with_every_copy(raydp: Raydp, copied: Path) -> None:
    folder, elsewhere = copied / "runs/small", copied / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    answer = raydp("delete", folder, "--yes")
    assert answer.code == 0, answer.err
    assert not list(MlflowClient(store_of(copied), store_of(copied)).search_model_versions())
    assert not list((copied / "mlruns").rglob("*.safetensors"))
    assert not elsewhere.exists()
    assert not folder.is_symlink()
