"""Given the same key, the update sequence does not depend on how the work is cut."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import DistributedComm
from raydp.training.ledger import Ledger
from raydp.training.observers import Accounting, AfterStep, StepReport
from tests.builders import toys
from tests.marks import slow_after, slow_unless
from tests.processes import forked

pytestmark = pytest.mark.xdist_group("invariants")

# fp32 sums in another order differ by about 1e-7 relative; Adam's division by the root of the
# second moment can carry that to the size of a step (5e-3) times the relative error of a near-zero
# gradient.
CUT_TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=slow_unless(("flat", "adaptive", "banded"), toys.METHODS))
def clipping(request: pytest.FixtureRequest) -> str:
    """Every invariant holds with a threshold that stays, and with one that moves."""
    return request.param


@pytest.fixture(scope="module")
def whole(clipping: str) -> dict[str, torch.Tensor]:
    """One worker, the whole batch at once."""
    return toys.train(microbatch_size=toys.NUM_EXAMPLES, method=toys.METHODS[clipping])


def test_training_moves_the_weights(whole: dict[str, torch.Tensor]) -> None:
    start = {name: p.detach() for name, p in toys.context().parameters.items()}
    assert toys.distance(whole, start) > 100 * CUT_TOLERANCE, (
        "the tests below compare something that happens"
    )


def test_the_same_again_is_bitwise_the_same(whole: dict[str, torch.Tensor], clipping: str) -> None:
    again = toys.train(microbatch_size=toys.NUM_EXAMPLES, method=toys.METHODS[clipping])
    assert toys.distance(whole, again) == 0


@pytest.mark.parametrize("size", [1, 8, None], ids=["1", "8", "by length"])
def test_micro_batches_do_not_matter(
    whole: dict[str, torch.Tensor], clipping: str, size: int | None
) -> None:
    cut = toys.train(microbatch_size=size, method=toys.METHODS[clipping])
    assert toys.distance(whole, cut) <= CUT_TOLERANCE


def _rank(rank: int, world_size: int, rendezvous: str, out: str, clipping: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
    )
    weights = toys.train(comm=DistributedComm("cpu"), method=toys.METHODS[clipping])
    save_file(weights, f"{out}-{rank}")
    dist.destroy_process_group()


@pytest.mark.parametrize("world_size", slow_after(1, [2, 3]))
def test_the_number_of_workers_does_not_matter(
    whole: dict[str, torch.Tensor], clipping: str, tmp_path: Path, world_size: int
) -> None:
    """Also with steps that draw fewer examples than there are workers: some ranks have none."""
    toys.in_ranks(
        _rank, world_size, str(tmp_path / "rendezvous"), str(tmp_path / "weights"), clipping
    )
    results = [load_file(f"{tmp_path}/weights-{rank}") for rank in range(world_size)]
    assert toys.distance(whole, results[0]) <= CUT_TOLERANCE
    assert all(toys.distance(results[0], other) == 0 for other in results[1:]), (
        "ranks hold the same weights, bitwise"
    )


def _killed_after(steps: int, folder: str, clipping: str) -> None:
    torch.set_num_threads(1)

    def kill(report: StepReport) -> None:
        if report.done == steps:
            os.kill(os.getpid(), signal.SIGKILL)

    ledger = Ledger(Path(folder) / "ledger.txt")
    toy = toys.context(
        microbatch_size=toys.NUM_EXAMPLES,
        checkpoint_seconds=0.0,
        observers=(AfterStep(kill),),
        accounting=Accounting(ledger=ledger),
    )
    store = CheckpointStore(folder=Path(folder), run_id=toys.PLAN.run_id)
    method = toys.METHODS[clipping]
    method.train(toys.PLAN, toy, toys.task_of(method), toys.LocalComm(), toys.KEY, store)


@pytest.mark.parametrize("steps", slow_after(1, [2, 5]))
def test_killed_and_resumed_equals_uninterrupted(clipping: str, tmp_path: Path, steps: int) -> None:
    """Same topology, so bitwise; the killed process leaves no generator state behind, only the
    checkpoint."""
    process = forked().Process(target=_killed_after, args=(steps, str(tmp_path), clipping))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    ledger = Ledger(tmp_path / "ledger.txt")
    toy = toys.context(microbatch_size=toys.NUM_EXAMPLES, accounting=Accounting(ledger=ledger))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        reference = toys.train(microbatch_size=toys.NUM_EXAMPLES, method=toys.METHODS[clipping])
        store = CheckpointStore(folder=tmp_path, run_id=toys.PLAN.run_id)
        method = toys.METHODS[clipping]
        trained = method.train(
            toys.PLAN, toy, toys.task_of(method), toys.LocalComm(), toys.KEY, store
        )
    finally:
        torch.set_num_threads(threads)
    assert trained.resumed_from == steps - 1, "the kill came before the step's checkpoint"
    assert len(trained.history) == toys.PLAN.num_steps
    executed = ledger.summary()
    assert (executed["noisy_steps"], executed["executions"], executed["replays"]) == (6, 7, 1), (
        "one step ran twice"
    )
    assert len({record["max_grad_norm"] for record in trained.history}) == (
        6 if clipping == "adaptive" else 1
    )
    assert toys.distance(reference, {n: p.detach() for n, p in toy.parameters.items()}) == 0
