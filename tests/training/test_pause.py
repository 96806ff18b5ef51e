"""A run that is asked to pause goes on later as if nothing had been; a check ends a run on every rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm, DistributedComm, LocalComm
from raydp.training.trial import Paused, Trained, TrainingContext
from tests.builders import toys
from tests.marks import slow_after


def train(toy: TrainingContext, comm: Comm, folder: Path | None = None) -> Trained:
    store = None if folder is None else CheckpointStore(folder=folder, run_id=toys.PLAN.run_id)
    return toys.METHOD.train(toys.PLAN, toy, toys.task(), comm, toys.KEY, store)


def weights_of(toy: TrainingContext) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in toy.parameters.items()}


def pausing_in(step: int) -> TrainingContext:
    """Asked before each step; no checkpoint is due by itself."""
    asked: list[int] = []

    def pause() -> bool:
        asked.append(1)
        return len(asked) == step

    return toys.context(microbatch_size=toys.NUM_EXAMPLES, checkpoint_seconds=1e9, pause_fn=pause)


def _pause_and_go_on(rank: int, world_size: int, rendezvous: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
    comm, here = DistributedComm("cpu"), Path(folder)
    toy = pausing_in(3) if rank == 0 else replace(pausing_in(3), pause_fn=None)  # only rank 0 hears the queue
    with pytest.raises(Paused, match="after 3 of"):
        train(toy, comm, here)
    again = toys.context(microbatch_size=toys.NUM_EXAMPLES)
    assert train(again, comm, here).resumed_from == 3
    save_file(weights_of(again), here / f"weights-{rank}")
    dist.destroy_process_group()


@pytest.mark.parametrize("world_size", slow_after(1, [2, 1]))
def test_paused_and_gone_on_is_as_if_nothing_had_been(tmp_path: Path, world_size: int) -> None:
    """1e-5 for another cut of the batch (see test_invariants)."""
    reference = toys.train(microbatch_size=toys.NUM_EXAMPLES)
    toys.in_ranks(_pause_and_go_on, world_size, str(tmp_path / "rendezvous"), str(tmp_path))
    for rank in range(world_size):
        assert toys.distance(reference, load_file(tmp_path / f"weights-{rank}")) <= 1e-5


def test_a_check_ends_a_run_with_what_it_has_executed() -> None:
    seen: list[int] = []

    def check(done: int) -> bool:
        seen.append(done)
        return done == 4

    toy = toys.context(check_steps=frozenset({2, 4, 5}), check_fn=check)
    trained = train(toy, LocalComm())
    assert trained.ended_early
    assert seen == [2, 4]
    assert len(trained.history) == 4


def test_checks_that_end_nothing_change_nothing() -> None:
    toy = toys.context(microbatch_size=toys.NUM_EXAMPLES, check_steps=frozenset({2, 4}))
    assert not train(toy, LocalComm()).ended_early
    assert toys.distance(toys.train(microbatch_size=toys.NUM_EXAMPLES), weights_of(toy)) == 0


def test_a_run_that_was_killed_in_its_check_is_checked_again(tmp_path: Path) -> None:
    def killed(done: int) -> bool:
        raise KeyboardInterrupt

    options = {"check_steps": frozenset({2}), "checkpoint_seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        train(toys.context(check_fn=killed, **options), LocalComm(), tmp_path)
    trained = train(toys.context(check_fn=lambda done: True, **options), LocalComm(), tmp_path)
    assert (trained.resumed_from, trained.ended_early, len(trained.history)) == (2, True, 2)
