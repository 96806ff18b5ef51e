"""A model is what its privacy card says it is, or it is not found, not loaded and not promoted."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from raydp.analysis.entry_points import entries
from raydp.extensions.publishing.signing import SigningKey
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
from raydp.tracking.models.model_folder import replace_cards
from raydp.tracking.sealing.folders import hashes_of
from raydp.tracking.sealing.seal import SEAL_FILE, SEAL_TAG, Seal, hash_of
from tests.marks import slow_after, slow_unless

from .conftest import open_tracker


@pytest.fixture
def signed(uri, record, keys):
    """A store with two models that the team has signed, and their folders."""
    tracker = open_tracker(uri, signing_key=keys["team"][0])
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


def change_weights(tracker, keys):
    path = folder_of(tracker) / "adapter_model.safetensors"
    weights = load_file(path)
    first = next(iter(weights))
    weights[first] = weights[first] + 1e-7
    save_file(weights, path)


def change_scale(tracker, keys):
    path = folder_of(tracker) / "adapter_config.json"
    path.write_text(path.read_text().replace('"lora_alpha": 8', '"lora_alpha": 80'))


def change_epsilon_in_the_card(tracker, keys):
    path = folder_of(tracker) / "privacy.json"
    path.write_text(path.read_text().replace("7.99", "0.99"))


def change_epsilon_in_card_and_tags(tracker, keys):
    change_epsilon_in_the_card(tracker, keys)
    tracker.store.client.set_logged_model_tags(model_of(tracker).model_id, {"epsilon": "0.99"})
    tracker.store.client.set_model_version_tag("demo", "1", "epsilon", "0.99")


def remove_all_files(tracker, keys):
    shutil.rmtree(folder_of(tracker))


def swap_cards(tracker, keys):
    for name in ("privacy.json", "seal.json"):
        one, two = folder_of(tracker, 1) / name, folder_of(tracker, 2) / name
        held = one.read_bytes()
        one.write_bytes(two.read_bytes())
        two.write_bytes(held)


def replay_the_seal_of_another(tracker, keys):
    """Its tag and its file too."""
    other = model_of(tracker, 2).tags[SEAL_TAG]
    tracker.store.client.set_logged_model_tags(
        model_of(tracker).model_id, {SEAL_TAG: other, "epsilon": "4.0"}
    )
    shutil.copy(folder_of(tracker, 2) / SEAL_FILE, folder_of(tracker, 1))


def remove_the_seal(tracker, keys):
    tracker.store.client.delete_logged_model_tag(model_of(tracker).model_id, SEAL_TAG)
    (folder_of(tracker) / SEAL_FILE).unlink()


def remove_the_signature(tracker, keys):
    rewrite(tracker, lambda seal: Seal(statement=seal.statement))


def remove_half_of_it(tracker, keys):
    rewrite(tracker, lambda seal: Seal(statement=seal.statement, key=seal.key))


def sign_with_another_key(tracker, keys):
    rewrite(tracker, lambda seal: Seal.make(seal.statement, SigningKey.load(keys["other"][0])))


def claim_the_team_s_key(tracker, keys):
    """The signature is another key's, the name on it the team's."""

    def forged(seal):
        made = Seal.make(seal.statement, SigningKey.load(keys["other"][0]))
        return Seal(statement=seal.statement, key=keys["team"][1], signature=made.signature)

    rewrite(tracker, forged)


def keep_the_signature_for_another_epsilon(tracker, keys):
    change_epsilon_in_card_and_tags(tracker, keys)

    def forged(seal):
        said = {**seal.statement, "guarantee": {**seal.statement["guarantee"], "epsilon": "0.99"}}
        return Seal(statement=said, key=seal.key, signature=seal.signature)

    rewrite(tracker, forged)


def break_the_seal(tracker, keys):
    tracker.store.client.set_logged_model_tags(
        model_of(tracker).model_id, {SEAL_TAG: '{"statement": ["epsilon"]'}
    )


def add_a_pickle(tracker, keys):
    (folder_of(tracker) / "adapter_model.bin").write_bytes(b"\x80\x04N.")


def register_other_weights_under_it(tracker, keys):
    """Version 1 again, with everything that the registry says of it, but MLflow would load another
    folder."""
    held, client = tracker.store.client.get_model_version("demo", "1"), tracker.store.client
    other = folder_of(tracker).parent / "other"
    shutil.copytree(folder_of(tracker), other)
    client.delete_model_version("demo", "1")
    client.create_model_version(
        "demo", source=other.as_uri(), run_id=held.run_id, tags=dict(held.tags)
    )


def put_a_number_that_is_none(tracker, keys):
    text = model_of(tracker).tags[SEAL_TAG].replace('"format":"1"', '"format":NaN')
    tracker.store.client.set_logged_model_tags(model_of(tracker).model_id, {SEAL_TAG: text})


def leave_a_hash_out(tracker, keys):
    rewrite(
        tracker,
        lambda seal: Seal(
            statement={k: v for k, v in seal.statement.items() if k != "files_sha256"}
        ),
    )


def remove_the_card(tracker, keys):
    (folder_of(tracker) / "privacy.json").unlink()


def rewrite(tracker, forge):
    """Another seal, in the tag and in the file."""
    model, path = model_of(tracker), folder_of(tracker) / SEAL_FILE
    seal = forge(Seal.read(model.tags[SEAL_TAG]))
    files = json.loads(path.read_text())["files"]
    tracker.store.client.set_logged_model_tags(model.model_id, {SEAL_TAG: seal.tag()})
    path.write_text(seal.file(files))


# What was done -> why a lookup that trusts the team's key leaves the model out: by tags, or only
# after it read files.
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
    remove_the_signature: ("not signed",) * 2,
    remove_half_of_it: ("not signed",) * 2,
    sign_with_another_key: ("signed by a key that is not trusted",) * 2,
    claim_the_team_s_key: ("signature does not fit",) * 2,
    keep_the_signature_for_another_epsilon: ("signature does not fit",) * 2,
}
NEED_A_KEY = (remove_the_signature, sign_with_another_key)
"""What only someone who trusts a key can find out."""


def test_signed_models_are_found_shown_loaded_and_promoted(signed, keys, base_folder):
    uri, trusted = signed.store.uri, {"trusted_keys": [keys["team"][1]]}
    assert found(signed, max_epsilon=8, verify=True, **trusted) == ([1, 2], {})
    assert show_model("models:/demo/1", tracking_uri=uri, verify=True, **trusted)["card"] == {
        "signed_by": keys["team"][1], "problem": None, "verified": True,
    }  # fmt: skip
    load_model("models:/demo/1", tracking_uri=uri, base=str(base_folder), **trusted)
    promote_model("models:/demo/1", "privacy-preferred", "because", tracking_uri=uri, **trusted)


QUICK = (change_weights, sign_with_another_key)


@pytest.mark.parametrize("tamper", slow_unless(QUICK, TAMPERED), ids=lambda f: f.__name__)
def test_tampered_models_are_not_found_loaded_or_promoted(
    signed, keys, base_folder, tmp_path, tamper
):
    tamper(signed, keys)
    uri, trusted = signed.store.uri, {"trusted_keys": [keys["team"][1]]}
    by_tags, by_files = TAMPERED[tamper]
    both = 2 if tamper is swap_cards else 1
    assert found(signed, **trusted) == (([1, 2], {}) if by_tags is None else ([2], {by_tags: 1}))
    assert found(signed, max_epsilon=8, verify=True, **trusted) == (
        [] if both == 2 else [2],
        {by_files: both},
    )
    with pytest.raises(ValueError, match=f"MODEL must .*{by_files}"):
        load_model("models:/demo/1", tracking_uri=uri, base=str(base_folder), **trusted)
    with pytest.raises(ValueError, match=by_files):
        show_model("models:/demo/1", tracking_uri=uri, verify=True, **trusted)
    with pytest.raises(ValueError, match=f"alias must not be privacy-preferred .*{by_files}"):
        promote_model("models:/demo/1", "privacy-preferred", "because", tracking_uri=uri, **trusted)
    if tamper in NEED_A_KEY:
        return
    assert found(signed, max_epsilon=8, verify=True)[0] == ([] if both == 2 else [2])
    for load in (load_model, load_tokenizer):
        with pytest.raises(ValueError, match=f"MODEL must .*{by_files}"):
            load("models:/demo/1", tracking_uri=uri, base=str(base_folder))
    with pytest.raises(ValueError, match=by_files):
        fetch_model("models:/demo/1", tmp_path / "fetched", tracking_uri=uri)
    with pytest.raises(ValueError, match="alias must not be privacy-preferred"):
        promote_model("models:/demo/1", "privacy-preferred", "because", tracking_uri=uri)


def test_a_version_whose_files_are_elsewhere_is_not_found_or_promoted(signed, keys):
    """MLflow's own tools load what the version names, not what its card was sealed for."""
    register_other_weights_under_it(signed, keys)
    uri, trusted = signed.store.uri, {"trusted_keys": [keys["team"][1]]}
    assert found(signed, max_epsilon=8, verify=True, **trusted) == (
        [2],
        {"card of another model": 1},
    )
    with pytest.raises(
        ValueError, match=r"alias must not be privacy-preferred .*card of another model"
    ):
        promote_model("models:/demo/3", "privacy-preferred", "because", tracking_uri=uri, **trusted)
    with pytest.raises(ValueError, match="card of another model"):
        show_model("models:/demo/3", tracking_uri=uri, **trusted)


@pytest.mark.parametrize("content", ["no JSON", "[1]"])
def test_a_card_that_cannot_be_read_is_none_even_if_sealed(signed, keys, content):
    path = folder_of(signed) / "privacy.json"
    path.write_text(content)
    hashes = hashes_of(folder_of(signed))
    said = {"privacy_sha256": hashes["privacy.json"], "files_sha256": hash_of(hashes)}
    rewrite(
        signed, lambda seal: Seal.make({**seal.statement, **said}, SigningKey.load(keys["team"][0]))
    )
    left = found(signed, verify=True, trusted_keys=[keys["team"][1]])
    assert left == ([2], {"figures differ from the card's": 1})


@pytest.mark.parametrize(
    "alias", slow_after(1, ["Privacy_Preferred", "privacy-preferred-", "PRIVACYPREFERRED"])
)
def test_an_alias_that_looks_like_privacy_preferred_is_that(signed, keys, alias):
    remove_the_seal(signed, keys)
    with pytest.raises(ValueError, match=f"alias must not be {alias}"):
        promote_model("models:/demo/1", alias, "because", tracking_uri=signed.store.uri)
    with pytest.raises(ValueError, match="alias must be letters a to z"):
        promote_model(
            "models:/demo/1", "\u0440rivacy-preferred", "because", tracking_uri=signed.store.uri
        )


def test_the_change_is_one_that_a_plain_lookup_would_not_see(signed, keys):
    """Who asks for no guarantee sees every model; the figures are those that somebody wrote."""
    change_epsilon_in_card_and_tags(signed, keys)
    assert find_models(signed.store.uri).epsilon.tolist() == [0.99, 4.0]
    assert found(signed, where=["epsilon < 8"]) == ([2], {"figures differ from the card's": 1})


def test_an_alarm_leaves_a_model_out(signed, record):
    made = record()
    configuration = Configuration(
        batch_size=made.batch_size, num_steps=made.num_steps, learning_rate=made.learning_rate
    )
    set_alarms(
        "demo", "demo", {configuration: "the audit refutes it"}, tracking_uri=signed.store.uri
    )
    for asked in (
        {"max_epsilon": 8},
        {"max_delta": 1.0},
        {"certified": True},
        {"where": ["delta < 1"]},
    ):
        assert found(signed, **asked) == ([], {"an audit refutes its ε": 2}), asked
    assert found(signed, max_loss=9.0) == ([1, 2], {})


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


def test_only_a_valid_model_counts_towards_the_limit(signed, keys):
    remove_the_signature(signed, keys)
    table = find_models(signed.store.uri, order_by="loss", limit=1, trusted_keys=[keys["team"][1]])
    assert (table.version.tolist(), table.attrs["left_out"]) == ([2], {"not signed": 1})


def test_a_signed_model_is_refused_where_nothing_checks_signatures(
    signed, keys, base_folder, monkeypatch
):
    """Neither its tags nor its files can say whether the signature is the team's."""
    load_model("models:/demo/1", tracking_uri=signed.store.uri, base=str(base_folder))
    monkeypatch.delitem(entries("raydp.services"), "signature_fits")
    monkeypatch.delitem(entries("raydp.services"), "trusted_keys")
    why = "signed, and no extension that checks signatures is installed"
    uri, whole = signed.store.uri, {f"{why} (install raydp-tune whole)": 2}
    assert found(signed, max_epsilon=8) == ([], whole)
    assert found(signed, max_epsilon=8, verify=True) == ([], whole)
    for load in (load_model, load_tokenizer):
        with pytest.raises(ValueError, match=f"MODEL must .*{why}"):
            load("models:/demo/1", tracking_uri=uri, base=str(base_folder))
    with pytest.raises(ValueError, match=f"alias must not be privacy-preferred .*{why}"):
        promote_model("models:/demo/1", "privacy-preferred", "because", tracking_uri=uri)
    with pytest.raises(ValueError, match=r"--trusted-key must be left out without the extension"):
        find_models(uri, trusted_keys=[keys["team"][1]])
    remove_the_signature(signed, keys)
    assert found(signed, max_epsilon=8)[0] == [1], "an unsigned seal needs no extension"


def test_a_key_that_nothing_signs_by_is_refused(uri, keys, monkeypatch):
    monkeypatch.delitem(entries("raydp.services"), "load_signer")
    with pytest.raises(ValueError, match=r"tracking\.signing_key must be left out without"):
        open_tracker(uri, signing_key=keys["team"][0])


def test_a_new_card_is_sealed_again(uri, record, keys, adapter):
    tracker = open_tracker(uri, signing_key=keys["team"][0])
    model_uri = tracker.log_trial(record())
    before = model_of(tracker).tags[SEAL_TAG]
    changed = record(
        privacy={**record().privacy, "released_together": {"models": 3}}, card="# all three"
    )
    for _ in range(2):
        tracker.update_privacy(model_uri, changed)
        assert found(tracker, trusted_keys=[keys["team"][1]], verify=True) == ([1], {})
    assert model_of(tracker).tags[SEAL_TAG] != before
    assert (folder_of(tracker) / "privacy.md").read_text() == "# all three"


@pytest.mark.parametrize("key", ["team", "other", None])
def test_where_the_trial_s_folder_is_gone_only_the_same_key_seals_again(
    uri, record, keys, tmp_path, key
):
    tracker = open_tracker(uri, signing_key=keys["team"][0])
    tracker.log_trial(record())
    gone = record(
        privacy={**record().privacy, "released_together": {"models": 3}},
        model_dir=tmp_path / "gone",
    )
    signing = None if key is None else SigningKey.load(keys[key][0])
    if key == "other":
        with pytest.raises(
            ValueError,
            match=r"MODEL must be sealed by the same key .*: signed by a key that is not",
        ):
            replace_cards(tracker.store, model_of(tracker), gone, signing)
    else:
        replace_cards(tracker.store, model_of(tracker), gone, signing)
        assert found(tracker, max_epsilon=8, verify=True) == ([1], {})
