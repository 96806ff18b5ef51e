"""The state of the queue by itself: whatever happens in any order, each run ends once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raydp.sweep.engine.leases.run_queue import News, RunQueue
from raydp.sweep.engine.leases.slot_board import SlotBoard
from raydp.sweep.store.results import RunResult

RUNS = ["a", "b", "c"]
FINISHED = RunResult(run_id="", status="finished")
CALLS = ("lease", "complete", "fail", "release", "expire", "silent", "beat")
HISTORY = st.lists(
    st.tuples(st.sampled_from(CALLS), st.sampled_from(RUNS), st.integers(0, 4), st.integers(0, 1))
)


@given(HISTORY, st.integers(0, 2))
def test_each_run_ends_once_whatever_happens(
    history: list[tuple[str, str, int, int]], max_retries: int
) -> None:
    queue = RunQueue(expected=len(RUNS), max_retries=max_retries)
    queue.enter(RUNS, len(RUNS))
    newest, counted = dict.fromkeys(RUNS, 0), dict.fromkeys(RUNS, 0)
    for now, (call, run_id, token, slot) in enumerate(history):
        held = queue.slot_of(run_id, token) is not None
        assert not held or token == newest[run_id], "an earlier token holds nothing"
        before = queue.outcome(run_id)
        if call == "lease" and (leased := queue.lease(slot, now)) is not None:
            assert leased[1] == newest[leased[0]] + 1, "each lease has a new token"
            newest[leased[0]] += 1
        elif call == "complete":
            counts = queue.complete(run_id, token, FINISHED)
            assert counts == held
            counted[run_id] += counts
        elif call == "fail":
            queue.fail(run_id, token, "it failed", retry=True)
        elif call == "release":
            queue.release(run_id, token)
        elif call == "expire":
            queue.expire(slot, "the worker group died")
        elif call == "silent":
            queue.expire_silent(now - 2, "no heartbeat")
        elif call == "beat":
            queue.beat(run_id, token, News(step=1, num_steps=2), now)
        assert before is None or queue.outcome(run_id) == before, "an outcome is final"
        ended = sum(queue.outcome(name) is not None for name in RUNS)
        assert ended + len(queue.running) + queue.num_waiting == len(RUNS), "no run is lost"
    assert max(counted.values()) <= 1
    assert all(
        (queue.outcome(r) or FINISHED).attempts in (None, *range(1, 2 + max_retries)) for r in RUNS
    )


def test_one_run_more_enters_at_each_commit() -> None:
    queue = RunQueue(expected=4, max_retries=0)
    queue.enter(["a", "b", "c", "d"], 2)
    assert queue.num_waiting == 2
    assert not queue.is_exhausted
    run_id, token = queue.lease(0, 0.0) or ("", 0)
    assert queue.complete(run_id, token, FINISHED)
    assert queue.num_waiting == 1, "the outcome is not on disk yet"
    queue.committed(run_id)
    assert queue.num_waiting == 2
    queue.enter(["d"], 1)  # a trial of Tune follows it before its turn
    assert queue.num_waiting == 3
    assert queue.is_exhausted is False
    assert [(queue.lease(0, 0.0) or ("",))[0] for _ in range(3)] == ["b", "c", "d"]
    assert queue.is_exhausted


def test_a_slot_whose_workers_always_die_gives_up_and_says_why() -> None:
    board = SlotBoard(max_idle_starts=1)
    assert board.register(0, None, ["node"])
    board.leased(0)
    assert board.register(0, None, ["node"]), "a lease between two starts begins the count again"
    board.explain(0, "no memory", for_good=False)
    assert not board.register(0, None, ["node"])
    assert (board.starts(0), board.may_start(0), board.reasons()) == (3, False, ["no memory"])
    board.drain(["node"])
    assert board.leaves(0)
    assert not board.leaves(1), "a slot that has not started is on no node"
