"""Everything that is measured on a GPU, in one run of a few minutes, as JSON.

    python benchmarks/gpu/measure.py --output gpu                       # on a GPU
    python benchmarks/gpu/measure.py --output gpu --device cpu --small  # small shapes, to try the script
    python benchmarks/gpu/measure.py --output gpu --parts tests steps --cases full-1b

Each part is a process of its own: a part that fails or runs out of time leaves the others their
result. The parts come in the order of their importance, and a part begins only while --seconds are
left. After each part the folder holds gpu.json with what is known so far, and a log of each part.
The cases of the step benchmark share a process, which writes its result after each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from machine import describe  # the folder of the other benchmarks
from steps import CASES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PARTS = ("tests", "ceilings", "products", "steps", "generation", "commands", "sharing")
LONGEST = {"tests": 240, "steps": 300, "sharing": 150}
"""Seconds after which a part is ended; 120 for the others."""


def command(part: str, args: argparse.Namespace) -> list[str]:
    """Return the command of a part, which writes its result to a file of the part's name."""
    file, python = str(args.output / f"{part}.json"), sys.executable
    device = ["--device", args.device]
    small = ["--small"] if args.small else []
    if part == "tests":
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={args.output / 'tests.xml'}"]
        return [python, "-m", "pytest", "tests/training/test_gpu.py", "-m", "gpu", *options]
    if part == "ceilings":
        return [python, __file__, "--ceilings", *device, *small, "--output", file]
    if part == "generation":
        dtype = ["--dtype", "float32" if args.small else "bfloat16"]
        size = (
            ["--prompts", "2", "--samples", "2", "--tokens", "4", "--rounds", "1"]
            if args.small
            else []
        )
        return [python, str(HERE.parent / "generation.py"), *device, *dtype, *size, "-o", file]
    if part == "steps":
        profile = ["--profile"] if args.profile else []
        return [
            python,
            str(HERE / "steps.py"),
            *args.cases,
            *device,
            *small,
            *profile,
            "--output",
            file,
        ]
    return [python, str(HERE / f"{part}.py"), *device, *small, "--output", file]


def ceilings(device: str, *, small: bool) -> dict[str, float]:
    """Measure what the device can do: TFLOP/s of a bf16 matrix product, and GB/s of a copy, read
    and written."""
    size, repeats = (64, 2) if small else (8192, 10)
    synchronise = torch.accelerator.synchronize if device != "cpu" else lambda: None
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.randn(size * size * (1 if small else 8), device=device)
    target = torch.empty_like(source)
    results = {}
    for name, call, amount in (
        ("bf16_tflops", lambda: left @ right, 2 * size**3 / 1e12),
        ("copy_gb_per_second", lambda: target.copy_(source), 2 * source.nbytes / 1e9),
    ):
        for _ in range(3):
            call()
        synchronise()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        synchronise()
        results[name] = amount * repeats / (time.perf_counter() - start)
    return results


def run_part(part: str, args: argparse.Namespace, left: float) -> dict[str, Any]:
    """Run a part and return its result, or why there is none."""
    start, limit = time.perf_counter(), min(left, LONGEST.get(part, 120))
    log = args.output / f"{part}.log"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    with log.open("w") as stream:
        try:
            code = subprocess.run(
                command(part, args),
                cwd=ROOT,
                env=environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=limit,
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
    seconds = time.perf_counter() - start
    file = args.output / f"{part}.json"
    result = {"result": json.loads(file.read_text())} if file.exists() else {}
    lines = log.read_text().splitlines()
    failed = (
        {}
        if code == 0
        else {"end": "out of time" if code is None else f"exit {code}", "log": lines[-15:]}
    )
    return {
        "seconds": round(seconds, 1),
        **result,
        **failed,
        "last_line": lines[-1] if lines else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--cases", nargs="+", choices=list(CASES), default=list(CASES), help="of the step benchmark"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="small shapes")
    parser.add_argument("--profile", action="store_true", help="also write tables of operations")
    parser.add_argument("--seconds", type=float, default=540, help="for all parts together")
    parser.add_argument("--ceilings", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ceilings:
        args.output.write_text(json.dumps(ceilings(args.device, small=args.small)))
        return
    args.output.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    device = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    document: dict[str, Any] = describe("torch", "transformers") | {"device": device, "parts": {}}
    for part in args.parts:
        left = args.seconds - (time.perf_counter() - start)
        if left < 15:
            document["parts"][part] = {"end": "not begun: out of time"}
        else:
            document["parts"][part] = run_part(part, args, left)
        (args.output / "gpu.json").write_text(json.dumps(document, indent=1) + "\n")
        outcome = document["parts"][part]
        print(
            f"{part}: {outcome.get('seconds')} s {outcome.get('end', '')} "
            f"{outcome.get('last_line', '')}",
            flush=True,
        )


if __name__ == "__main__":
    main()
