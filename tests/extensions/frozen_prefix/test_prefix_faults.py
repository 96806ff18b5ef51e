"""Faults of the names under which hidden states are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from raydp.extensions.frozen_prefix import prefix
from raydp.extensions.frozen_prefix.checks import CHECKS
from raydp.selftest import subjects
from raydp.selftest.checks.sensitivity import sensitivity_checks
from raydp.selftest.spec_subject import spec_subjects
from raydp.spec.reading import load_spec
from raydp.tasks.text import language
from tests.marks import slow_after
from tests.selftest.faults import rewrite
from tests.selftest.test_faults import failed
from tests.selftest.test_reduced import Mixing, subjects_of


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


@pytest.mark.parametrize(
    ("position", "share"),
    slow_after(1, [(None, 0.0), (2, 0.1), (2, 5e-4), (6, 0.1)]),
    ids=["none", "below the adapter", "hardly, below the adapter", "above the adapter"],
)
def test_a_deep_frozen_layer_that_mixes_examples(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, position: int | None, share: float
) -> None:
    """Below the adapter it is in the hidden states that a sweep keeps, which are alone as in
    company by themselves. Where the losses from them differ by less than a sweep's tolerance, only
    a pass through all layers sees it."""

    def change(stack: nn.ModuleList) -> None:
        if position is not None:
            stack[position].mlp = Mixing(stack[position].mlp, share)

    adapter = {"r": 2, "target_modules": ["q_proj"], "layers_to_transform": [4]}
    monkeypatch.setitem(prefix.TOLERANCE, torch.float32, 2e-2)  # that of bfloat16
    subjects = subjects_of(monkeypatch, tmp_path, adapter, change)
    found = [failed(sensitivity_checks(subject)) for subject in subjects]
    kept = subjects[0].task.batch(subjects[0].indices).hidden is not None
    assert len(found) == 1 + kept
    assert kept or share == 0.1
    if share == 5e-4:
        assert "alone as in company" not in found[0]
    assert ("alone as in company" in found[-1]) == (position is not None)
    if position is None:
        assert found == [set(), set()]


def test_the_frozen_prefix_of_a_spec_is_checked_as_its_sweep_would_use_it(
    write_spec: Callable[..., Path],
) -> None:
    adapter = {"r": 2, "target_modules": ["q_proj"], "layers_to_transform": [1]}
    spec = load_spec(write_spec(model={"name": "tiny", "adapter": adapter}))
    subject, every_layer = spec_subjects(spec)
    assert subject.task.batch(subject.indices).first_layer == 1
    assert every_layer.task.batch(every_layer.indices).hidden is None
    assert all(c.passed for s in (subject, every_layer) for c in sensitivity_checks(s))
