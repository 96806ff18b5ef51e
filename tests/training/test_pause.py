"""A run that is asked to pause goes on later as if nothing had been; a check ends a run on every
rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm, DistributedComm, LocalComm
from raydp.training.ledger import Ledger
from raydp.training.observers import Accounting, AfterStep, StepReport
from raydp.training.trial import Paused, Trained, TrainingContext
from tests.builders import toys
from tests.marks import slow_after

pytestmark = pytest.mark.xdist_group("invariants")


def train(toy: TrainingContext, comm: Comm, folder: Path | None = None) -> Trained:
    store = None if folder is None else CheckpointStore(folder=folder, run_id=toys.PLAN.run_id)
    return toys.METHOD.train(toys.PLAN, toy, toys.task(), comm, toys.KEY, store)


def weights_of(toy: TrainingContext) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in toy.parameters.items()}


def pausing_after(steps: int, *, microbatches: int) -> TrainingContext:
    """Hear of a pause in a step, before its first micro-batch or a later one; no checkpoint is due
    by itself."""
    asked, done = [0], [0]

    def note(report: StepReport) -> None:
        asked[0], done[0] = 0, report.done

    def pause() -> bool:
        asked[0] += 1
        return done[0] == steps and asked[0] > microbatches

    size = 1 if microbatches else toys.NUM_EXAMPLES
    return toys.context(
        microbatch_size=size, checkpoint_seconds=1e9, pause_fn=pause, observers=(AfterStep(note),)
    )


def _pause_and_go_on(
    rank: int, world_size: int, rendezvous: str, folder: str, microbatches: int
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
    )
    comm, here = DistributedComm("cpu"), Path(folder)
    toy = pausing_after(3, microbatches=microbatches)
    toy = toy if rank == 0 else replace(toy, pause_fn=lambda: False)  # only rank 0 hears the queue
    toy = replace(toy, accounting=Accounting(ledger=Ledger(here / f"ledger-{rank}")))
    with pytest.raises(Paused, match="after 3 of"):
        train(toy, comm, here)
    assert rank != 0 or Ledger(here / "ledger-0").summary()["executions"] == 3, (
        "the step left has added no noise"
    )
    again = toys.context(microbatch_size=toys.NUM_EXAMPLES)
    assert train(again, comm, here).resumed_from == 3
    save_file(weights_of(again), here / f"weights-{rank}")
    dist.destroy_process_group()


@pytest.mark.parametrize("microbatches", [0, 1], ids=["before a step", "within a step"])
@pytest.mark.parametrize("world_size", slow_after(1, [2, 1]))
def test_paused_and_gone_on_is_as_if_nothing_had_been(
    tmp_path: Path, world_size: int, microbatches: int
) -> None:
    """1e-5 for another cut of the batch (see test_invariants)."""
    reference = toys.train(microbatch_size=toys.NUM_EXAMPLES)
    toys.in_ranks(
        _pause_and_go_on, world_size, str(tmp_path / "rendezvous"), str(tmp_path), microbatches
    )
    for rank in range(world_size):
        assert toys.distance(reference, load_file(tmp_path / f"weights-{rank}")) <= 1e-5


def test_a_run_that_a_check_ends_keeps_its_executed_steps() -> None:
    checks = toys.EndsAt({2, 4, 5}, lambda done: done == 4)
    trained = train(toys.context(observers=(checks,)), LocalComm())
    assert trained.ended_early
    assert checks.asked == [2, 4]
    assert len(trained.history) == 4


def test_checks_that_end_nothing_change_nothing() -> None:
    checks = toys.EndsAt({2, 4}, lambda done: False)
    toy = toys.context(microbatch_size=toys.NUM_EXAMPLES, observers=(checks,))
    assert not train(toy, LocalComm()).ended_early
    assert toys.distance(toys.train(microbatch_size=toys.NUM_EXAMPLES), weights_of(toy)) == 0


def test_a_run_that_was_killed_in_its_check_is_checked_again(tmp_path: Path) -> None:
    def killed(done: int) -> bool:
        raise KeyboardInterrupt

    first, again = (
        toys.context(observers=(toys.EndsAt({2}, answer_fn),), checkpoint_seconds=0.0)
        for answer_fn in (killed, lambda done: True)
    )
    with pytest.raises(KeyboardInterrupt):
        train(first, LocalComm(), tmp_path)
    trained = train(again, LocalComm(), tmp_path)
    assert (trained.resumed_from, trained.ended_early, len(trained.history)) == (2, True, 2)
