"""Faults of the names under which hidden states are kept."""

from __future__ import annotations

import pytest

from raydp.extensions.frozen_prefix import prefix
from raydp.extensions.frozen_prefix.checks import CHECKS
from raydp.selftest import subjects
from raydp.tasks.text import language
from tests.selftest.faults import rewrite
from tests.selftest.test_faults import failed


def test_without_a_fault_nothing_fails() -> None:
    assert not failed(CHECKS.checks(None, print))


@pytest.mark.parametrize("key", ["content_hash", "weight_hash"])
def test_a_prefix_cache_without_the_identity_of_its_inputs(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    rewrite(
        monkeypatch, prefix, "_name",
        ("task.facts().content_hash, weight_hash",
         "weight_hash" if key == "content_hash" else "task.facts().content_hash"),
    )  # fmt: skip
    what = "other data" if key == "content_hash" else "another model"
    assert failed(CHECKS.checks(None, print)) == {f"kept hidden states of {what}"}


def test_a_content_hash_that_knows_the_lengths_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(
        monkeypatch, language, "content_hash",
        ("train.update_hash(digest)", "digest.update(train.lengths().tobytes())"),
    )  # fmt: skip
    monkeypatch.setattr(subjects, "content_hash", language.content_hash)
    assert failed(CHECKS.checks(None, print)) == {"kept hidden states of other data"}
