"""A signed model is what its team's key says it is, or it is not found, not loaded and not promoted."""

import pytest

from raydp.analysis.entry_points import entries
from raydp.extensions.publishing.signing import SigningKey
from raydp.tracking import find_models, load_model, load_tokenizer, promote_model, show_model
from raydp.tracking.models.model_folder import replace_cards
from raydp.tracking.sealing.seal import SEAL_TAG, Seal
from tests.marks import slow_unless
from tests.tracking.conftest import open_tracker
from tests.tracking.test_seals import (
    TAMPERED,
    change_epsilon_in_card_and_tags,
    change_weights,
    folder_of,
    found,
    model_of,
    rewrite,
    swap_cards,
)


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
    change_epsilon_in_card_and_tags(tracker)

    def forged(seal):
        said = {**seal.statement, "guarantee": {**seal.statement["guarantee"], "epsilon": "0.99"}}
        return Seal(statement=said, key=seal.key, signature=seal.signature)

    rewrite(tracker, forged)


FORGED = {
    remove_the_signature: ("not signed",) * 2,
    remove_half_of_it: ("not signed",) * 2,
    sign_with_another_key: ("signed by a key that is not trusted",) * 2,
    claim_the_team_s_key: ("signature does not fit",) * 2,
    keep_the_signature_for_another_epsilon: ("signature does not fit",) * 2,
}
"""What was done to a signature -> why a lookup that trusts the team's key leaves the model out."""
WITHOUT_A_KEY = (remove_half_of_it, claim_the_team_s_key, keep_the_signature_for_another_epsilon)
"""What is found out by someone who trusts no key in particular."""
ALL = {**TAMPERED, **FORGED}
QUICK = (change_weights, sign_with_another_key)


def test_signed_models_are_found_shown_loaded_and_promoted(signed, keys, base_folder):
    uri, trusted = signed.store.uri, {"trusted_keys": [keys["team"][1]]}
    assert found(signed, max_epsilon=8, verify=True, **trusted) == ([1, 2], {})
    assert show_model("models:/demo/1", tracking_uri=uri, verify=True, **trusted)["card"] == {
        "signed_by": keys["team"][1], "problem": None, "verified": True,
    }  # fmt: skip
    load_model("models:/demo/1", tracking_uri=uri, base=str(base_folder), **trusted)
    promote_model("models:/demo/1", "privacy-preferred", "because", tracking_uri=uri, **trusted)


@pytest.mark.parametrize("tamper", slow_unless(QUICK, ALL), ids=lambda f: f.__name__)
def test_tampered_models_are_not_found_loaded_or_promoted(signed, keys, base_folder, tamper):
    tamper(signed, keys) if tamper in FORGED else tamper(signed)
    uri, trusted = signed.store.uri, {"trusted_keys": [keys["team"][1]]}
    by_tags, by_files = ALL[tamper]
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
    if tamper in WITHOUT_A_KEY:
        assert found(signed, max_epsilon=8, verify=True)[0] == [2]
        for load in (load_model, load_tokenizer):
            with pytest.raises(ValueError, match=f"MODEL must .*{by_files}"):
                load("models:/demo/1", tracking_uri=uri, base=str(base_folder))


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
