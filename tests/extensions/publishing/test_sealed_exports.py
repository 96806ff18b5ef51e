"""Files of an exported folder that its seal does not hold are not read, and the bytes that were compared
with the seal are."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from raydp import tracking
from raydp.tracking import find_models, load_model, load_tokenizer, promote_model, serving
from raydp.tracking.models.fetching import checked_folder
from raydp.tracking.sealing.folders import copy_problem, hashes_of
from tests.tracking.conftest import open_tracker
from tests.tracking.test_loading import logits
from tests.tracking.test_seals import folder_of


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
