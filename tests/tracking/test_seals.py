"""A model is what its privacy card says it is, or it is not found, not loaded and not promoted."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from raydp.search_spaces import Configuration
from raydp.tracking import (
    find_models,
    load_model,
    load_tokenizer,
    promote_model,
    set_alarms,
    set_alias,
    show_model,
)
from raydp.tracking.later_scores import fetch_model
from raydp.tracking.sealing.folders import hashes_of
from raydp.tracking.sealing.seal import SEAL_FILE, SEAL_TAG, Seal, hash_of
from tests.marks import slow_after, slow_unless

from .conftest import open_tracker


@pytest.fixture
def sealed(uri, record):
    """A store with two models, whose seals nobody has signed, and their folders."""
    return two_models(open_tracker(uri), record)


def two_models(tracker, record):
    """The tracker, after it has taken two models of one configuration."""
    tracker.log_trial(record())
    tracker.log_trial(record("run-1", seed=1, privacy={**record().privacy, "epsilon": 4.0}))
    return tracker


def model_of(tracker, version=1):
    client = tracker.store.client
    return client.get_logged_model(client.get_model_version("demo", str(version)).tags["model_id"])


def folder_of(tracker, version=1) -> Path:
    return Path(model_of(tracker, version).artifact_location.removeprefix("file://"))


def found(tracker, **options):
    table = find_models(tracker.store.uri, **options)
    return sorted(table.version), table.attrs["left_out"]


def change_weights(tracker):
    path = folder_of(tracker) / "adapter_model.safetensors"
    weights = load_file(path)
    first = next(iter(weights))
    weights[first] = weights[first] + 1e-7
    save_file(weights, path)


def change_scale(tracker):
    path = folder_of(tracker) / "adapter_config.json"
    path.write_text(path.read_text().replace('"lora_alpha": 8', '"lora_alpha": 80'))


def change_epsilon_in_the_card(tracker):
    path = folder_of(tracker) / "privacy.json"
    path.write_text(path.read_text().replace("7.99", "0.99"))


def change_epsilon_in_card_and_tags(tracker):
    change_epsilon_in_the_card(tracker)
    tracker.store.client.set_logged_model_tags(model_of(tracker).model_id, {"epsilon": "0.99"})
    tracker.store.client.set_model_version_tag("demo", "1", "epsilon", "0.99")


def remove_all_files(tracker):
    shutil.rmtree(folder_of(tracker))


def swap_cards(tracker):
    for name in ("privacy.json", "seal.json"):
        one, two = folder_of(tracker, 1) / name, folder_of(tracker, 2) / name
        held = one.read_bytes()
        one.write_bytes(two.read_bytes())
        two.write_bytes(held)


def replay_the_seal_of_another(tracker):
    """Its tag and its file too."""
    other = model_of(tracker, 2).tags[SEAL_TAG]
    tracker.store.client.set_logged_model_tags(
        model_of(tracker).model_id, {SEAL_TAG: other, "epsilon": "4.0"}
    )
    shutil.copy(folder_of(tracker, 2) / SEAL_FILE, folder_of(tracker, 1))


def remove_the_seal(tracker):
    tracker.store.client.delete_logged_model_tag(model_of(tracker).model_id, SEAL_TAG)
    (folder_of(tracker) / SEAL_FILE).unlink()


def break_the_seal(tracker):
    tracker.store.client.set_logged_model_tags(
        model_of(tracker).model_id, {SEAL_TAG: '{"statement": ["epsilon"]'}
    )


def add_a_pickle(tracker):
    (folder_of(tracker) / "adapter_model.bin").write_bytes(b"\x80\x04N.")


def register_other_weights_under_it(tracker):
    """Version 1 again, with everything that the registry says of it, but MLflow would load another
    folder."""
    held, client = tracker.store.client.get_model_version("demo", "1"), tracker.store.client
    other = folder_of(tracker).parent / "other"
    shutil.copytree(folder_of(tracker), other)
    client.delete_model_version("demo", "1")
    client.create_model_version(
        "demo", source=other.as_uri(), run_id=held.run_id, tags=dict(held.tags)
    )


def put_a_number_that_is_none(tracker):
    text = model_of(tracker).tags[SEAL_TAG].replace('"format":"1"', '"format":NaN')
    tracker.store.client.set_logged_model_tags(model_of(tracker).model_id, {SEAL_TAG: text})


def leave_a_hash_out(tracker):
    rewrite(
        tracker,
        lambda seal: Seal(
            statement={k: v for k, v in seal.statement.items() if k != "files_sha256"}
        ),
    )


def remove_the_card(tracker):
    (folder_of(tracker) / "privacy.json").unlink()


def rewrite(tracker, forge):
    """Another seal, in the tag and in the file."""
    model, path = model_of(tracker), folder_of(tracker) / SEAL_FILE
    seal = forge(Seal.read(model.tags[SEAL_TAG]))
    files = json.loads(path.read_text())["files"]
    tracker.store.client.set_logged_model_tags(model.model_id, {SEAL_TAG: seal.tag()})
    path.write_text(seal.file(files))


# What was done -> why a lookup leaves the model out: by tags, or only after it read files.
TAMPERED = {
    change_weights: (None, "files differ from the card's"),
    change_scale: (None, "files differ from the card's"),
    change_epsilon_in_the_card: (None, "files differ from the card's"),
    remove_the_card: (None, "files differ from the card's"),
    remove_all_files: (None, "its files are gone"),
    add_a_pickle: (None, "files differ from the card's"),
    swap_cards: (None, "card of another model"),
    change_epsilon_in_card_and_tags: ("figures differ from the card's",) * 2,
    replay_the_seal_of_another: ("card of another model",) * 2,
    remove_the_seal: ("without a sealed privacy card",) * 2,
    break_the_seal: ("without a sealed privacy card",) * 2,
    put_a_number_that_is_none: ("without a sealed privacy card",) * 2,
    leave_a_hash_out: ("without a sealed privacy card",) * 2,
}


@pytest.mark.parametrize(
    "tamper", slow_unless((change_weights,), TAMPERED), ids=lambda f: f.__name__
)
def test_tampered_models_are_not_found_loaded_or_promoted(sealed, base_folder, tmp_path, tamper):
    tamper(sealed)
    uri, by_files = sealed.store.uri, TAMPERED[tamper][1]
    both = tamper is swap_cards
    assert found(sealed, max_epsilon=8, verify=True)[0] == ([] if both else [2])
    for load in (load_model, load_tokenizer):
        with pytest.raises(ValueError, match=f"MODEL must .*{by_files}"):
            load("models:/demo/1", tracking_uri=uri, base=str(base_folder))
    with pytest.raises(ValueError, match=by_files):
        fetch_model("models:/demo/1", tmp_path / "fetched", tracking_uri=uri)
    with pytest.raises(ValueError, match="alias must not be privacy-preferred"):
        promote_model("models:/demo/1", "privacy-preferred", "because", tracking_uri=uri)


def test_a_version_whose_files_are_elsewhere_is_not_found_or_promoted(sealed):
    """MLflow's own tools load what the version names, not what its card was sealed for."""
    register_other_weights_under_it(sealed)
    uri = sealed.store.uri
    assert found(sealed, max_epsilon=8, verify=True) == (
        [2],
        {"card of another model": 1},
    )
    with pytest.raises(
        ValueError, match=r"alias must not be privacy-preferred .*card of another model"
    ):
        promote_model("models:/demo/3", "privacy-preferred", "because", tracking_uri=uri)
    card = show_model("models:/demo/3", tracking_uri=uri)["card"]
    assert card["problem"] == "card of another model"


@pytest.mark.parametrize("content", ["no JSON", "[1]"])
def test_a_card_that_cannot_be_read_is_none_even_if_sealed(sealed, content):
    path = folder_of(sealed) / "privacy.json"
    path.write_text(content)
    hashes = hashes_of(folder_of(sealed))
    said = {"privacy_sha256": hashes["privacy.json"], "files_sha256": hash_of(hashes)}
    rewrite(sealed, lambda seal: Seal.make({**seal.statement, **said}, None))
    left = found(sealed, verify=True)
    assert left == ([2], {"figures differ from the card's": 1})


@pytest.mark.parametrize(
    "alias", slow_after(1, ["Privacy_Preferred", "privacy-preferred-", "PRIVACYPREFERRED"])
)
def test_an_alias_that_looks_like_privacy_preferred_is_that(sealed, alias):
    remove_the_seal(sealed)
    with pytest.raises(ValueError, match=f"alias must not be {alias}"):
        promote_model("models:/demo/1", alias, "because", tracking_uri=sealed.store.uri)
    with pytest.raises(ValueError, match="alias must be letters a to z"):
        promote_model(
            "models:/demo/1", "\u0440rivacy-preferred", "because", tracking_uri=sealed.store.uri
        )


def test_the_change_is_one_that_a_plain_lookup_would_not_see(sealed):
    """Who asks for no guarantee sees every model; the figures are those that somebody wrote."""
    change_epsilon_in_card_and_tags(sealed)
    assert find_models(sealed.store.uri).epsilon.tolist() == [0.99, 4.0]
    assert found(sealed, where=["epsilon < 8"]) == ([2], {"figures differ from the card's": 1})


def test_an_alarm_leaves_a_model_out(sealed, record):
    made = record()
    configuration = Configuration(
        batch_size=made.batch_size, num_steps=made.num_steps, learning_rate=made.learning_rate
    )
    set_alarms(
        "demo", "demo", {configuration: "the audit refutes it"}, tracking_uri=sealed.store.uri
    )
    for asked in (
        {"max_epsilon": 8},
        {"max_delta": 1.0},
        {"certified": True},
        {"where": ["delta < 1"]},
    ):
        assert found(sealed, **asked) == ([], {"an audit refutes its ε": 2}), asked
    assert found(sealed, max_loss=9.0) == ([1, 2], {})


def test_a_model_without_a_guarantee_is_not_preferred(uri, record):
    privacy = {**record().privacy, "epsilon": float("inf"), "certified": False}
    open_tracker(uri).log_trial(record(privacy=privacy))
    for call in (
        lambda: set_alias("demo", "privacy-preferred", 1, tracking_uri=uri),
        lambda: promote_model("models:/demo/1", "privacy-preferred", "because", tracking_uri=uri),
    ):
        with pytest.raises(
            ValueError, match=r"alias must not be privacy-preferred .* trained without a guarantee"
        ):
            call()
    set_alias("demo", "best-utility", 1, tracking_uri=uri)
