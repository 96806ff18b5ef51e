"""A seal that a review makes again, by another key."""

import pytest

from raydp.tracking import seal_model
from tests.tracking.test_seals import change_epsilon_in_the_card, change_weights, found


@pytest.mark.slow
def test_a_review_signs_with_another_key(signed, keys, base_folder):
    made = seal_model("models:/demo/1", tracking_uri=signed.store.uri, signing_key=keys["other"][0])
    assert made["signed_by"] == keys["other"][1]
    assert found(signed, trusted_keys=[keys["other"][1]], verify=True)[0] == [1]
    both = [public for _, public in keys.values()]
    assert found(signed, trusted_keys=both, verify=True)[0] == [1, 2]


def test_a_review_signs_a_changed_model_only_on_request(signed, keys):
    change_weights(signed)
    where = {"tracking_uri": signed.store.uri, "signing_key": keys["team"][0]}
    with pytest.raises(ValueError, match="files differ from the card's"):
        seal_model("models:/demo/1", **where)
    seal_model("models:/demo/1", unseen=True, **where)
    assert found(signed, trusted_keys=[keys["team"][1]], verify=True)[0] == [1, 2]
    change_epsilon_in_the_card(signed)
    with pytest.raises(
        ValueError, match=r"MODEL must say the same in its card and its tags, .*epsilon"
    ):
        seal_model("models:/demo/1", unseen=True, **where)
