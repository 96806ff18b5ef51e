"""A private step against a step without privacy: time and peak memory of one micro-batch, on the
same model and data.

    python benchmarks/step.py --output step.json
    python benchmarks/step.py --cases gpt2-256 --rounds 9

Every way has a process of its own: forward, backward and, where it is private, the sum of the
clipped per-example gradients, added to a running sum. For time, the ways take turns, one
micro-batch each a round; reported are medians of processor time, which other load disturbs least,
and the median of the ratios within a round. For memory, another fresh process of each way runs two
micro-batches: reported is the peak of its resident set above what it was when the libraries were
imported, so weights and gradients count. The model and the loss are the same in all ways. Noise is
added once a step, not once a micro-batch: noise.py measures it. Without --cases all cases are
measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe
from torch import nn
from ways import CASES, MAX_GRAD_NORM, TOKENS, WAYS, Bench


def resident(field: str) -> int:
    """Bytes of this process from /proc: VmRSS now, VmHWM at its peak.

    (ru_maxrss would count the parent's, too.)
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def worker(case: str, way: str, args: argparse.Namespace) -> None:
    """Answer every line on stdin with one micro-batch's processor seconds; first say how it went to
    get there."""
    torch.set_num_threads(args.threads)
    nn.Linear(8, 8)(
        torch.randn(4, 8)
    ).sum().backward()  # what the first use of autograd and the kernels take
    before = resident("VmRSS")
    try:
        bench = Bench(CASES[case], getattr(torch, args.dtype))
        step = WAYS[way](bench)
        Path("/proc/self/clear_refs").write_text(
            "5"
        )  # the peak counts from here, whatever building took
        started = time.perf_counter()
        step()
        first = time.perf_counter() - started
    except Exception as error:  # noqa: BLE001 - whatever a library cannot do is a result
        print(
            json.dumps({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}),
            flush=True,
        )
        return
    sums = step()
    peak = resident("VmHWM") - before
    norm = (
        float(torch.stack([g.double().norm() for g in sums.values()]).norm()) / 2
    )  # two equal micro-batches
    answer = {
        "norm_of_sum": norm,
        "peak_bytes": peak,
        "first_seconds": first,
        "trained": sum(p.numel() for p in bench.parameters.values()),
    }
    del sums
    print(json.dumps(answer), flush=True)
    for _ in sys.stdin:
        start = time.process_time()
        step()
        print(json.dumps(time.process_time() - start), flush=True)


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

    def seconds(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        self.process.communicate()


def memory(case: str, args: argparse.Namespace) -> dict[str, Any]:
    """Way -> what a fresh process says after two micro-batches, or its error."""
    answers = {}
    for way in CASES[case]["ways"]:
        # Every tensor of a MiB or more is given back when it is freed, so that the peak is not one
        # of the allocator's.
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
    for one in workers.values():
        one.close()
    reference = CASES[case]["ways"][0]
    result: dict[str, Any] = {"ways": {}}
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32", help="of the frozen weights"
    )
    parser.add_argument("--output", type=Path, default=Path("step.json"))
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(*args.worker, args)
        return
    settings = {
        "rounds": args.rounds,
        "threads": args.threads,
        "dtype": args.dtype,
        "tokens": TOKENS,
    }
    settings |= {
        "max_grad_norm": MAX_GRAD_NORM,
        "seed": 0,
        "microbatch": {c: CASES[c]["microbatch"] for c in args.cases},
    }
    document: dict[str, Any] = describe("torch", "transformers", "peft", "opacus") | {
        "settings": settings,
        "cases": {},
    }
    for case in args.cases:
        document["cases"][case] = result = measure(case, args)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
        for way, r in result["ways"].items():
            print(
                f"{case:10s} {way:13s} not possible: {r['error']}"
                if "error" in r
                else f"{case:10s} {way:13s} {r['seconds']:7.3f} s  x{r['ratio_time']:.3f} {r['ratio_time_quartiles']}  "
                f"{r['peak_bytes'] / 2**20:7.0f} MiB  x{r['ratio_memory']:.3f}  |sum| "
                f"{r['norm_of_sum']:.6g}",
                flush=True,
            )


if __name__ == "__main__":
    main()
