"""Training from cached hidden states is training: the same weights, and the cache knows what it
belongs to."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from raydp.extensions.frozen_prefix import prefix
from raydp.extensions.frozen_prefix.prefix import first_trained_layer, with_frozen_prefix
from raydp.spec.sections import AdapterSpec
from raydp.training.comm import LocalComm
from tests.builders import toys
from tests.test_cache import writer

LAST_LAYER = AdapterSpec(
    r=2, alpha=4, target_modules=("q_proj", "down_proj"), layers_to_transform=(2,)
)


def cached_task(
    folder: Path, said: list[str], *, max_bytes: float = 1e9, adapter: AdapterSpec = LAST_LAYER
):
    toy = toys.context(adapter)
    task = with_frozen_prefix(
        toys.task(),
        toy.model,
        toy.parameters,
        weight_hash="toy",
        folder=folder,
        max_bytes=max_bytes,
        say=said.append,
    )
    return toy, task


def test_the_trained_weights_are_the_same(tmp_path: Path) -> None:
    """The hidden states are those of the same kernels on batches of another shape: fp32
    rounding."""
    said: list[str] = []
    plain = toys.context(LAST_LAYER)
    toys.METHOD.train(toys.PLAN, plain, toys.task(), LocalComm(), toys.KEY, None)
    toy, task = cached_task(tmp_path, said)
    assert task.train_hidden is not None
    assert task.train_hidden.first_layer == 2
    toys.METHOD.train(toys.PLAN, toy, task, LocalComm(), toys.KEY, None)
    trained, expected = ({n: p.detach() for n, p in t.parameters.items()} for t in (toy, plain))
    assert toys.distance(trained, expected) <= 1e-5
    assert task.utility(toy.model) == pytest.approx(toys.task().utility(toy.model), abs=1e-6)
    assert not said


@pytest.mark.parametrize("kind", ["soft_prompt", "prefix"])
def test_a_prompt_of_virtual_tokens_leaves_no_frozen_prefix(kind: str, tmp_path: Path) -> None:
    toy, task = cached_task(tmp_path, [], adapter=AdapterSpec(type=kind))
    assert first_trained_layer(toy.model, toy.parameters) == 0
    assert task.train_hidden is None
    assert not list(tmp_path.iterdir())


def test_the_computing_process_reports_the_progress(tmp_path: Path) -> None:
    shares: list[float] = []
    for _ in range(2):
        toy = toys.context(LAST_LAYER)
        with_frozen_prefix(
            toys.task(), toy.model, toy.parameters,
            weight_hash="toy", folder=tmp_path, max_bytes=1e9, say=print, progress=shares.append,
        )  # fmt: skip
    assert shares == sorted(shares)
    assert shares.count(1.0) == 1


def test_it_is_computed_once_and_found_again(tmp_path: Path) -> None:
    cached_task(tmp_path, [])
    (built,) = [p for p in tmp_path.iterdir() if p.is_dir()]
    before = (built / "train.bin").stat().st_mtime_ns
    cached_task(tmp_path, [])
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == [built]
    assert (built / "train.bin").stat().st_mtime_ns == before


def test_other_data_or_weights_have_a_cache_of_their_own(tmp_path: Path) -> None:
    toy = toys.context(LAST_LAYER)
    facts = toys.task().facts()
    for content, weights in (("a", "x"), ("b", "x"), ("a", "y")):
        task = replace(toys.task(), task_facts=replace(facts, content_hash=content))
        with_frozen_prefix(
            task,
            toy.model,
            toy.parameters,
            weight_hash=weights,
            folder=tmp_path,
            max_bytes=1e9,
            say=print,
        )
    assert len([p for p in tmp_path.iterdir() if p.is_dir()]) == 3


def test_too_large_or_nothing_frozen_leaves_the_task_as_it_is(tmp_path: Path) -> None:
    said: list[str] = []
    assert cached_task(tmp_path, said, max_bytes=10)[1].train_hidden is None
    assert "prefix_cache_gib" in said[0]
    assert cached_task(tmp_path, said, adapter=toys.ADAPTER)[1].train_hidden is None
    assert len(said) == 1, "an adapter on the first layer has no frozen prefix: nothing to say"


def test_states_that_would_not_be_used_are_not_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few examples are tried first.

    On some processors bfloat16 rounds too much for batches of another shape.
    """
    said: list[str] = []
    monkeypatch.setitem(prefix.TOLERANCE, torch.float32, -1.0)
    assert cached_task(tmp_path, said)[1].train_hidden is None
    assert not list(tmp_path.iterdir())
    assert said == [
        text
        for text in said
        if text.startswith("the frozen prefix is not used: losses from it differ by")
    ]
    assert len(said) == 1
    monkeypatch.setitem(prefix.TOLERANCE, torch.float32, 1e-4)
    toy, task = cached_task(tmp_path, [])
    assert task.train_hidden is not None
    tried = prefix._tried(toys.task(), toy.model, 2, torch.float32)
    assert tried == pytest.approx(
        prefix._largest_difference(toys.task(), task, toy.model), abs=1e-5
    )


def test_the_first_trained_layer() -> None:
    for adapter, layer in ((LAST_LAYER, 2), (toys.ADAPTER, 0), (AdapterSpec(type="none"), 0)):
        toy = toys.context(adapter)
        assert first_trained_layer(toy.model, toy.parameters) == layer


def test_hidden_states_of_a_killed_sweep_do_not_stay(tmp_path: Path) -> None:
    """Also those of other data and weights, which this sweep does not compute, and scratch folders
    of before."""
    old = tmp_path / "tmpab12cd34"
    old.mkdir()
    os.utime(old, (time.time() - 2 * 86_400,) * 2)
    (tmp_path / "tmpyoung01").mkdir()
    with writer(tmp_path / "other"):
        pass
    _, task = cached_task(tmp_path, [])
    assert task.train_hidden is not None
    left = {p.name for p in tmp_path.iterdir() if p.is_dir()}
    assert left - {"tmpyoung01"} == {p for p in left if len(p) == 32}, left
