"""What a trial costs beyond its own training and scoring: a sweep against the plain loop of the
same trials.

    python benchmarks/orchestration.py --output orchestration.json

The loop trains and scores the trials one after another in one process, on one thread. The sweep
does the same through Ray Tune and one Ray Train worker, commits every result, logs it to MLflow and
registers the model. The start lasts until the first trial begins, the end follows the last result,
and what is between is compared with the loop.
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
from pathlib import Path
from typing import Any

import torch
from machine import describe
from rich.console import Console

from raydp.models import base_models as models
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import make_plan
from raydp.sweep.store.transfer import SharedFolder
from raydp.training.comm import LocalComm
from raydp.training.noise.stream import TEST_KEY


def spec_for(folder: Path, num_trials: int) -> SweepSpec:
    """`num_trials` short trials of the built-in task, one at a time."""
    return load_spec(
        {
            "name": f"trials-{num_trials}",
            "task": {"name": "builtin"},
            "model": {
                "name": "tiny",
                "adapter": {
                    "r": 8,
                    "alpha": 8,
                    "target_modules": ["q_proj", "v_proj", "gate_proj", "down_proj"],
                },
            },
            "method": {"name": "dp_adam", "max_grad_norm": 0.1},
            "privacy": {"target_epsilon": 8, "accountant": "rdp", "noise_key": "test"},
            "space": {"batch_size": [64], "num_steps": [10], "learning_rate": [0.01]},
            "seeds": list(range(num_trials)),
            "scores": [{"name": "vmr_exact"}],
            "select": {"score": "vmr_exact", "min_gain_share": 0},
            "cluster": {"max_concurrent_trials": 1},
            "storage": str(folder / "runs"),
            "tracking": {
                "uri": f"sqlite:///{folder}/mlflow.db",
                "experiment": "bench",
                "registered_model": "bench",
            },
        }
    )


def loop_seconds(folder: Path, num_trials: int) -> dict[str, float]:
    """Seconds of the plain loop, and of its start: reading data and model."""
    started = time.perf_counter()
    spec = spec_for(folder, num_trials)
    task, weight_hash = build_task(spec)
    plan = make_plan(spec, task.facts(), weight_hash)
    torch.set_num_threads(1)
    runner = TrialRunner(spec, task, models.load_base(spec.model), LocalComm(), TEST_KEY)
    begun = time.perf_counter()
    for trial in plan.trials:
        runner.run(
            trial, SharedFolder(folder=folder / trial.run_id, run_id=trial.run_id), "attempt-1"
        )
    return {"start": begun - started, "trials": time.perf_counter() - begun}


def sweep_seconds(folder: Path, num_trials: int) -> dict[str, float]:
    """Seconds of the whole sweep in a fresh process, and of its start and its end."""
    from raydp.sweep.driver import run_sweep

    clock, started = time.time(), time.perf_counter()
    result = run_sweep(
        spec_for(folder, num_trials), resume=False, console=Console(stderr=True, quiet=True)
    )
    total = time.perf_counter() - started
    assert result.counts.finished == num_trials
    begun, committed = [], []
    for path in result.folder.glob("trials/*/result.json"):
        committed.append(path.stat().st_mtime)
        outcome = json.loads(path.read_text())
        begun += (
            [committed[-1] - outcome["train_seconds"] - outcome["score_seconds"]]
            if "history" in outcome
            else []
        )
    start, end = min(begun) - clock, clock + total - max(committed)
    return {"start": start, "trials": total - start - end, "end": end}


def in_a_fresh_process(kind: str, num_trials: int) -> Any:
    """One measurement in a process and a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            __file__,
            "--measure",
            kind,
            "--trials",
            str(num_trials),
            "--folder",
            folder,
        ]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        answer = subprocess.run(
            command, check=True, capture_output=True, text=True, env=environment
        )
        return json.loads(answer.stdout.splitlines()[-1])


def measure(num_trials: int, repeats: int) -> dict[str, Any]:
    """Loop and sweep in turn; medians over the repeats."""
    loops, sweeps = [], []
    for _ in range(repeats):
        loops.append(in_a_fresh_process("loop", num_trials))
        sweeps.append(in_a_fresh_process("sweep", num_trials))
    pairs = list(zip(sweeps, loops, strict=True))
    return {
        "loop_seconds_per_trial": statistics.median(loop["trials"] for loop in loops) / num_trials,
        "overhead_seconds_per_trial": statistics.median(
            (a["trials"] - b["trials"]) / num_trials for a, b in pairs
        ),
        "start_seconds": statistics.median(sweep["start"] for sweep in sweeps),
        "start_seconds_of_the_loop": statistics.median(loop["start"] for loop in loops),
        "end_seconds": statistics.median(sweep["end"] for sweep in sweeps),
        "all": {"loop": loops, "sweep": sweeps},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("orchestration.json"))
    parser.add_argument("--measure", choices=["loop", "sweep"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        seconds = {"loop": loop_seconds, "sweep": sweep_seconds}[options.measure](
            options.folder, options.trials
        )
        print(json.dumps(seconds))
        return
    document = describe("ray", "torch", "mlflow", "transformers", "peft")
    document |= {"trials": options.trials, **measure(options.trials, options.repeats)}
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
