"""What groups of one, two and three ranks find that train and measure the same toys, in processes
of their own."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from raydp.methods.dp import DPSGD, DPAdam
from raydp.methods.nonprivate import NonPrivate
from raydp.models import adapters
from raydp.models import base_models as models
from raydp.spec.sections import AdapterSpec
from raydp.tasks.task import Batch
from raydp.tasks.text.language import LanguageModelingTask
from raydp.training import sharding
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm, DistributedComm, LocalComm
from raydp.training.gradients.memory import TokenBudget, recompute_layers
from raydp.training.noise.adding import add_noise
from raydp.training.noise.correlated import CorrelatedNoise
from raydp.training.noise.stream import KeyedStream
from raydp.training.observers import AfterStep, StepReport
from raydp.training.rank0 import on_rank_0
from raydp.training.trial import TrainingContext
from raydp.training.vector import GradientVector
from tests.builders import toys
from tests.builders.models import plain_llama
from tests.marks import WHOLE
from tests.processes import forked

FULL = AdapterSpec(type="none")
SPARSE = replace(toys.PLAN, run_id="sparse", batch_size=1)
"""Steps that draw fewer examples than there are ranks, also none."""
FAST = replace(toys.PLAN, run_id="fast", learning_rate=0.1)
ADAPTIVE = DPAdam(max_grad_norm=0.1, clipping="adaptive", count_noise_multiplier=1.0)
RUNS: dict[
    str, tuple[AdapterSpec, Any, Any]
] = {  # "recomputed": with the layers' activations computed again
    "lora": (toys.ADAPTER, toys.METHOD, toys.PLAN),
    "lora, adaptive, sparse": (toys.ADAPTER, ADAPTIVE, SPARSE),
    "lora, not private": (toys.ADAPTER, NonPrivate(), toys.PLAN),
    "full": (FULL, toys.METHOD, toys.PLAN),
    "lora, recomputed": (toys.ADAPTER, toys.METHOD, toys.PLAN),
    "full, recomputed": (FULL, toys.METHOD, toys.PLAN),
    "full, automatic": (FULL, DPSGD(max_grad_norm=0.1, clipping="automatic", momentum=0.5), FAST),
    "full, adaptive, sparse": (FULL, ADAPTIVE, SPARSE),
    "full, not private": (FULL, NonPrivate(), toys.PLAN),
}
if WHOLE:
    RUNS["full, banded"] = (FULL, toys.METHODS["banded"], FAST)
KILLED_AFTER = 4


def tied() -> models.PretrainedModel:
    """A Llama with tied embeddings, and keys of four rows: of three ranks two hold them, the third
    has none."""
    model = plain_llama(num_attention_heads=4, num_key_value_heads=1, tie_word_embeddings=True)
    return models.PretrainedModel(name="tied", model=model, tokenizer=None, weight_hash="tied")


def context(adapter: AdapterSpec, comm: Comm, **options: Any) -> TrainingContext:
    """The toy with an adapter or a model of its own for full fine-tuning, sharded where there are
    several ranks."""
    options = {"microbatch_size": 2, **options}
    if adapter is FULL:
        model = adapters.attach_adapter(tied(), FULL)
        toy = TrainingContext(
            model=model, parameters=adapters.trainable_parameters(model, FULL), **options
        )
    else:
        toy = toys.context(adapter, **options)
    if comm.world_size > 1:
        replicated = set() if adapter is FULL else set(toy.parameters.values())
        sharding.shard(toy.model, comm, replicated=replicated)
    return replace(toy, parameters=adapters.trainable_parameters(toy.model, adapter))


def train(name: str, comm: Comm, folder: Path | None = None, **options: Any) -> dict[str, Any]:
    """Train one of RUNS: on rank 0 its weights and history."""
    adapter, method, plan = RUNS[name]
    toy = context(adapter, comm, **options)
    if "recomputed" in name:
        recompute_layers(toy.model)
    store = CheckpointStore(folder=folder, run_id=plan.run_id) if folder is not None else None
    trained = method.train(plan, toy, toys.task(), comm, toys.KEY, store)
    weights = {n: p.clone() for n, p in sharding.gathered(toy.parameters, comm).items()}
    return {"weights": weights, "history": trained.history, "resumed_from": trained.resumed_from}


def kill(report: StepReport) -> None:
    if report.done == KILLED_AFTER:
        os.kill(os.getpid(), signal.SIGKILL)


def noise(comm: Comm) -> dict[str, torch.Tensor]:
    """What one step adds to a sum of zeros."""
    parameters = context(FULL, comm).parameters
    total = {n: torch.zeros_like(sharding.local(p)) for n, p in parameters.items()}
    parts = {n: sharding.part_of(p) for n, p in parameters.items()}
    add_noise(
        total, parts, KeyedStream(key=toys.KEY, run_id="noise"), 3, 0.5, 0.1, CorrelatedNoise()
    )
    return sharding.gathered({n: sharding.like(p, total[n]) for n, p in parameters.items()}, comm)


def measured(adapter: AdapterSpec, comm: Comm) -> dict[str, float] | None:
    """Utility of a changed model and, in the middle, of its base; on rank 0."""
    toy, task = context(adapter, comm), toys.task()
    base = {n: p.detach().clone() for n, p in toy.parameters.items()} if adapter is FULL else {}
    with torch.no_grad():
        for parameter in toy.parameters.values():
            parameter.add_(0.05)
    loaded = models.LoadedModel(model=toy.model, tokenizer=None, base_weights=base)

    def measure(loaded: models.LoadedModel) -> dict[str, float]:
        before = task.utility(loaded.model)
        with loaded.base() as untrained, untrained.base() as twice:
            middle = task.utility(twice.model)
        return {"trained": before, "base": middle, "again": task.utility(loaded.model)}

    return on_rank_0(loaded, comm, measure) if comm.world_size > 1 else measure(loaded)


class LargeExamples(LanguageModelingTask):
    """Memory holds one example at a time."""

    def per_example_loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        if len(batch.input_ids) > 1:
            raise torch.OutOfMemoryError
        return super().per_example_loss(model, batch)


def out_of_memory(comm: Comm) -> tuple[str, int, int]:
    """What a group of workers dies of whose micro-batches do not fit, and its budget before and
    after."""
    task, budget = toys.task(), TokenBudget()
    large = LargeExamples(train=task.train, heldout=task.heldout, task_facts=task.task_facts)
    toy = context(FULL, comm, microbatch_size=None, budget=budget)
    before = budget.tokens
    with pytest.raises(RuntimeError) as error:
        toys.METHOD.train(toys.PLAN, toy, large, comm, toys.KEY, None)
    return str(error.value), before, budget.tokens


def held_bytes(adapter: AdapterSpec, comm: Comm) -> dict[str, int]:
    """Bytes of weights, gradients and optimizer state that this rank holds, and that there are."""
    toy = context(adapter, comm)
    optimizer = torch.optim.Adam(toy.parameters.values())
    flat = GradientVector.of(toy.parameters, comm).flat
    optimizer.step()
    moments = [v for state in optimizer.state.values() for v in state.values() if v.dim()]
    weights = list(toy.model.parameters())
    return {
        "weights": sum(sharding.local(p).nbytes for p in weights),
        "all weights": sum(p.numel() * p.itemsize for p in weights),
        "gradients and moments": flat.nbytes + sum(sharding.local(m).nbytes for m in moments),
        "rows of the longest": sum(p[:1].numel() * p.itemsize for p in weights if p.dim()),
    }


def _rank(rank: int, world_size: int, folder: str) -> None:
    """Everything that one group of ranks is asked, in one life: processes cost more than what they
    do."""
    torch.set_num_threads(1)
    here = Path(folder)
    rendezvous = f"file://{here}/rendezvous-{world_size}"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world_size)
    comm = DistributedComm("cpu")
    found = {
        "runs": {name: train(name, comm) for name in RUNS},
        "noise": noise(comm),
        "measured": {"lora": measured(toys.ADAPTER, comm), "full": measured(FULL, comm)},
        "memory": out_of_memory(comm),
        "bytes": held_bytes(FULL, comm),
        "lora bytes": held_bytes(toys.ADAPTER, comm),
        "resumed": train("full", comm, here / f"resumed-by-{world_size}"),
    }

    torch.save(found, here / f"found-{world_size}-{rank}")
    if world_size == 2:
        train("full", comm, here / "killed", checkpoint_seconds=0.0, observers=(AfterStep(kill),))
    dist.destroy_process_group()


def run_ranks(world_size: int, folder: Path) -> list[dict[str, Any]]:
    """What each rank found."""
    ranks = [
        forked().Process(target=_rank, args=(rank, world_size, str(folder)))
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [
        -signal.SIGKILL if world_size == 2 else 0
    ] * world_size
    return [torch.load(folder / f"found-{world_size}-{rank}") for rank in range(world_size)]


class Everything:
    """One, two and three ranks: a run of one rank that broke off is resumed by two, one of two by
    three and by one."""

    def __init__(self, folder: Path) -> None:
        with pytest.raises(KeyboardInterrupt):
            train(
                "full",
                LocalComm(),
                folder / "resumed-by-2",
                checkpoint_seconds=0.0,
                observers=(AfterStep(_break_off),),
            )
        self.ranks = {2: run_ranks(2, folder)}
        shutil.copytree(folder / "killed", folder / "resumed-by-3")
        self.ranks[3] = run_ranks(3, folder)
        self.resumed_by_one = train("full", LocalComm(), folder / "killed")
        self.alone = {name: train(name, LocalComm()) for name in RUNS}


def _break_off(report: StepReport) -> None:
    if report.done == KILLED_AFTER:
        raise KeyboardInterrupt
