"""Memory of a rank with whole and with sharded weights, on CPU processes (gloo).

    OMP_NUM_THREADS=1 python benchmarks/sharding.py --output sharding.json

DP-Adam on random weights in the shape of SmolLM2-135M (134.5 million weights, tied, float32), two
steps of eight examples of 32 tokens, four at a time. All ranks map one copy of the base weights, as
in a sweep. "held" counts the bytes of weights, gradient and optimizer state of the rank that has
most; "peak" is the largest anonymous resident memory of any rank above what its imports took,
sampled every 5 ms, so that it also has activations, the gathered layer and the buffer of one
parameter, but not the mapped base weights. The allocator gives back every tensor of a MiB or more
when it is freed (MALLOC_MMAP_THRESHOLD_), so that the peak is the tensors' and not its own. What it
does not show: time (ranks share two cores, and gloo is no GPU's network), checkpoints, a GPU's
allocator.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from machine import describe
from transformers import LlamaConfig, LlamaForCausalLM

from raydp.methods.dp import DPAdam
from raydp.models import adapters, sharing
from raydp.models import base_models as models
from raydp.spec.sections import AdapterSpec
from raydp.tasks.task import TaskFacts
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask
from raydp.training import sharding
from raydp.training.comm import DistributedComm
from raydp.training.trial import TrainingContext
from raydp.training.trial_plan import TrialPlan

NUM_EXAMPLES = LENGTH = 32
PLAN = TrialPlan(
    run_id="sharding",
    batch_size=8,
    num_steps=2,
    learning_rate=1e-4,
    seed=0,
    num_examples=NUM_EXAMPLES,
    noise_multiplier=1.0,
)
ADAPTERS = {"full fine-tuning": AdapterSpec(type="none"), "LoRA": AdapterSpec(r=4, alpha=32)}
WAYS = (("none", 2), ("full", 2), ("full", 4))


def task() -> LanguageModelingTask:
    """Random sentences of LENGTH tokens."""
    rng = np.random.default_rng(0)
    examples = TokenizedExamples.from_lists(
        rng.integers(1, 49_000, (NUM_EXAMPLES, LENGTH)).tolist()
    )
    facts = TaskFacts(
        num_examples=NUM_EXAMPLES,
        num_units=NUM_EXAMPLES,
        privacy_unit="sentence",
        content_hash="",
        num_tokens=0,
    )
    return LanguageModelingTask(train=examples, heldout=examples, task_facts=facts)


def write_base(folder: Path) -> None:
    """Random weights as arrays that processes can map."""
    config = LlamaConfig(
        vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).requires_grad_(False).eval()
    base = models.PretrainedModel(name="benchmark", model=model, tokenizer=None, weight_hash="")  # type: ignore[arg-type]
    shared = sharing.disassemble(base)
    for i, (*_, array) in enumerate(shared.arrays):
        np.save(folder / f"{i}.npy", array)
    names = [kind for *kind, _ in shared.arrays]
    (folder / "skeleton").write_bytes(pickle.dumps((shared.skeleton, names)))


def read_base(folder: Path) -> models.PretrainedModel:
    """The same, mapped."""
    skeleton, names = pickle.loads((folder / "skeleton").read_bytes())
    arrays = tuple(
        (*name, np.load(folder / f"{i}.npy", mmap_mode="r")) for i, name in enumerate(names)
    )
    return sharing.assemble(sharing.SharedModel(skeleton=skeleton, arrays=arrays))


def resident_bytes() -> int:
    """Anonymous resident memory of this process."""
    (line,) = (
        s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("RssAnon")
    )
    return int(line.split()[1]) * 1024


def rank_memory(rank: int, world_size: int, way: str, kind: str, folder: str) -> None:
    """Train, and write what was held and the peak."""
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous-{way}-{world_size}-{kind}"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world_size)
    comm, before, peak = DistributedComm("cpu"), resident_bytes(), [0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], resident_bytes())

    watching = threading.Thread(target=watch)
    watching.start()
    adapter = ADAPTERS[kind]
    model = adapters.attach_adapter(read_base(Path(folder)), adapter, copy=way == "none")
    if way == "full":
        trained = adapters.trainable_parameters(model, adapter)
        sharding.shard(
            model, comm, replicated=set(trained.values()) if adapter.type == "lora" else set()
        )
    context = TrainingContext(
        model=model, parameters=adapters.trainable_parameters(model, adapter), microbatch_size=4
    )
    DPAdam(max_grad_norm=0.1).train(PLAN, context, task(), comm, bytes(32), None)
    done.set()
    watching.join()
    weights = sum(sharding.local(p).nbytes for p in model.parameters())
    trained_bytes = sum(sharding.local(p).nbytes for p in context.parameters.values())
    found = {"held": weights + 3 * trained_bytes, "peak": peak[0] - before}
    (Path(folder) / f"{way}-{world_size}-{kind}-{rank}").write_text(json.dumps(found))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", "-o", type=Path, required=True)
    output = parser.parse_args().output
    os.environ |= {
        "MALLOC_MMAP_THRESHOLD_": str(2**20),
        "MALLOC_ARENA_MAX": "1",
    }  # read when a rank starts
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        write_base(Path(folder))
        for kind in ADAPTERS:
            for way, world_size in WAYS:
                context = multiprocessing.get_context("spawn")
                arguments = (world_size, way, kind, folder)
                ranks = [
                    context.Process(target=rank_memory, args=(rank, *arguments))
                    for rank in range(world_size)
                ]
                started = time.monotonic()
                for process in ranks:
                    process.start()
                for process in ranks:
                    process.join()
                assert all(process.exitcode == 0 for process in ranks)
                found = [
                    json.loads(p.read_text())
                    for p in Path(folder).glob(f"{way}-{world_size}-{kind}-*")
                ]
                row = {"trained": kind, "sharding": way, "ranks": world_size}
                rows.append(row | {k: max(f[k] for f in found) for k in ("held", "peak")})
                print(rows[-1], f"{time.monotonic() - started:.0f} s", flush=True)
    output.write_text(
        json.dumps({**describe("torch", "transformers", "peft"), "rows": rows}, indent=1)
    )


if __name__ == "__main__":
    main()
