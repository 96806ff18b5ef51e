"""Weights that are spread over the ranks change nothing: not the update, the noise, the measurement or a resume."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

from raydp import adapters, models
from raydp.methods.dp import DPSGD, DPAdam
from raydp.methods.nonprivate import NonPrivate
from raydp.sections import AdapterSpec, ClusterSpec, ModelSpec
from raydp.tasks.base import Batch
from raydp.tasks.language import LanguageModelingTask
from raydp.training import loop, sharding
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm, DistributedComm, LocalComm
from raydp.training.leading import on_rank_0
from raydp.training.memory import TokenBudget, recompute_layers
from raydp.training.stream import KeyedStream
from raydp.training.trial import Trainee
from tests.training import toys

CUT_TOLERANCE = 1e-5
"""Source: tests/training/test_invariants.py; fp32 sums in another order, carried to a weight by Adam's division."""
MEASURED_TOLERANCE = 1e-5
"""Utility in fp32 on another topology (DESIGN, section 10: "equal")."""

FULL = AdapterSpec(type="none")
SPARSE = replace(toys.PLAN, run_id="sparse", batch_size=1)
"""Steps that draw fewer examples than there are ranks, also none."""
FAST = replace(toys.PLAN, run_id="fast", learning_rate=0.1)
ADAPTIVE = DPAdam(max_grad_norm=0.1, clipping="adaptive", count_noise_multiplier=1.0)
RUNS: dict[str, tuple[AdapterSpec, Any, Any]] = {  # "recomputed": with the layers' activations computed again
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
KILLED_AFTER = 4


def tied() -> models.PretrainedModel:
    """A Llama with tied embeddings, and keys of four rows: of three ranks two hold them, the third has none."""
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    return models.PretrainedModel(name="tied", model=model.eval(), tokenizer=None, weight_hash="tied")


def trainee(adapter: AdapterSpec, comm: Comm, **options: Any) -> Trainee:
    """The toy with an adapter or a model of its own for full fine-tuning, sharded where there are several ranks."""
    options = {"microbatch_size": 2, **options}
    if adapter is FULL:
        model = adapters.attach_adapter(tied(), FULL)
        toy = Trainee(model=model, parameters=adapters.trainable_parameters(model, FULL), **options)
    else:
        toy = toys.trainee(adapter, **options)
    if comm.world_size > 1:
        replicated = set() if adapter is FULL else set(toy.parameters.values())
        sharding.shard(toy.model, comm, replicated=replicated)
    return replace(toy, parameters=adapters.trainable_parameters(toy.model, adapter))


def train(name: str, comm: Comm, folder: Path | None = None, **options: Any) -> dict[str, Any]:
    """Train one of RUNS: on rank 0 its weights and history."""
    adapter, method, plan = RUNS[name]
    toy = trainee(adapter, comm, **options)
    if "recomputed" in name:
        recompute_layers(toy.model)
    store = CheckpointStore(folder=folder, run_id=plan.run_id) if folder is not None else None
    trained = method.train(plan, toy, toys.task(), comm, toys.KEY, store)
    weights = {n: p.clone() for n, p in sharding.gathered(toy.parameters, comm).items()}
    return {"weights": weights, "history": trained.history, "resumed_from": trained.resumed_from}


def kill(done: int, total: int) -> None:
    if done == KILLED_AFTER:
        os.kill(os.getpid(), signal.SIGKILL)


def noise(comm: Comm) -> dict[str, torch.Tensor]:
    """What one step adds to a sum of zeros."""
    parameters = trainee(FULL, comm).parameters
    total = {n: torch.zeros_like(sharding.local(p)) for n, p in parameters.items()}
    parts = {n: sharding.part_of(p) for n, p in parameters.items()}
    loop._add_noise(total, parts, KeyedStream(key=toys.KEY, run_id="noise"), 3, 0.5, 0.1)
    return sharding.gathered({n: sharding.like(p, total[n]) for n, p in parameters.items()}, comm)


def measured(adapter: AdapterSpec, comm: Comm) -> dict[str, float] | None:
    """Utility of a changed model and, in the middle, of its base; on rank 0."""
    toy, task = trainee(adapter, comm), toys.task()
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
    """What a group of workers dies of whose micro-batches do not fit, and its budget before and after."""
    task, budget = toys.task(), TokenBudget()
    large = LargeExamples(train=task.train, heldout=task.heldout, task_facts=task.task_facts)
    toy = trainee(FULL, comm, microbatch_size=None, budget=budget)
    before = budget.tokens
    with pytest.raises(RuntimeError) as error:
        toys.METHOD.train(toys.PLAN, toy, large, comm, toys.KEY, None)
    return str(error.value), before, budget.tokens


def held_bytes(adapter: AdapterSpec, comm: Comm) -> dict[str, int]:
    """Bytes of weights, gradients and optimizer state that this rank holds, and that there are."""
    toy = trainee(adapter, comm)
    optimizer = torch.optim.Adam(toy.parameters.values())
    flat, _ = loop._flat_views(toy.parameters, comm.device)
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
    """Everything that one group of ranks is asked, in one life: processes cost more than what they do."""
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
        train("full", comm, here / "killed", checkpoint_seconds=0.0, progress=kill)
    dist.destroy_process_group()


def run_ranks(world_size: int, folder: Path) -> list[dict[str, Any]]:
    """What each rank found."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.test_sharding"])
    ranks = [context.Process(target=_rank, args=(rank, world_size, str(folder))) for rank in range(world_size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [-signal.SIGKILL if world_size == 2 else 0] * world_size
    return [torch.load(folder / f"found-{world_size}-{rank}") for rank in range(world_size)]


class Everything:
    """One, two and three ranks: a run of one rank that broke off is resumed by two, one of two by three and by one."""

    def __init__(self, folder: Path) -> None:
        with pytest.raises(KeyboardInterrupt):
            train("full", LocalComm(), folder / "resumed-by-2", checkpoint_seconds=0.0, progress=_break_off)
        self.ranks = {2: run_ranks(2, folder)}
        shutil.copytree(folder / "killed", folder / "resumed-by-3")
        self.ranks[3] = run_ranks(3, folder)
        self.resumed_by_one = train("full", LocalComm(), folder / "killed")
        self.alone = {name: train(name, LocalComm()) for name in RUNS}


def _break_off(done: int, total: int) -> None:
    if done == KILLED_AFTER:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Everything:
    return Everything(tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("name", RUNS)
def test_a_sharded_run_is_that_of_one_rank(everything: Everything, name: str, world_size: int) -> None:
    alone, sharded = everything.alone[name], everything.ranks[world_size][0]["runs"][name]
    assert toys.distance(alone["weights"], sharded["weights"]) <= CUT_TOLERANCE
    for a, b in zip(alone["history"], sharded["history"], strict=True):
        assert a["drawn"] == b["drawn"]
        assert a.get("max_grad_norm") == b.get("max_grad_norm"), "the threshold follows the same counts"
        assert a.get("clipped") == b.get("clipped")
        assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), abs=MEASURED_TOLERANCE)


def test_the_runs_move_the_weights_and_leave_ranks_idle(everything: Everything) -> None:
    """So the test above compares something that happens."""
    for name, (adapter, _, _) in RUNS.items():
        start = {n: p.detach() for n, p in trainee(adapter, LocalComm()).parameters.items()}
        assert toys.distance(everything.alone[name]["weights"], start) > 100 * CUT_TOLERANCE
    drawn = {step["drawn"] for step in everything.alone["full, adaptive, sparse"]["history"]}
    assert 0 in drawn
    assert drawn & {1, 2}, "fewer than three ranks have an example"


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_noise_is_bitwise_that_of_one_rank(everything: Everything, world_size: int) -> None:
    alone, sharded = noise(LocalComm()), everything.ranks[world_size][0]["noise"]
    assert alone.keys() == sharded.keys()
    assert all(torch.equal(alone[name], sharded[name]) for name in alone)


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_a_part_of_the_noise_is_drawn_without_the_rest(count: int) -> None:
    stream = KeyedStream(key=toys.KEY, run_id="parts")
    whole = stream.normal(count, step=0, purpose="noise", name="w")
    for start, stop in [
        (0, count),
        (0, 1),
        (count - 1, count),
        (count // 3, 2 * count // 3),
        (count // 2, count),
        (1, 1),
    ]:
        part = stream.normal(count, step=0, purpose="noise", name="w", part=slice(start, stop))
        assert (part == whole[start:stop]).all()
        assert len(part) == len(whole[start:stop])


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_rank_holds_its_share_of_everything(everything: Everything, world_size: int) -> None:
    """1/world of it, and less than a row of each parameter more."""
    for rank in everything.ranks[world_size]:
        held = rank["bytes"]
        share, slack = held["all weights"] / world_size, held["rows of the longest"]
        assert held["weights"] <= share + slack
        assert held["gradients and moments"] <= 3 * (share + slack)
        adapter = rank["lora bytes"]["gradients and moments"] / 3
        frozen = rank["lora bytes"]["all weights"] - adapter
        assert rank["lora bytes"]["weights"] - adapter <= frozen / world_size + slack
    total = sum(rank["bytes"]["weights"] for rank in everything.ranks[world_size])
    assert total == everything.ranks[world_size][0]["bytes"]["all weights"], "every weight once"


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_rank_0_measures_the_whole_model_and_its_base(everything: Everything, adapter: str, world_size: int) -> None:
    expected = measured({"lora": toys.ADAPTER, "full": FULL}[adapter], LocalComm())
    assert expected is not None
    found, *others = [rank["measured"][adapter] for rank in everything.ranks[world_size]]
    assert found == pytest.approx(expected, abs=MEASURED_TOLERANCE)
    assert found["trained"] == found["again"] != pytest.approx(found["base"], abs=100 * MEASURED_TOLERANCE)
    assert others == [None] * (world_size - 1)


def test_what_some_ranks_began_any_number_of_ranks_ends(everything: Everything) -> None:
    """Killed with two ranks, resumed with three and with one; broken off with one, resumed with two."""
    reference = everything.alone["full"]
    resumed = {
        "2 to 1": everything.resumed_by_one,
        "2 to 3": everything.ranks[3][0]["resumed"],
        "1 to 2": everything.ranks[2][0]["resumed"],
    }
    for result in resumed.values():
        assert result["resumed_from"] == KILLED_AFTER - 1, "the end came before the step's checkpoint"
        assert toys.distance(reference["weights"], result["weights"]) <= CUT_TOLERANCE
        assert [step["drawn"] for step in result["history"]] == [step["drawn"] for step in reference["history"]]


def test_out_of_memory_the_group_starts_again_with_half(everything: Everything) -> None:
    """One rank alone could not repeat a pass that the others are in the middle of."""
    for rank in [*everything.ranks[2], *everything.ranks[3]]:
        message, before, after = rank["memory"]
        assert message == loop.START_AGAIN
        assert after == before // 2


def test_a_model_whose_layers_are_not_known_is_refused() -> None:
    model = toys.pretrained().model
    model.model.layers = torch.nn.Sequential(*model.model.layers)
    with pytest.raises(ValueError, match=r"cluster\.sharding must be none for LlamaForCausalLM, got full"):
        adapters.shardable_layers(model)


def test_a_soft_prompt_is_refused() -> None:
    spec = ModelSpec(name="tiny", adapter=AdapterSpec(type="soft_prompt"))
    with pytest.raises(ValueError, match=r"cluster\.sharding must be none with adapter\.type 'soft_prompt', got full"):
        models.check(spec, sharded=True)


@pytest.mark.parametrize("workers", [1, [1, 1]])
def test_one_worker_has_nobody_to_share_with(workers: Any) -> None:
    with pytest.raises(ValueError, match=r"cluster\.workers_per_trial must be at least 2 with sharding 'full', got 1"):
        ClusterSpec(sharding="full", workers_per_trial=workers)


def test_workers_are_a_number_or_a_range() -> None:
    assert ClusterSpec(workers_per_trial=3).worker_range == (3, 3)
    assert ClusterSpec(workers_per_trial=[2, 4], sharding="full").worker_range == (2, 4)
    with pytest.raises(
        ValueError, match=r"cluster\.workers_per_trial must be \[min, max\] with min <= max, got \[4, 2\]"
    ):
        ClusterSpec(workers_per_trial=[4, 2])
