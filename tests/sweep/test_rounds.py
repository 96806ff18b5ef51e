"""Rounds of Tune: every run once, in order, the largest first; and no slot waits for a round's end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydp import Sweep
from raydp.sweep.engine import slots
from raydp.sweep.engine.queue import TrialQueue
from raydp.sweep.engine.tune import rounds as tune_rounds
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.results import RunResult
from tests.builders.specs import small_spec
from tests.sweep.undisturbed import runs_in


@given(st.integers(0, 3000), st.integers(1, 1500))
def test_rounds_are_the_runs_in_order_and_larger_than_the_slots(num_runs: int, num_slots: int) -> None:
    run_ids = [str(k) for k in range(num_runs)]
    found = list(tune_rounds.rounds(run_ids, num_slots))
    assert [run_id for those in found for run_id in those] == run_ids
    assert all(len(those) >= 4 * num_slots for those in found[:-1])


@pytest.mark.slow
def test_the_driver_runs_the_largest_first_across_rounds_and_goes_on_after_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slot, so the order in which the ledgers were written is the order in which runs were begun."""
    monkeypatch.setattr(tune_rounds, "TRIALS_PER_ROUND", 2)
    monkeypatch.setattr(tune_rounds, "ROUND_PER_SLOT", 1)
    space = {"points": [[16, 1, 0.01], [16, 2, 0.01], [16, 4, 0.01], [32, 3, 1e38], [16, 3, 0.01]]}
    method, cluster = {"name": "dp_sgd", "max_grad_norm": 0.1}, {"max_concurrent_trials": 1, "max_retries": 0}
    spec = small_spec(tmp_path, space=space, method=method, cluster=cluster)
    sweep = Sweep(spec)
    result = sweep.run()
    assert (result.counts.finished, result.counts.failed) == (4, 1)
    (failure,) = result.counts.failures
    assert "utility_loss is" in failure.reason, "a learning rate that overflows fp32"
    assert result.selected.configuration.learning_rate == 0.01
    assert runs_in(spec["tracking"]["uri"]) == {"parents": 1, "children": 5, "versions": 4}
    assert SweepFolder.open(result.folder).result(failure.run_id).status == "failed"
    planned = sweep.points()
    computes = planned["batch_size"] * planned["num_steps"]
    assert computes.is_monotonic_decreasing
    written = [(result.folder / "trials" / run_id / "ledger.txt").stat().st_mtime_ns for run_id in planned["run_id"]]
    assert written == sorted(written)


ROWS = ({"loss": 1.0}, {"loss": 2.0})


def test_the_queue_forgets_what_is_on_disk() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=1, max_retries=1)
        await queue.enqueue(["a"])
        waiting = asyncio.create_task(queue.outcome("a"))
        await asyncio.sleep(0)
        run_id, token = await queue.lease(0) or ("", 0)
        await queue.forget(run_id)  # nothing to forget yet
        await queue.complete(run_id, token, RunResult(run_id="a", status="finished", history=ROWS))
        assert (await waiting).history == ROWS
        await queue.forget(run_id)
        assert await queue.outcome("a") == RunResult(run_id="a", status="finished")
        assert not await queue.complete(run_id, token, RunResult(run_id="a", status="finished")), "a result is final"

    asyncio.run(asyncio.wait_for(scenario(), timeout=20))


def test_first_worker_groups_end_at_different_times() -> None:
    assert slots.first_group(0, 1) == slots.TRIALS_PER_GROUP
    sizes = [slots.first_group(slot, 4) for slot in range(4)]
    assert len(set(sizes)) == 4
    assert slots.TRIALS_PER_GROUP / 2 < min(sizes) <= max(sizes) == slots.TRIALS_PER_GROUP
