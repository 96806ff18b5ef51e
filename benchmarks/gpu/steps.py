"""Cases of the step benchmark on a device: every way to the clipped sum against the plain gradient.

    python benchmarks/gpu/steps.py lora-8b full-1b --output steps.json      # on a GPU
    python benchmarks/gpu/steps.py lora-8b --device cpu --small --output x  # a small shape, to try the script

The model has random weights in the shape of the named Llama or GPT-2. A way runs one micro-batch:
forward, backward and, where it is private, the sum of clipped per-example gradients. `plain` and
`raydp` alternate on one model, so that both see the same device; the other ways have a model of
their own. Reported are medians of wall-clock time with the device synchronised, tokens a second,
the peak of the allocated memory, and the norm of the sum. If a micro-batch does not fit, all ways
are measured again with half of it. `noise` is one step's noise drawn and added on the device.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))
from ways import MAX_GRAD_NORM, WAYS, Bench, Step  # the folder of the other benchmarks

from raydp.spec.sections import AdapterSpec
from raydp.training.gradients.memory import is_out_of_memory
from raydp.training.noise.adding import add_noise
from raydp.training.noise.correlated import CorrelatedNoise
from raydp.training.noise.lattice import add_lattice_noise, lattice_step
from raydp.training.noise.stream import CPU, TEST_KEY, KeyedStream
from raydp.training.sharding import part_of

LORA = AdapterSpec(r=16, alpha=16, target_modules="all-linear")
FULL = AdapterSpec(type="none")
LAST_QUARTER = "last quarter"
SHAPES = {  # hidden size, width of the MLP, layers, heads, key-value heads, tied
    "1b": (2048, 8192, 16, 32, 8, True),
    "3b": (3072, 8192, 28, 24, 8, True),
    "8b": (4096, 14_336, 32, 32, 8, False),
}
"""Llama 3.1 and 3.2, which share a vocabulary of 128,256."""
CASES: dict[str, dict[str, Any]] = {
    "lora-1b": {"shape": "1b", "microbatch": 32, "ways": ["plain", "raydp", "opacus"]},
    "lora-3b": {"shape": "3b", "microbatch": 16, "ways": ["plain", "raydp"]},
    "lora-8b": {"shape": "8b", "microbatch": 16, "ways": ["plain", "raydp", "opacus"]},
    "lora-8b-nf4": {"shape": "8b", "quantization": "nf4", "microbatch": 16, "ways": ["plain", "raydp"]},
    "lora-8b-2048": {"shape": "8b", "tokens": 2048, "microbatch": 4, "ways": ["plain", "raydp"]},
    "lora-8b-recomputed": {"shape": "8b", "microbatch": 32, "ways": ["plain_recomputed", "recomputed"]},
    "lora-1b-compiled": {"shape": "1b", "microbatch": 32, "ways": ["plain_compiled", "raydp_compiled"]},
    "prefix-8b": {"shape": "8b", "microbatch": 16, "layers": LAST_QUARTER, "ways": ["uncached", "cached"]},
    "full-1b": {"shape": "1b", "full": True, "microbatch": 16, "ways": ["plain", "raydp"]},
    "full-1b-recomputed": {"shape": "1b", "full": True, "microbatch": 32, "ways": ["plain_recomputed", "recomputed"]},
    "full-gpt2": {
        "shape": "gpt2", "full": True, "microbatch": 16,
        "ways": ["plain", "raydp", "opacus", "opacus_ghost", "torch_func"],
    },
}  # fmt: skip
"""The first way of a case is what the others are compared with."""
TOGETHER = (("plain", "raydp"), ("plain_recomputed", "recomputed"))
"""Ways that leave the model as it is, so that they can alternate on one."""


def case_of(name: str, *, small: bool) -> dict[str, Any]:
    """Return a case for `Bench`: with `small`, of the same architecture and a hundredth of the
    size."""
    case = {"name": name, "tokens": 512, **CASES[name]}
    if small:
        case |= {"tokens": 16, "microbatch": 4}
    if case["shape"] == "gpt2":
        layers, heads, width, vocabulary = (2, 2, 32, 256) if small else (12, 12, 768, 50_257)
        case["config"] = transformers.GPT2Config(
            vocab_size=vocabulary, n_positions=case["tokens"], n_embd=width, n_layer=layers, n_head=heads,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
    else:
        width, mlp, layers, heads, pairs, tied = SHAPES[case["shape"]]
        if small:
            width, mlp, layers, heads, pairs = 64, 128, 4, 4, 2
        case["config"] = transformers.LlamaConfig(
            vocab_size=256 if small else 128_256, hidden_size=width, intermediate_size=mlp, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=pairs, tie_word_embeddings=tied,
            max_position_embeddings=case["tokens"],
        )  # fmt: skip
    chosen = case["config"].num_hidden_layers
    last = (
        tuple(range(chosen - chosen // 4, chosen)) if case.get("layers") == LAST_QUARTER else None
    )
    case["adapter"] = (
        FULL if case.get("full") else LORA.model_copy(update={"layers_to_transform": last})
    )
    case["autocast"] = True  # as raydp trains in bf16 on a GPU
    return case


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Wall-clock seconds of a call, with what it put on the device."""
    synchronise(device)
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start


def run_group(case: dict[str, Any], ways: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Measure ways that share one model."""
    device = torch.device(args.device)
    dtype = torch.float32 if case.get("full") else torch.bfloat16
    bench = Bench(case, dtype, args.device)
    weights = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    tokens = case["tokens"] * case["microbatch"]
    results: dict[str, Any] = {}
    steps: dict[str, Step] = {}
    for way in ways:
        for parameter in bench.parameters.values():
            parameter.grad = None
        try:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            steps[way] = step = WAYS[way](bench)
            first = seconds(step, device)
            total = step()
            norm = (
                float(torch.stack([g.double().norm() for g in total.values()]).norm()) / 2
            )  # two equal micro-batches
        except Exception as error:
            if is_out_of_memory(error) or "out of memory" in str(error):
                raise
            results[way] = {
                "error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            }
            del steps[way]
            continue
        peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
        results[way] = {
            "first_seconds": first,
            "norm_of_sum": norm,
            "peak_gib": peak / 2**30,
            "weights_gib": weights / 2**30,
            "trained": sum(p.numel() for p in bench.parameters.values()),
        }
    times: dict[str, list[float]] = {way: [] for way in steps}
    for _ in range(args.rounds):
        for way, step in steps.items():
            times[way].append(seconds(step, device))
    for way, values in times.items():
        median = statistics.median(values)
        results[way] |= {
            "seconds": median,
            "tokens_per_second": tokens / median,
            "all_seconds": values,
        }
    if args.profile:
        for way, step in steps.items():
            (args.output.parent / f"{case['name']}-{way}.txt").write_text(profile(step, device))
    if ways[0] in steps:
        results[ways[0]]["noise"] = noise_seconds(bench)
    return results


def profile(step: Step, device: torch.device) -> str:
    """Return the operations of one micro-batch that take most of the device's time."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as recorded:
        step()
        synchronise(device)
    key = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    table: str = recorded.key_averages().table(sort_by=key, row_limit=40, max_name_column_width=90)
    return table


def noise_seconds(bench: Bench) -> dict[str, float]:
    """Seconds of one step's noise on the device, and of the same noise drawn on the host and
    copied."""
    stream = KeyedStream(key=TEST_KEY, run_id="benchmark")
    totals = {
        name: torch.zeros_like(p, dtype=torch.float32) for name, p in bench.parameters.items()
    }
    parts = {name: part_of(total) for name, total in totals.items()}
    count = sum(total.numel() for total in totals.values())
    lattice = lattice_step(MAX_GRAD_NORM, count)

    def on_the_device() -> None:
        add_noise(totals, parts, stream, 0, 1.0, MAX_GRAD_NORM, CorrelatedNoise())

    def on_the_host() -> None:
        for name, total in totals.items():
            held = total.view(-1)[: math.ceil(share * total.numel())]
            noise = stream.normal_on(
                CPU, total.numel(), step=0, purpose="noise", name=name, part=slice(0, len(held))
            )
            add_lattice_noise(held, noise.to(total.device), std=MAX_GRAD_NORM, step=lattice)

    on_the_device()
    drawn = statistics.median(seconds(on_the_device, bench.device) for _ in range(3))
    share = min(1.0, 3e7 / count)  # on the host a part is enough
    return {
        "seconds": drawn,
        "seconds_drawn_on_the_host": seconds(on_the_host, bench.device) / share,
    }


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure all ways of a case, with the largest micro-batch of at most the case's that fits
    every way."""
    case = case_of(name, small=args.small)
    case["ways"] = [way for way in case["ways"] if args.ways is None or way in args.ways]
    groups = [[way for way in case["ways"] if way in pair] for pair in TOGETHER]
    together = [group for group in groups if group]
    groups = together + [
        [way] for way in case["ways"] if not any(way in group for group in together)
    ]
    ways: dict[str, Any] = {}
    smaller: dict[str, int] = {}
    for group in groups:
        while True:
            size = smaller.get(group[0], case["microbatch"])
            out_of_memory = False
            try:
                ways |= run_group({**case, "microbatch": size}, group, args)
            except Exception as error:  # noqa: BLE001 - the other ways are measured all the same
                out_of_memory = is_out_of_memory(error) or "out of memory" in str(error)
                if not out_of_memory or size == 1:
                    ways |= {
                        way: {"error": f"{type(error).__name__}: {str(error)[:300]}"}
                        for way in group
                    }
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if not out_of_memory or size == 1:
                break
            smaller[group[0]] = size // 2
        for way in group:
            ways[way]["microbatch"] = smaller.get(group[0], case["microbatch"])
    reference = ways[case["ways"][0]]
    for result in ways.values():
        if "tokens_per_second" in result and "tokens_per_second" in reference:
            result["ratio"] = result["tokens_per_second"] / reference["tokens_per_second"]
    return {"case": name, "tokens": case["tokens"], "small": args.small, "ways": ways}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="+", choices=list(CASES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a small shape")
    parser.add_argument("--ways", nargs="+", help="some of the case's ways")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--profile", action="store_true", help="also write tables of operations beside the output"
    )
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    results = {}
    for name in args.cases:
        start = time.perf_counter()
        results[name] = result = measure(name, args)
        args.output.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
        for way, r in result["ways"].items():
            if "error" in r:
                print(f"  {way}: not possible: {r['error']}", flush=True)
            else:
                print(
                    f"  {way}: {r['tokens_per_second']:,.0f} tokens/s x{r['ratio']:.3f} "
                    f"{r['seconds']:.4f} s b={r['microbatch']} {r['peak_gib']:.1f} GiB |sum| "
                    f"{r['norm_of_sum']:.5g} {r.get('noise', '')}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
