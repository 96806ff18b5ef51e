"""Rounds of Tune: every run once and in order. What the driver makes of them is in test_tune.py."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from raydp.sweep.engine import slots
from raydp.sweep.engine.queue import TrialQueue
from raydp.sweep.engine.tune import rounds as tune_rounds
from raydp.sweep.store.results import RunResult


@given(st.integers(0, 3000), st.integers(1, 1500))
def test_rounds_are_the_runs_in_order_and_larger_than_the_slots(
    num_runs: int, num_slots: int
) -> None:
    run_ids = [str(k) for k in range(num_runs)]
    found = list(tune_rounds.rounds(run_ids, num_slots))
    assert [run_id for those in found for run_id in those] == run_ids
    assert all(len(those) >= 4 * num_slots for those in found[:-1])


ROWS = ({"loss": 1.0}, {"loss": 2.0})


def test_the_queue_forgets_saved_results() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=1, max_retries=1)
        await queue.enqueue(["a"], 1)
        waiting = asyncio.create_task(queue.outcome("a"))
        await asyncio.sleep(0)
        run_id, token = await queue.lease(0) or ("", 0)
        await queue.committed(run_id)  # nothing to forget yet
        await queue.complete(run_id, token, RunResult(run_id="a", status="finished", history=ROWS))
        assert (await waiting).history == ROWS
        await queue.committed(run_id)
        assert await queue.outcome("a") == RunResult(run_id="a", status="finished")
        assert not await queue.complete(run_id, token, RunResult(run_id="a", status="finished")), (
            "a result is final"
        )

    asyncio.run(asyncio.wait_for(scenario(), timeout=20))


def test_first_worker_groups_end_at_different_times() -> None:
    assert slots.first_group(0, 1) == slots.TRIALS_PER_GROUP
    sizes = [slots.first_group(slot, 4) for slot in range(4)]
    assert len(set(sizes)) == 4
    assert slots.TRIALS_PER_GROUP / 2 < min(sizes) <= max(sizes) == slots.TRIALS_PER_GROUP
