"""A sealed folder holds its files alone, and a model is loaded from the bytes that were compared
with the seal."""

import json
import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydp.tracking import (
    show_model,
)
from raydp.tracking.sealing.folders import NotPlainError, copy_problem, folder_problem, hashes_of
from raydp.tracking.sealing.seal import Seal, statement

from .conftest import open_tracker
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


@pytest.mark.parametrize("content", ["{bad", "[]", '{"name": "other", "weight_hash": "0"}'])
def test_another_base_is_shown_as_a_problem(uri, record, content):
    tracker = open_tracker(uri)
    model = tracker.log_trial(record())
    (folder_of(tracker) / "base.json").write_text(content)
    assert (
        show_model(model, tracking_uri=uri)["card"]["problem"]
        == "files differ from the card's: base.json"
    )
