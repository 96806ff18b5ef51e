"""Faults of the noise on votes, each of which a check of the self-test finds."""

from __future__ import annotations

import pytest

from raydp.extensions.pate.checks import public_check, vote_checks
from raydp.extensions.pate.method import PATE
from raydp.extensions.pate.with_public import WithPublicTask
from tests.selftest.faults import claiming, rewrite
from tests.selftest.test_accounting_faults import each_split, failed_of
from tests.selftest.test_faults import failed


def test_votes_with_5_percent_less_noise_than_the_event_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the formula says the right thing and less is drawn, and where the event itself says
    more."""
    asked = PATE(threshold=30.0, threshold_noise=1.5)
    with monkeypatch.context() as patch:
        rewrite(
            patch,
            PATE,
            "released",
            ("stream.normal(votes.size,", "0.95 * stream.normal(votes.size,"),
        )
        assert "noise on the counts" in failed(vote_checks(asked))
    claiming(monkeypatch, PATE, noise_multiplier=lambda sigma: 1.05 * sigma)
    assert "noise of all answers" in failed(vote_checks(asked))


def test_votes_whose_noise_is_the_same_under_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(monkeypatch, PATE, "released", ("key=key", "key=bytes(32)"))
    assert failed(vote_checks(PATE(threshold=30.0, threshold_noise=1.5))) == {"noise of two keys"}


@pytest.mark.parametrize(
    "noise",
    [
        'stream.normal(len(votes), step=0, purpose="votes")',
        "noise[:, 0]",
        "noise.ravel()[: len(votes)]",
    ],
    ids=["the stream of the counts", "the first count's", "the first counts'"],
)
def test_a_threshold_whose_noise_is_that_of_the_counts(
    monkeypatch: pytest.MonkeyPatch, noise: str
) -> None:
    rewrite(
        monkeypatch, PATE, "released", ('stream.normal(len(votes), step=0, purpose="check")', noise)
    )
    found = failed(vote_checks(PATE(threshold=30.0, threshold_noise=1.5)))
    assert found == {"noise of the threshold's check and on the counts"}


@pytest.mark.slow
@each_split
def test_a_split_that_one_row_more_moves(monkeypatch: pytest.MonkeyPatch, split: str) -> None:
    old = "[is_held_out(content, self.fraction, self.data_seed) for content in contents]"
    rewrite(monkeypatch, WithPublicTask, "build", (old, split.format("list(contents)")))
    assert "rows that one row more moves (with_public)" in failed_of(lambda: [public_check()])
