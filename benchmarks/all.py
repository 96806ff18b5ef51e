"""Every figure that docs/performance.md promises, measured and compared with its limit.

Exit 1 if one is missed.

    OMP_NUM_THREADS=1 python benchmarks/all.py --quick     # under 10 minutes on two quiet cores
    OMP_NUM_THREADS=1 python benchmarks/all.py --output all

A check is a benchmark of this folder and figures of its JSON. Most are ratios of which both sides
are measured in one run. The limit is the promise with some room for the noise of a shared machine;
the table shows the promise beside it. --quick makes the benchmarks smaller, and leaves out the
checks whose figures are not the same then.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of a benchmark.

    Attributes:
        name: what it is, in words.
        path: keys that lead to it in the benchmark's JSON.
        promised: the figure in docs/performance.md.
        limit: the largest that passes, or the smallest with `at_least`.
        at_least: whether more is better.
        quick: whether the smaller benchmark of --quick measures it too.
    """

    name: str
    path: Sequence[str]
    promised: float
    limit: float
    at_least: bool = False
    quick: bool = True


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A script of this folder with the figures that count.

    Attributes:
        command: the script and its arguments, without the option for the output.
        smaller: further arguments with --quick.
    """

    command: Sequence[str]
    smaller: Sequence[str]
    figures: Sequence[Figure]


def step(
    case: str, way: str, what: str, promised: float, limit: float, *, quick: bool = True
) -> Figure:
    """Return a ratio of benchmarks/step.py."""
    kind = {"time": "ratio_time", "memory": "ratio_memory"}[what]
    name = f"{case}: {what} of {way} over the first way"
    return Figure(
        name=name,
        path=("cases", case, "ways", way, kind),
        promised=promised,
        limit=limit,
        quick=quick,
    )


BENCHMARKS = (
    Benchmark(
        command=("step.py", "--cases", "lora", "gpt2-256", "prefix"),
        smaller=("--rounds", "3"),
        figures=(
            step("lora", "raydp", "time", 1.013, 1.06),
            step("lora", "raydp", "memory", 0.983, 1.03),
            step("gpt2-256", "raydp", "time", 1.143, 1.20),
            step("gpt2-256", "raydp", "memory", 1.023, 1.07),
            step("prefix", "cached", "time", 0.558, 0.60),
        ),
    ),
    Benchmark(
        command=("noise.py",),
        smaller=("--rounds", "3"),
        figures=(
            Figure(
                name="noise of d = 768, drawn and added, over torch's own generator",
                path=("cases", "gpt2-768", "ratio_to_torch"),
                promised=3.4,
                limit=4.2,
            ),
            Figure(
                name="noise of d = 768, share of a plain step of 32 examples",
                path=("cases", "gpt2-768", "share_of_plain_step"),
                promised=0.071,
                limit=0.08,
            ),
        ),
    ),
    Benchmark(
        command=("generation.py",),
        smaller=("--rounds", "1", "--sequential-samples", "1", "--prompts", "6"),
        figures=(
            Figure(
                name="sampling for scores over one sample at a time",
                path=("ratio_to_sequential", "sample_continuations"),
                promised=0.074,
                limit=0.10,
            ),
            Figure(
                name="teacher forcing over one sample at a time",
                path=("ratio_to_sequential", "teacher_forcing"),
                promised=0.018,
                limit=0.03,
            ),
        ),
    ),
    Benchmark(
        command=("calibration.py",),
        smaller=("--pairs", "3"),
        figures=(
            Figure(
                name="calibration: the library's time over ours, the same problems",
                path=("speedup_distinct_one_process",),
                promised=24.9,
                limit=15,
                at_least=True,
            ),
            Figure(
                name="one step's privacy loss distribution: the library's time over ours",
                path=("speedup_pld_step",),
                promised=7.6,
                limit=4,
                at_least=True,
            ),
        ),
    ),
    Benchmark(
        command=("orchestration.py",),
        smaller=("--trials", "8", "--repeats", "1"),
        figures=(
            Figure(
                name="what the sweep adds to a trial (s)",
                path=("overhead_seconds_per_trial",),
                promised=0.03,
                limit=0.15,
                quick=False,
            ),
            Figure(
                name="from the command to the first trial (s)",
                path=("start_seconds",),
                promised=9.4,
                limit=13,
            ),
        ),
    ),
    Benchmark(
        command=("many_trials.py",),
        smaller=("--trials", "100"),
        figures=(
            Figure(
                name="the driver's commit of a run (s)",
                path=("driver_commit_seconds_per_trial",),
                promised=0.083,
                limit=0.12,
            ),
        ),
    ),
)


def measured(benchmark: Benchmark, folder: Path, *, quick: bool) -> dict[str, Any]:
    """Run a benchmark and return its JSON."""
    script, *arguments = benchmark.command
    output = folder / f"{Path(script).stem}.json"
    command = [
        sys.executable,
        str(HERE / script),
        *arguments,
        *(benchmark.smaller if quick else ()),
    ]
    subprocess.run([*command, "--output", str(output)], check=True, stdout=subprocess.DEVNULL)
    document: dict[str, Any] = json.loads(output.read_text())
    return document


def value_of(document: Any, path: Sequence[str]) -> float:
    """Return the figure at the end of a path of keys."""
    for key in path:
        document = document[key]
    return float(document)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smaller benchmarks")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[b.command[0] for b in BENCHMARKS],
        help="some of the benchmarks",
    )
    parser.add_argument("--output", type=Path, help="folder for the JSON of each benchmark")
    args = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.output or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{'measured':>9}  {'promised':>8}  {'limit':>7}")
        for benchmark in BENCHMARKS:
            if args.only and benchmark.command[0] not in args.only:
                continue
            start = time.perf_counter()
            document = measured(benchmark, folder, quick=args.quick)
            for figure in benchmark.figures:
                if args.quick and not figure.quick:
                    continue
                value = value_of(document, figure.path)
                kept = value >= figure.limit if figure.at_least else value <= figure.limit
                missed += not kept
                mark = "" if kept else "  MISSED"
                print(
                    f"{value:9.3f}  {figure.promised:8.3f}  {figure.limit:7.3f}  "
                    f"{figure.name}{mark}",
                    flush=True,
                )
            print(
                f"{benchmark.command[0]}: {time.perf_counter() - start:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    if missed:
        raise SystemExit(
            f"{missed} of the figures are beyond their limit. See docs/performance.md."
        )


if __name__ == "__main__":
    main()
