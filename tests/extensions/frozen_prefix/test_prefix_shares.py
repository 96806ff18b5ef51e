"""The frozen prefix is computed by several processes together, each its shares; a kill loses one
share at most."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raydp.extensions.frozen_prefix import shares as prefix_shares
from raydp.extensions.frozen_prefix.prefix import planned_tokens, with_frozen_prefix
from raydp.extensions.frozen_prefix.shares import (
    SHARES,
    Share,
    compute_together,
    remove_abandoned_shares,
    shares_of,
    tokens_left,
)
from raydp.spec.sections import AdapterSpec
from raydp.tasks.text.examples import TokenizedExamples
from tests.builders import toys
from tests.processes import forked

pytestmark = pytest.mark.xdist_group("invariants")

COUNT = 12
EXAMPLES = TokenizedExamples.from_lists([[1] * (2 + i % 3) for i in range(COUNT)])


@pytest.fixture(autouse=True)  # the processes of a pool have shares of the usual size
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shares of a few examples each."""
    monkeypatch.setattr(prefix_shares, "BATCH_TOKENS", 4)
    monkeypatch.setattr(prefix_shares, "SHARE_TOKENS", 8)
    monkeypatch.setattr(prefix_shares, "POLL_SECONDS", 0.01)


def compute(folder: Path, seconds: float = 0.0, killed_after: int | None = None) -> list[float]:
    """Write 1 + its number at each token of a share, and note which process did it.

    Return the progress.
    """
    shares, told, done = shares_of({"train.bin": EXAMPLES}), list[float](), list[str]()

    def work(share: Share, file: Path, count: object) -> None:
        with (folder / f"{os.getpid()}.log").open("a") as log:
            log.write(f"{share.name}\n")
        if killed_after == len(done):
            os.kill(os.getpid(), signal.SIGKILL)
        out = np.memmap(file, np.int32, "r+")
        for batch in share.batches:
            for i in batch:
                out[EXAMPLES.offsets[i] : EXAMPLES.offsets[i + 1]] = 1 + int(share.name)
            time.sleep(seconds)
            count(int(EXAMPLES.lengths()[batch].sum()))
        done.append(share.name)

    compute_together(
        folder / "target", {"train.bin": 4 * len(EXAMPLES.token_ids)}, shares, work, told.append
    )
    return told


def expected() -> np.ndarray:
    values = np.zeros(len(EXAMPLES.token_ids), np.int32)
    for share in shares_of({"train.bin": EXAMPLES}):
        for i in np.concatenate(share.batches):
            values[EXAMPLES.offsets[i] : EXAMPLES.offsets[i + 1]] = 1 + int(share.name)
    return values


def written(folder: Path) -> np.ndarray:
    return np.fromfile(folder / "target" / "train.bin", np.int32)


def logs(folder: Path) -> list[list[str]]:
    return [log.read_text().split() for log in folder.glob("*.log")]


def wait_for_the_other(folder: Path) -> None:
    """Wait until the other process has begun, however busy the machine is."""
    deadline = time.monotonic() + 60
    while not any(logs(folder)):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_shares_hold_every_example_once_whoever_computes_them() -> None:
    many = TokenizedExamples.from_lists([[1] * (2 + i % 7) for i in range(4000)])
    shares = shares_of({"train.bin": many, "heldout.bin": EXAMPLES})
    assert len({share.name for share in shares}) == len(shares)
    for file, examples in (("train.bin", many), ("heldout.bin", EXAMPLES)):
        found = np.concatenate([b for share in shares if share.file == file for b in share.batches])
        assert sorted(found) == list(range(len(examples)))
    assert sum(share.tokens for share in shares) == len(many.token_ids) + len(EXAMPLES.token_ids)
    assert len(shares) < 2 * prefix_shares.MOST_SHARES, "however many examples there are"


def test_two_processes_divide_the_shares(tmp_path: Path) -> None:
    other = os.fork()
    if other == 0:
        (tmp_path / "told.json").write_text(json.dumps(compute(tmp_path, seconds=0.05)))
        os._exit(0)
    wait_for_the_other(tmp_path)
    told = [compute(tmp_path, seconds=0.05)]
    assert os.waitpid(other, 0)[1] == 0
    told.append(json.loads((tmp_path / "told.json").read_text()))
    first, second = logs(tmp_path)
    assert first
    assert second
    assert sorted(first + second, key=int) == [
        share.name for share in shares_of({"train.bin": EXAMPLES})
    ]
    np.testing.assert_array_equal(written(tmp_path), expected())
    assert {p.name for p in (tmp_path / "target").iterdir()} == {"train.bin"}
    assert not (tmp_path / f"target{SHARES}").exists()
    for shares in told:
        assert shares == sorted(set(shares))
        assert shares[-1] == 1.0, "everybody tells of the whole"


def test_a_killed_process_loses_one_share_and_the_others_compute_it(tmp_path: Path) -> None:
    killed = os.fork()
    if killed == 0:
        compute(tmp_path, seconds=0.02, killed_after=1)
        os._exit(1)
    wait_for_the_other(tmp_path)
    compute(tmp_path, seconds=0.02)
    assert os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1]) == -signal.SIGKILL
    np.testing.assert_array_equal(written(tmp_path), expected())
    assert {p.name for p in (tmp_path / "target").iterdir()} == {"train.bin"}
    everything = [name for log in logs(tmp_path) for name in log]
    assert len(everything) == len(set(everything)) + 1


def test_shares_finished_before_a_kill_stay(tmp_path: Path) -> None:
    shares = shares_of({"train.bin": EXAMPLES})
    child = os.fork()
    if child == 0:
        compute(tmp_path, killed_after=2)
        os._exit(1)
    os.waitpid(child, 0)
    assert not (tmp_path / "target").exists()
    left = tokens_left(tmp_path / "target", shares)
    assert left == sum(share.tokens for share in shares[2:])
    told = compute(tmp_path)
    assert told[0] == pytest.approx(1 - left / len(EXAMPLES.token_ids))
    np.testing.assert_array_equal(written(tmp_path), expected())
    (before,), again = sorted(logs(tmp_path), key=len)[:1], sorted(logs(tmp_path), key=len)[1]
    assert set(before) & set(again) == {shares[2].name}
    assert tokens_left(tmp_path / "target", shares) == 0


def test_a_prefix_that_nobody_continues_is_removed_after_a_day(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        compute(tmp_path, killed_after=2)
        os._exit(1)
    os.waitpid(child, 0)
    begun = tmp_path / f"target{SHARES}"
    remove_abandoned_shares(tmp_path)
    assert begun.is_dir(), "it may be continued"
    for path in (*begun.iterdir(), begun):
        os.utime(path, (1.0, 1.0))
    with prefix_shares._locked(tmp_path / "target.lock", prefix_shares.fcntl.LOCK_SH):
        remove_abandoned_shares(tmp_path)
    assert begun.is_dir(), "somebody computes it"
    remove_abandoned_shares(tmp_path)
    assert not begun.exists()


def test_a_computation_that_fails_leaves_its_share_to_others(tmp_path: Path) -> None:
    def fails(share: Share, file: Path, count: object) -> None:
        raise MemoryError

    shares = shares_of({"train.bin": EXAMPLES})
    with pytest.raises(MemoryError):
        compute_together(
            tmp_path / "target", {"train.bin": 4 * len(EXAMPLES.token_ids)}, shares, fails, print
        )
    compute(tmp_path)
    np.testing.assert_array_equal(written(tmp_path), expected())


# Of a task.

LAST_LAYER = AdapterSpec(r=2, alpha=4, target_modules=("q_proj",), layers_to_transform=(2,))


def hidden_states(folder: Path, planned: float = float("inf")) -> np.ndarray | None:
    toy = toys.context(LAST_LAYER)
    task = with_frozen_prefix(
        toys.task(), toy.model, toy.parameters, weight_hash="toy", folder=folder, max_bytes=1e9, say=print,
        planned_tokens=planned,
    )  # fmt: skip
    return None if task.train_hidden is None else np.array(task.train_hidden.values)


@pytest.mark.slow
def test_hidden_states_of_two_processes_are_those_of_one(tmp_path: Path) -> None:
    alone = hidden_states(tmp_path / "one")
    with ProcessPoolExecutor(2, mp_context=forked()) as pool:
        together = list(pool.map(hidden_states, [tmp_path / "two"] * 2))
    for found in together:
        np.testing.assert_allclose(
            found, alone, rtol=0, atol=1e-5
        )  # one or two threads: other orders of addition


@pytest.mark.slow
def test_a_sweep_too_short_for_it_to_pay_does_without(tmp_path: Path) -> None:
    """One forward pass over all tokens costs as much as it saves in steps that put as many through
    the layers."""
    task = toys.task()
    everything = len(task.train.token_ids) + len(task.heldout.token_ids)
    assert hidden_states(tmp_path, planned=everything) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert hidden_states(tmp_path, planned=everything + 1) is not None
    assert hidden_states(tmp_path, planned=0) is None, "0 tokens are not more than 0"
    assert hidden_states(tmp_path, planned=1) is not None, "what is there costs nothing"


def test_planned_tokens_are_those_of_steps_and_evaluations() -> None:
    task = toys.task()
    plans = [
        replace(toys.PLAN, batch_size=4, num_steps=10),
        replace(toys.PLAN, batch_size=2, num_steps=5),
    ]
    mean, heldout = task.lengths().mean(), task.heldout_lengths().sum()
    assert planned_tokens(task, plans, lambda plan: 3) == pytest.approx(50 * mean + 7 * heldout)
    imported = [replace(plan, source="elsewhere") for plan in plans]
    assert planned_tokens(task, imported, lambda plan: 1) == pytest.approx(3 * heldout)
    whole = replace(task, task_facts=replace(task.facts(), num_units=len(task.lengths()) // 2))
    assert planned_tokens(whole, plans, lambda plan: 3) == pytest.approx(
        100 * mean + 7 * heldout
    ), "a unit is a user"
