"""The queue's promises: each run is handed out once at a time, retried, committed once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from raydp.analysis.selection.constraints import Constraints
from raydp.sweep.engine import queue as queue_module
from raydp.sweep.engine.leases.run_queue import News
from raydp.sweep.engine.queue import QueueStatus, TrialQueue
from raydp.sweep.engine.stopping import EarlyStopping
from raydp.sweep.store.results import RunResult


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(scenario, timeout=20))


def finished(value: object = None) -> RunResult:
    return RunResult(run_id="", status="finished", details={"value": value})


async def submitted(queue: TrialQueue, *run_ids: str) -> list[asyncio.Task[RunResult]]:
    await queue.enqueue(list(run_ids), len(run_ids))
    tasks = [asyncio.create_task(queue.outcome(run_id)) for run_id in run_ids]
    await asyncio.sleep(0)
    return tasks


def test_runs_are_handed_out_in_the_order_of_submission_and_completed_once() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=2, max_retries=1)
        waiting = await submitted(queue, "a", "b")
        assert await queue.lease(0) == ("a", 1)
        assert await queue.lease(1) == ("b", 1)
        assert await queue.complete("a", 1, finished(1))
        assert not await queue.complete("a", 1, finished(2)), "a result is final"
        assert (await waiting[0]).details == {"value": 1}
        assert (await queue.outcome("a")).details == {"value": 1}, (
            "asking again gives the same result"
        )

    run(scenario())


def test_a_stale_token_commits_nothing_and_is_stopped() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=2, max_retries=1)
        waiting = await submitted(queue, "a")
        _, stale = await queue.lease(0)
        assert await queue.register(0, None, []), "the slot's workers died and came back"
        run_id, token = await queue.lease(1)
        assert token == stale + 1
        assert not await queue.complete(run_id, stale, finished("late"))
        assert await queue.heartbeat(run_id, stale, News(), 0.0) == "lost"
        assert await queue.heartbeat(run_id, token, News(), 0.0) == "go on"
        assert await queue.complete(run_id, token, finished("right"))
        outcome = await waiting[0]
        assert (outcome.details["value"], outcome.attempts) == ("right", 2)

    run(scenario())


@pytest.mark.parametrize("call", ["release", "fail"])
def test_a_stale_holder_neither_releases_nor_fails_the_lease_of_another(call: str) -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=1, max_retries=1)
        waiting = await submitted(queue, "a")
        _, stale = await queue.lease(0)
        assert await queue.register(0, None, []), "the slot's workers died and came back"
        run_id, token = await queue.lease(1)
        await (
            queue.release(run_id, stale)
            if call == "release"
            else queue.fail(run_id, stale, "late", True)
        )
        assert await queue.heartbeat(run_id, token, News(), 0.0) == "go on"
        assert await queue.complete(run_id, token, finished("right"))
        outcome = await waiting[0]
        assert (outcome.details["value"], outcome.attempts) == ("right", 2)

    run(scenario())


def test_a_run_is_retried_then_failed_with_every_reason_and_the_rest_go_on() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=2, max_retries=1)
        waiting = await submitted(queue, "bad", "good")
        for reason in ("first", "second"):
            run_id, token = await queue.lease(0)
            assert run_id == "bad"
            await queue.fail(run_id, token, reason, True)
        outcome = await waiting[0]
        assert outcome.status == "failed"
        assert outcome.reason == "first; then second"
        assert (await queue.lease(0))[0] == "good"

    run(scenario())


@pytest.mark.parametrize(
    "stop", [lambda queue: queue.pause(), lambda queue: queue.drain(["node-0"])]
)
def test_waiting_heartbeat_returns_when_sweep_pauses(
    stop: Callable[[TrialQueue], Awaitable[None]],
) -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=1, max_retries=0)
        await submitted(queue, "a")
        await queue.register(0, None, ["node-0"])
        beat = asyncio.create_task(queue.heartbeat(*await queue.lease(0), News(), 600.0))
        assert not (await asyncio.wait([beat], timeout=0.05))[0]
        await stop(queue)
        assert await asyncio.wait_for(beat, timeout=60) == "pause"

    run(scenario())


def test_a_refused_run_is_not_retried() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=1, max_retries=5)
        (waiting,) = await submitted(queue, "refused")
        await queue.fail(*await queue.lease(0), "its examples depend on each other", False)
        assert (await waiting).reason == "its examples depend on each other"

    run(scenario())


def test_a_pause_gives_runs_back_untried_and_hands_out_nothing() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=2, max_retries=0)
        await submitted(queue, "a", "b")
        run_id, token = await queue.lease(0)
        await queue.heartbeat(run_id, token, News(step=1, num_steps=9), 0.0)
        waiting = asyncio.create_task(queue.saved())
        await queue.pause()
        assert await queue.heartbeat(run_id, token, News(step=1, num_steps=9), 0.0) == "pause"
        assert not waiting.done(), "a run trains"
        await queue.release(run_id, token)
        await waiting
        assert await queue.lease(0) is None
        assert not await queue.has_work_for(0)
        assert (await queue.status()).waiting == 2
        await queue.release(run_id, token)
        assert (await queue.status()).waiting == 2, "it was given back once"

    run(scenario())


@pytest.mark.parametrize(
    "at", [News(), News(step=9, num_steps=9)], ids=["the base model, or a start", "scores"]
)
def test_pause_does_not_wait_for_a_run_that_has_nothing_to_save(at: News) -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=1, max_retries=0)
        await submitted(queue, "a")
        lease = await queue.lease(0)
        await queue.heartbeat(*lease, News(step=8, num_steps=9), 0.0)
        waiting = asyncio.create_task(queue.saved())
        await queue.pause()
        await queue.heartbeat(*lease, News(step=8, num_steps=9), 0.0)
        assert not waiting.done(), "the last step may end"
        await queue.heartbeat(*lease, at, 0.0)
        await asyncio.wait_for(waiting, timeout=60)

    run(scenario())


def test_pause_waits_for_a_run_that_began_to_train_since_its_last_heartbeat() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=1, max_retries=0)
        await submitted(queue, "a")
        lease = await queue.lease(0)
        await queue.heartbeat(*lease, News(), 0.0)  # it prepares; then it trains 4 steps at once
        waiting = asyncio.create_task(queue.saved())
        await queue.pause()
        await asyncio.sleep(0.05)
        assert not waiting.done(), "what the queue knows is older than the pause"
        await queue.heartbeat(*lease, News(step=4, num_steps=9), 0.0)
        assert not waiting.done(), "a run trains"
        await queue.release(*lease)
        await asyncio.wait_for(waiting, timeout=60)

    run(scenario())


def test_outcomes_that_are_not_on_disk_are_returned_without_failures() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=3, max_retries=0)
        await submitted(queue, "on disk", "failed", "new")
        leases = [await queue.lease(0) for _ in range(3)]
        await queue.complete(*leases[0], finished())
        await queue.committed("on disk")
        await queue.fail(*leases[1], "not finite", False)
        await queue.complete(*leases[2], finished("new"))
        assert [outcome.details for outcome in await queue.ended()] == [finished("new").details]

    run(scenario())


def test_runs_of_a_drained_node_are_requeued_without_a_counted_attempt() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=3, max_retries=0)
        waiting = await submitted(queue, "a", "b")
        for slot in (0, 1):
            await queue.register(slot, None, [f"node-{slot}", "shared"] if slot else ["node-0"])
        run_id, token = await queue.lease(0)
        other, other_token = await queue.lease(1)
        await queue.drain(["node-0", "far away"])
        assert await queue.heartbeat(run_id, token, News(), 0.0) == "pause"
        assert await queue.heartbeat(other, other_token, News(), 0.0) == "go on"
        await queue.release(run_id, token)
        assert await queue.lease(0) is None, "its group is to end"
        assert await queue.has_work_for(0)
        await queue.register(0, None, ["node-2"])
        again = await queue.lease(0)
        assert again[0] == run_id
        assert await queue.complete(*again, finished())
        assert (await waiting[0]).attempts == 1, "it does not count as tried"
        idle = asyncio.create_task(queue.lease(0))
        await asyncio.sleep(0.05)
        await queue.drain(["node-2"])
        assert await idle is None, "who waits for a run hears of it"

    run(scenario())


def test_a_worker_that_waits_for_a_run_hears_of_a_pause() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=2, max_retries=0)
        idle = asyncio.create_task(queue.lease(0))
        await asyncio.sleep(0.05)
        await queue.pause()
        assert await idle is None

    run(scenario())


def test_a_hopeless_run_is_stopped_at_its_check() -> None:
    async def scenario() -> None:
        early_stopping = EarlyStopping(
            min_finished=1, slack=0.0, constraints=Constraints(min_gain_share=0.9)
        )
        queue = TrialQueue(expected=3, max_retries=0, early_stopping={"": early_stopping})
        await submitted(queue, "base", "good", "bad")
        (_, base), (_, good), (_, bad) = [await queue.lease(slot) for slot in range(3)]
        assert await queue.check("bad", bad, "1/2", 3.0) is None, "nothing is known yet"
        assert await queue.check("good", good, "1/2", 2.0) is None
        await queue.complete(
            "base", base, RunResult(run_id="base", status="finished", utility_loss=3.0)
        )
        await queue.complete(
            "good", good, RunResult(run_id="good", status="finished", utility_loss=1.0, history=())
        )
        assert (await queue.outcome("good")).checks == {"1/2": 2.0}
        assert "cannot be selected" in await queue.check("bad", bad, "1/2", 2.9)
        assert await queue.check("bad", bad - 1, "1/2", 2.9) is None, (
            "whoever lost the lease is not asked"
        )

    run(scenario())


def test_a_lease_without_heartbeat_goes_to_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "LEASE_SECONDS", 0.2)

    async def scenario() -> None:
        queue = TrialQueue(expected=2, max_retries=1)
        await submitted(queue, "a")
        first = await queue.lease(0)
        second = await queue.lease(1)  # waits until the first lease has expired
        assert (first, second) == (("a", 1), ("a", 2))

    run(scenario())


def test_a_slot_goes_home_when_the_last_run_is_handed_out() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=2, max_retries=1)
        await submitted(queue, "a")
        await queue.lease(0)
        idle = asyncio.create_task(queue.lease(1))
        await asyncio.sleep(0.05)
        assert not idle.done(), "one more run will come"
        assert await queue.has_work_for(2)
        await submitted(queue, "b")
        assert await idle == ("b", 1)
        assert await queue.lease(2) is None
        assert not await queue.has_work_for(2)

    run(scenario())


def test_a_lease_of_a_dead_controllers_worker_is_requeued() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=1, max_retries=1)
        waiting = await submitted(queue, "a")
        run_id, stale = await queue.lease(0)
        assert await queue.has_work_for(0), "the run that it lost, though no other waits"
        assert [
            run_id
            for run_id, reason in (await queue.status()).retried
            if "controller died" in reason
        ] == ["a"]
        assert not await queue.complete(run_id, stale, finished()), (
            "workers outlive their controller"
        )
        run_id, token = await queue.lease(0)
        assert await queue.complete(run_id, token, finished())
        assert (await waiting[0]).attempts == 2
        assert not await queue.has_work_for(0)

    run(scenario())


def test_workers_that_die_before_they_lease_anything_give_up() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=2, max_retries=0, max_idle_starts=2)
        assert [await queue.register(0, None, []) for _ in range(3)] == [True, True, False]
        assert not await queue.has_work_for(0)
        assert await queue.register(1, None, []), "another slot is not concerned"
        waiting = await submitted(queue, "a")
        await queue.explain(0, "the folder is not there", False)
        await queue.abandon("no slot is left")
        failed = {"status": "failed", "reason": "no slot is left; the folder is not there"}
        assert (await waiting[0]) == RunResult(run_id="a", **failed)
        await queue.enqueue(["later"], 1)
        assert (await queue.outcome("later")) == RunResult(run_id="later", **failed)

    run(scenario())


def test_workers_that_can_never_work_give_up_at_once() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=1, max_retries=0)
        assert await queue.register(0, None, [])
        await queue.explain(0, "the folder is not there", True)
        assert not await queue.register(0, None, [])
        assert not await queue.has_work_for(0)
        waiting = await submitted(queue, "a")
        await queue.abandon("no slot is left")
        assert (await waiting[0]).reason == "no slot is left; the folder is not there"

    run(scenario())


def test_tunes_actors_wait_for_each_other_once_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=3, max_retries=0)
        first = asyncio.create_task(queue.gather("actor 1", 2, "round"))
        await asyncio.sleep(0.05)
        assert not first.done()
        await queue.gather("actor 2", 2, "round")
        await first
        await queue.gather("actor 1", 2, "round")  # its next trial
        later = asyncio.create_task(queue.gather("actor 3", 2, "next round"))
        await asyncio.sleep(0.05)
        assert not later.done(), "those of the round before are gone"
        await queue.gather("actor 4", 2, "next round")
        await later
        monkeypatch.setattr(queue_module, "GATHER_SECONDS", 0.05)
        await queue.gather("actor 1", 3, "round")  # one never comes

    run(scenario())


def test_workers_that_were_replaced_take_nothing_any_more() -> None:
    """Ray lets a call go on whose caller has died."""

    async def scenario() -> None:
        queue = TrialQueue(expected=1, max_retries=0)
        assert await queue.register(0, None, [])
        of_the_dead = asyncio.create_task(queue.lease(0))
        await asyncio.sleep(0.05)
        assert await queue.register(0, None, [])
        waiting = asyncio.create_task(queue.lease(0))
        await asyncio.sleep(0.05)
        await submitted(queue, "a")
        assert await of_the_dead is None
        assert await waiting == ("a", 1)

    run(scenario())


def test_a_closed_queue_sends_idle_slots_home() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=5, max_retries=1)
        await submitted(queue, "a")
        assert await queue.lease(0) == ("a", 1)
        idle = asyncio.create_task(queue.lease(1))
        await asyncio.sleep(0.01)
        assert not idle.done(), "four more may come"
        await queue.close(2)
        await asyncio.sleep(0.01)
        assert not idle.done(), "the second of two is on its way"
        await submitted(queue, "b")
        assert await idle == ("b", 1)
        assert await queue.lease(0) is None
        assert not await queue.has_work_for(2)

    run(scenario())


def test_the_preparation_of_a_slot_is_shown_until_it_has_a_run() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=1, max_retries=0)
        for slot in (0, 1):
            await queue.register(slot, None, [])
        await queue.prepare(0, "loads the base model")
        assert (await queue.status()).preparing == {
            0: "loads the base model",
            1: "waits for the base model",
        }
        await queue.enqueue(["a"], 1)
        assert await queue.lease(0) is not None
        assert (await queue.status()).preparing == {1: "waits for the base model"}
        assert await queue.lease(1) is None, "there is no other run"
        assert (await queue.status()).preparing == {}
        await queue.prepare(0, "computes the frozen prefix, 90 %")
        assert (await queue.status()).preparing == {}, "this note came late"

    run(scenario())


def test_a_slot_that_gives_up_prepares_nothing_any_more() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=2, max_retries=0, max_idle_starts=1)
        assert await queue.register(0, None, [])
        assert not await queue.register(0, None, [])
        assert not await queue.has_work_for(0)
        assert (await queue.status()).preparing == {}
        await queue.register(1, None, [])
        await queue.pause()
        assert await queue.lease(1) is None
        assert (await queue.status()).preparing == {}

    run(scenario())


def test_abandoned_runs_are_leased_to_nobody() -> None:
    async def scenario() -> None:
        queue = TrialQueue(expected=2, max_retries=5)
        await queue.enqueue(["a", "b"], 2)
        run_id, token = await queue.lease(0) or ("", 0)
        await queue.abandon("no worker group is left")
        await queue.saved()
        await queue.fail(run_id, token, "late", True)
        await queue.release(run_id, token)
        await queue.register(0, None, [])
        assert not await queue.complete(run_id, token, finished())
        await queue.enqueue(["c"], 1)
        assert [(await queue.outcome(r)).status for r in ("a", "b", "c")] == ["failed"] * 3
        assert (await queue.status()) == QueueStatus(running={}, waiting=0)

    run(scenario())
