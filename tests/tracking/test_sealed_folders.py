"""A sealed folder holds its files alone, and a model is loaded from the bytes that were compared
with the seal."""

import json
import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from raydp import tracking
from raydp.tracking import (
    find_models,
    load_model,
    load_tokenizer,
    promote_model,
    serving,
    show_model,
)
from raydp.tracking.models.fetching import checked_folder
from raydp.tracking.sealing.folders import NotPlainError, copy_problem, folder_problem, hashes_of
from raydp.tracking.sealing.seal import Seal, statement

from .conftest import open_tracker
from .test_loading import logits
from .test_seals import folder_of

PRIVACY = {
    "epsilon": "8",
    "delta": "1e-05",
    "noise_multiplier": "1.1",
    "accountant": "pld",
    "unit": "example",
}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    """A sealed folder with files in subfolders, without MLflow, and its seal."""
    folder = tmp_path_factory.mktemp("sealed") / "model"
    (folder / "code" / "deep").mkdir(parents=True)
    (folder / "privacy.json").write_text(json.dumps({**PRIVACY, "certified": True}))
    for name in ("adapter_config.json", "code/loader.py", "code/deep/more.py"):
        (folder / name).write_text(name)
    hashes = hashes_of(folder)
    said = statement(
        model_id="m-1", run_id="r", configuration={}, privacy=json.loads((folder / "privacy.json").read_text()),
        base_weight_hash="0", hashes=hashes,
    )  # fmt: skip
    seal = Seal.make(said, None)
    (folder / "seal.json").write_text(seal.file(hashes))
    return folder, seal


def plant(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        path.write_text("planted")
    elif kind == "empty folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.open(
            path.parent, os.O_RDONLY
        )  # the address of a socket has at most 108 characters
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)
    else:
        path.symlink_to(
            {"link to a file": "/etc/hostname", "link to a folder": "/etc", "dead link": "nowhere"}[
                kind
            ]
        )


KINDS = (
    "file",
    "empty folder",
    "pipe",
    "socket",
    "link to a file",
    "link to a folder",
    "dead link",
)
PARTS = (
    "code",
    "deep",
    "additional_chat_templates",
    "Seal.json",
    "SEAL.JSON",
    "Code",
    "README.md",
    "base",
    "x",
)


@given(parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=3), kind=st.sampled_from(KINDS))
def test_every_added_file_is_found(sealed, parts, kind):
    folder, seal = sealed
    with tempfile.TemporaryDirectory() as scratch:
        changed = Path(shutil.copytree(folder, Path(scratch) / "model"))
        assert folder_problem(changed, seal, None) is None
        path = changed.joinpath(*parts)
        if os.path.lexists(path):
            return
        plant(path, kind)
        assert folder_problem(changed, seal, None).startswith("files differ from the card's: ")
        assert copy_problem(changed, Path(scratch) / "copy", seal, None).startswith(
            "files differ from the card's: "
        )
        if kind not in ("file", "empty folder"):
            with pytest.raises(
                NotPlainError, match=r"^MODEL must hold .* where .* is (a link|no regular)"
            ):
                hashes_of(changed)


@pytest.mark.parametrize(
    "name", ["seal.json", "privacy.json", "adapter_config.json", "code/deep/more.py", "code"]
)
def test_a_link_to_equal_content_is_refused(sealed, tmp_path, name):
    """What it points at can be exchanged later, and outside of the folder."""
    folder, seal = sealed
    changed = Path(shutil.copytree(folder, tmp_path / "model"))
    shutil.move(changed / name, tmp_path / "elsewhere")
    (changed / name).symlink_to(tmp_path / "elsewhere")
    for exported in (False, True):
        assert (
            folder_problem(changed, seal, None, exported=exported)
            == f"files differ from the card's: {name} is a link"
        )


def test_a_file_that_cannot_be_read_is_a_problem_of_its_model(sealed, tmp_path, monkeypatch):
    folder, seal = sealed
    changed = Path(shutil.copytree(folder, tmp_path / "model"))

    def refused(path, *options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refused)
    assert folder_problem(changed, seal, None) == "its files cannot be read: Permission denied"
    monkeypatch.undo()


def test_a_template_behind_a_link_is_not_read(uri, record, keys, base_folder, tmp_path):
    """transformers would read the templates in this folder."""
    tracker = open_tracker(uri, signing_key=keys["team"][0])
    model = tracker.log_trial(record())
    exported = tracking.export_model(model, tmp_path / "out", tracking_uri=uri)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "tool_use.jinja").write_text("attacker's")
    for folder in (folder_of(tracker), exported):
        (folder / "additional_chat_templates").symlink_to(tmp_path / "elsewhere")
    why = "additional_chat_templates is a link"
    trusted = {"tracking_uri": uri, "trusted_keys": [keys["team"][1]]}
    assert find_models(**trusted, verify=True).attrs["left_out"] == {
        "files differ from the card's": 1
    }
    for read in (load_model, load_tokenizer):
        with pytest.raises(ValueError, match=f"MODEL must hold what .*{why}"):
            read(model, base=str(base_folder), **trusted)
    with pytest.raises(ValueError, match=why):
        promote_model(model, "privacy-preferred", "because", **trusted)
    with pytest.raises(ValueError, match=why):
        tracking.export_model(model, tmp_path / "again", **trusted)
    for unseen in (False, True):
        with pytest.raises(ValueError, match=why):
            tracking.seal_model(model, tracking_uri=uri, unseen=unseen)
    with pytest.raises(ValueError, match=why):
        serving._load_pyfunc(
            str(exported), {"base": str(base_folder), "trusted_keys": [keys["team"][1]]}
        )


def change_weights(folder: Path) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(
        {name: value + 1 for name, value in weights.items()}, folder / "adapter_model.safetensors"
    )


def test_files_changed_after_the_check_are_not_read(
    uri, record, adapter, base_folder, tmp_path, monkeypatch
):
    """Neither from the store nor from an exported folder that MLflow serves."""
    tracker = open_tracker(uri)
    model = tracker.log_trial(record())
    exported = tracking.export_model(model, tmp_path / "out", tracking_uri=uri)
    with checked_folder(model, tracking_uri=uri) as held:
        before = hashes_of(held)
        assert held.parent.stat().st_mode & 0o077 == 0, "others may write to the copy"
        change_weights(folder_of(tracker))
        assert hashes_of(held) == before != hashes_of(folder_of(tracker))
    load_folder = serving.load_folder

    def after_a_change(folder, *options):
        change_weights(exported)
        return load_folder(folder, *options)

    monkeypatch.setattr(serving, "load_folder", after_a_change)
    served = serving._load_pyfunc(str(exported), {"base": str(base_folder)})
    assert torch.equal(logits(served.model), logits(adapter[0]))


def test_a_pushed_model_is_the_one_whose_guarantee_was_checked(
    uri, record, base_folder, monkeypatch
):
    """The record is read before the export, and somebody may exchange it in between."""
    tracker = open_tracker(uri)
    model = tracker.log_trial(record(privacy={**record().privacy, "certified": False}))
    monkeypatch.setattr(
        "raydp.extensions.publishing.hub.artifact_bytes", lambda *where: b'{"certified": true}'
    )
    from raydp.extensions.publishing.hub import push_model

    with pytest.raises(ValueError, match="MODEL must have a certified guarantee to be sent"):
        push_model(model, "team/model", tracking_uri=uri, base=str(base_folder))


def test_only_sealed_files_of_an_export_are_read(uri, record, base_folder, tmp_path):
    tracker = open_tracker(uri)
    folder = tracking.export_model(
        tracker.log_trial(record()), tmp_path / "out", tracking_uri=uri, base=str(base_folder)
    )
    assert (folder / "tokenizer_config.json").is_file()
    assert copy_problem(folder, tmp_path / "copy", None, None, exported=True) is None
    listed = set(json.loads((folder / "seal.json").read_text())["files"])
    assert {p.relative_to(tmp_path / "copy").as_posix() for p in (tmp_path / "copy").rglob("*") if p.is_file()} == {
        "seal.json", *listed,
    }  # fmt: skip


@pytest.mark.parametrize("content", ["{bad", "[]", '{"name": "other", "weight_hash": "0"}'])
def test_another_base_is_shown_as_a_problem(uri, record, content):
    tracker = open_tracker(uri)
    model = tracker.log_trial(record())
    (folder_of(tracker) / "base.json").write_text(content)
    assert (
        show_model(model, tracking_uri=uri)["card"]["problem"]
        == "files differ from the card's: base.json"
    )
