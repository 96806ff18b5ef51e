"""A private step against a step without privacy: time and peak memory of one micro-batch, on the same model and data.

    python benchmarks/step.py --output step.json
    python benchmarks/step.py --cases gpt2-256 --rounds 9

Every way has a process of its own: forward, backward and, where it is private, the sum of the clipped per-example
gradients, added to a running sum. For time, the ways take turns, one micro-batch each a round; reported are medians of
processor time, which other load disturbs least, and the median of the ratios within a round. For memory, another fresh
process of each way runs two micro-batches: reported is the peak of its resident set above what it was when the
libraries were imported, so weights and gradients count. The model and the loss are the same in all ways. Noise is added
once a step, not once a micro-batch: its time stands by itself. Without --cases all cases are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from machine import describe
from torch import nn
from torch.func import functional_call, grad, vmap

from raydp import adapters, models
from raydp.sections import AdapterSpec
from raydp.tasks.base import Batch, TaskFacts
from raydp.tasks.language import LanguageModelingTask, TokenizedExamples
from raydp.training.clipping import ClippedGradients
from raydp.training.prefix import with_frozen_prefix
from raydp.training.stream import TEST_KEY, KeyedStream
from raydp.training.thresholds import Clipping

TOKENS = 64
MAX_GRAD_NORM = 0.1
CASES: dict[str, dict[str, Any]] = {
    "lora": {"model": "smollm2", "microbatch": 8, "ways": ["plain", "raydp", "opacus"]},
    "prefix": {"model": "smollm2", "microbatch": 8, "layers": range(24, 30), "ways": ["uncached", "cached"]},
    "gpt2-256": {"model": 256, "microbatch": 32, "ways": ["plain", "raydp", "opacus", "opacus_ghost", "torch_func"]},
    "gpt2-768": {"model": 768, "microbatch": 32, "ways": ["plain", "raydp", "opacus", "opacus_ghost", "torch_func"]},
}
"""The first way of a case is what the others are compared with."""

Step = Callable[[], dict[str, torch.Tensor]]
"""Runs one micro-batch and returns the running sum of gradients."""


class Bench:
    """Model, data and loss of a case, the same for every way."""

    def __init__(self, case: dict[str, Any], dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        if case["model"] == "smollm2":
            config = transformers.LlamaConfig(
                vocab_size=49_152, hidden_size=576, intermediate_size=1_536, num_hidden_layers=30,
                num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
            )  # fmt: skip
            layers = tuple(case["layers"]) if "layers" in case else None
            adapter = AdapterSpec(r=4, alpha=32, target_modules=("q_proj", "v_proj"), layers_to_transform=layers)
        else:
            width = case["model"]
            config = transformers.GPT2Config(
                vocab_size=4_096, n_positions=TOKENS, n_embd=width, n_layer=4, n_head=width // 64,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
            )  # fmt: skip
            adapter = AdapterSpec(type="none")
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).requires_grad_(False).eval()
        base = models.PretrainedModel(name="random", model=model, tokenizer=None, weight_hash="random")
        self.model = adapters.attach_adapter(base, adapter)
        self.parameters = adapters.trainable_parameters(self.model, adapter)
        if adapter.type == "lora":
            for name, parameter in self.parameters.items():  # as if trained: both factors get gradients
                if ".lora_B." in name:
                    nn.init.normal_(parameter, std=0.02)
        rng = np.random.default_rng(0)
        size = case["microbatch"]
        rows = [rng.integers(2, config.vocab_size, TOKENS).tolist() for _ in range(size)]
        examples = TokenizedExamples.from_lists(rows)
        facts = TaskFacts(
            num_examples=size, num_units=size, privacy_unit="example", content_hash="x", num_tokens=size * TOKENS
        )
        self.task = LanguageModelingTask(train=examples, heldout=examples, task_facts=facts)
        self.indices = np.arange(size)
        self.total = {name: torch.zeros_like(p) for name, p in self.parameters.items()}

    def losses(self, batch: Batch | None = None) -> torch.Tensor:
        """[B] per-example losses."""
        return self.task.per_example_loss(self.model, batch or self.task.batch(self.indices))


def plain(bench: Bench) -> Step:
    """torch's own gradient of the summed loss."""
    bench.total = {}

    def step() -> dict[str, torch.Tensor]:
        bench.losses().sum().backward()
        return {name: p.grad for name, p in bench.parameters.items()}

    return step


def raydp(bench: Bench) -> Step:
    """The engine of dp_sgd and dp_adam."""
    engine = ClippedGradients(bench.model, bench.parameters, Clipping(MAX_GRAD_NORM))

    def step() -> dict[str, torch.Tensor]:
        engine.accumulate(bench.losses, bench.total)
        return bench.total

    return step


def cached(bench: Bench) -> Step:
    """The engine on hidden states from the disk."""
    complaints: list[str] = []
    with tempfile.TemporaryDirectory() as folder:  # what is mapped stays readable
        bench.task = with_frozen_prefix(
            bench.task, bench.model, bench.parameters,
            weight_hash="x", folder=Path(folder), max_bytes=1e9, say=complaints.append,
        )  # fmt: skip
    assert not complaints, complaints
    return raydp(bench)


def opacus(bench: Bench) -> Step:
    """Per-example gradients from Opacus' hooks, clipped and summed by its optimizer."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    bench.total = {}
    bench.model.train()  # the hooks sleep in eval mode; there is no dropout
    GradSampleModule(bench.model, loss_reduction="sum", strict=False)
    parameters = list(bench.parameters.values())
    optimizer = DPOptimizer(
        torch.optim.SGD(parameters, lr=0.1), noise_multiplier=1.0, max_grad_norm=MAX_GRAD_NORM,
        expected_batch_size=1, loss_reduction="sum",
    )  # fmt: skip

    def step() -> dict[str, torch.Tensor]:
        bench.losses().sum().backward()
        optimizer.clip_and_accumulate()
        for p in parameters:
            p.grad_sample = p.grad = None
        return {name: p.summed_grad for name, p in bench.parameters.items()}

    return step


def opacus_ghost(bench: Bench) -> Step:
    """Opacus' ghost clipping: a backward pass for the norms, one for the clipped sum."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    bench.model.train()
    module = GradSampleModuleFastGradientClipping(
        bench.model, loss_reduction="sum", strict=False, max_grad_norm=MAX_GRAD_NORM, use_ghost_clipping=True
    )

    def step() -> dict[str, torch.Tensor]:
        module.enable_hooks()
        losses = bench.losses()
        losses.sum().backward(retain_graph=True)
        for p in bench.parameters.values():
            p.grad = None
        factors = module.get_clipping_coef()
        module.disable_hooks()
        (losses * factors).sum().backward()
        for name, p in bench.parameters.items():
            bench.total[name] += p.grad
            p.grad = None
        return bench.total

    return step


def torch_func(bench: Bench) -> Step:
    """vmap over grad: all per-example gradients, then norms, then the weighted sum."""
    buffers = dict(bench.model.named_buffers())
    batch = bench.task.batch(bench.indices)

    def loss(parameters: dict[str, torch.Tensor], ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(ids.shape[0])[None]
        inputs = {"input_ids": ids[None], "position_ids": positions, "use_cache": False}
        logits = functional_call(bench.model, (parameters, buffers), (), inputs, tie_weights=True).logits[0, :-1]
        return nn.functional.cross_entropy(logits, labels[1:])

    per_example = vmap(grad(loss), in_dims=(None, 0, 0))

    def step() -> dict[str, torch.Tensor]:
        parameters = {name: p.detach() for name, p in bench.parameters.items()}
        gradients = per_example(parameters, batch.input_ids, batch.labels)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
        factors = (MAX_GRAD_NORM / norms).clamp(max=1)
        for name, g in gradients.items():
            bench.total[name] += torch.einsum("i,i...->...", factors, g)
        return bench.total

    return step


WAYS: dict[str, Callable[[Bench], Step]] = {
    "plain": plain, "raydp": raydp, "opacus": opacus, "opacus_ghost": opacus_ghost, "torch_func": torch_func,
    "uncached": raydp, "cached": cached,
}  # fmt: skip


def resident(field: str) -> int:
    """Bytes of this process from /proc: VmRSS now, VmHWM at its peak. (ru_maxrss would count the parent's, too.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def worker(case: str, way: str, args: argparse.Namespace) -> None:
    """Answer every line on stdin with one micro-batch's processor seconds; first say how it went to get there."""
    torch.set_num_threads(args.threads)
    nn.Linear(8, 8)(torch.randn(4, 8)).sum().backward()  # what the first use of autograd and the kernels take
    before = resident("VmRSS")
    try:
        bench = Bench(CASES[case], getattr(torch, args.dtype))
        step = WAYS[way](bench)
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here, whatever building took
        step()
    except Exception as error:  # noqa: BLE001 - whatever a library cannot do is a result
        print(json.dumps({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}), flush=True)
        return
    sums = step()
    peak = resident("VmHWM") - before
    norm = float(torch.stack([g.double().norm() for g in sums.values()]).norm()) / 2  # two equal micro-batches
    answer = {"norm_of_sum": norm, "peak_bytes": peak, "trained": sum(p.numel() for p in bench.parameters.values())}
    del sums
    print(json.dumps(answer), flush=True)
    for line in sys.stdin:
        run = partial(noise, bench.parameters) if line.strip() == "noise" else step
        start = time.process_time()
        run()
        print(json.dumps(time.process_time() - start), flush=True)


def noise(parameters: dict[str, nn.Parameter]) -> None:
    """What the training loop draws and adds once a step."""
    stream = KeyedStream(key=TEST_KEY, run_id="benchmark")
    for name, p in parameters.items():
        drawn = stream.normal(p.numel(), step=0, purpose="noise", name=name)
        torch.zeros_like(p).add_(torch.from_numpy(drawn).to(p).view(p.shape))


class Worker:
    """The process of one way."""

    def __init__(self, case: str, way: str, args: argparse.Namespace, **environment: str) -> None:
        command = [sys.executable, __file__, "--worker", case, way, "--threads", str(args.threads)]
        self.process = subprocess.Popen(
            [*command, "--dtype", args.dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(args.threads), **environment},
        )
        self.start = self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": f"process ended with {self.process.wait()}"}

    def seconds(self, what: str = "step") -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        self.process.communicate()


def memory(case: str, args: argparse.Namespace) -> dict[str, Any]:
    """Way -> what a fresh process says after two micro-batches, or its error."""
    answers = {}
    for way in CASES[case]["ways"]:
        # Every tensor of a MiB or more is given back when it is freed, so that the peak is not one of the allocator's.
        one = Worker(case, way, args, MALLOC_MMAP_THRESHOLD_=str(2**20), MALLOC_ARENA_MAX="1")
        one.close()
        answers[way] = one.start
    return answers


def measure(case: str, args: argparse.Namespace) -> dict[str, Any]:
    """All ways of a case, interleaved."""
    answers = memory(case, args)
    workers = {way: Worker(case, way, args) for way in answers if "error" not in answers[way]}
    times: dict[str, list[float]] = {way: [] for way in workers}
    for _ in range(args.rounds):
        for way, one in workers.items():
            times[way].append(one.seconds())
    drawn = min(workers["raydp"].seconds("noise") for _ in range(3)) if "raydp" in workers else None
    for one in workers.values():
        one.close()
    reference = CASES[case]["ways"][0]
    result: dict[str, Any] = {"noise_seconds_a_step": drawn, "ways": {}}
    for way, answer in answers.items():
        if "error" in answer:
            result["ways"][way] = answer
            continue
        ratios = [a / b for a, b in zip(times[way], times[reference], strict=True)]
        result["ways"][way] = {
            **answer,
            "seconds": statistics.median(times[way]),
            "ratio_time": statistics.median(ratios),
            "ratio_time_quartiles": np.quantile(ratios, [0.25, 0.75]).round(4).tolist(),
            "ratio_memory": answer["peak_bytes"] / answers[reference]["peak_bytes"],
            "all_seconds": times[way],
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the frozen weights")
    parser.add_argument("--output", type=Path, default=Path("step.json"))
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(*args.worker, args)
        return
    settings = {"rounds": args.rounds, "threads": args.threads, "dtype": args.dtype, "tokens": TOKENS}
    settings |= {
        "max_grad_norm": MAX_GRAD_NORM,
        "seed": 0,
        "microbatch": {c: CASES[c]["microbatch"] for c in args.cases},
    }
    document: dict[str, Any] = describe("torch", "transformers", "peft", "opacus") | {"settings": settings, "cases": {}}
    for case in args.cases:
        document["cases"][case] = result = measure(case, args)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
        for way, r in result["ways"].items():
            print(
                f"{case:10s} {way:13s} not possible: {r['error']}"
                if "error" in r
                else f"{case:10s} {way:13s} {r['seconds']:7.3f} s  x{r['ratio_time']:.3f} {r['ratio_time_quartiles']}  "
                f"{r['peak_bytes'] / 2**20:7.0f} MiB  x{r['ratio_memory']:.3f}  |sum| {r['norm_of_sum']:.6g}",
                flush=True,
            )
        if result["noise_seconds_a_step"] is not None:
            print(f"{case:10s} noise once a step {result['noise_seconds_a_step']:.3f} s")


if __name__ == "__main__":
    main()
