"""The keyed noise of a step against a generator's: drawing, adding on the lattice, and what it is
of a private step.

    OMP_NUM_THREADS=1 python benchmarks/noise.py --output noise.json

For the parameters of each model of `benchmarks/step.py`: seconds of processor time to draw the
noise of one step from the keyed stream, to draw and add it to the sums as the training loop does,
and for comparison to draw as many normals with torch.Generator in fp32, and to draw and add those,
which is neither keyed nor safe in its low-order bits. The four take turns; medians. The share is of
a plain step of 32 examples of 64 tokens without privacy, measured in the same
process: the forward and backward pass, in micro-batches of the sizes of `benchmarks/step.py`, once.
What it does not show: a GPU, where the noise is drawn on the CPU and copied.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import ways
from machine import describe

from raydp.training.noise import adding
from raydp.training.noise.correlated import CorrelatedNoise
from raydp.training.noise.lattice import NOISE_WIDENING
from raydp.training.noise.stream import TEST_KEY, KeyedStream
from raydp.training.sharding import part_of

CASES = ("lora", "gpt2-256", "gpt2-768")
NUM_EXAMPLES = 32
SIGMA, MAX_GRAD_NORM = 1.0, 0.5


def draws(totals: dict[str, torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    stream = KeyedStream(key=TEST_KEY, run_id="benchmark")
    generator = torch.Generator().manual_seed(0)
    parts = {name: part_of(total) for name, total in totals.items()}
    std = SIGMA * MAX_GRAD_NORM * NOISE_WIDENING

    def keyed() -> None:
        for name, total in totals.items():
            stream.normal(total.numel(), step=0, purpose="noise", name=name)

    def keyed_and_added() -> None:
        adding.add_noise(totals, parts, stream, 0, SIGMA, MAX_GRAD_NORM, CorrelatedNoise())

    def torchs() -> None:
        for total in totals.values():
            torch.empty_like(total).normal_(generator=generator)

    def torchs_and_added() -> None:
        for total in totals.values():
            total += torch.empty_like(total).normal_(std=std, generator=generator)

    return {
        "keyed": keyed,
        "keyed_and_added": keyed_and_added,
        "torch": torchs,
        "torch_and_added": torchs_and_added,
    }


def seconds(call: Callable[[], Any]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def measure(case: str, rounds: int) -> dict[str, Any]:
    """One model."""
    bench = ways.Bench(ways.CASES[case], torch.float32)
    totals = {name: torch.zeros_like(p) for name, p in bench.parameters.items()}
    calls = draws(totals)
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(seconds(call))
    medians = {name: statistics.median(values) for name, values in times.items()}
    microbatch = ways.plain(bench)
    microbatch()
    repeats = NUM_EXAMPLES // ways.CASES[case]["microbatch"]
    plain = repeats * min(seconds(microbatch) for _ in range(2))
    return {
        "coordinates": sum(t.numel() for t in totals.values()),
        "seconds": medians,
        "all_seconds": times,
        "plain_step_seconds": plain,
        "share_of_plain_step": medians["keyed_and_added"] / plain,
        "ratio_to_torch": medians["keyed_and_added"] / medians["torch_and_added"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("noise.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    settings = {
        "rounds": args.rounds,
        "threads": args.threads,
        "num_examples": NUM_EXAMPLES,
        "tokens": ways.TOKENS,
    }
    document = describe("torch", "numpy", "cryptography") | {"settings": settings, "cases": {}}
    for case in CASES:
        document["cases"][case] = result = measure(case, args.rounds)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
        figures = "  ".join(f"{name} {value:.4f} s" for name, value in result["seconds"].items())
        share = result["share_of_plain_step"]
        print(
            f"{case:9s} {result['coordinates']:,} coordinates  {figures}  {share:.2%} of a plain "
            "step",
            flush=True,
        )


if __name__ == "__main__":
    main()
