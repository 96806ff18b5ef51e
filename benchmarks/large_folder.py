"""What commands cost that read the folder of a sweep of many runs.

The results are made up, and nothing is trained.

    python benchmarks/large_folder.py --runs 20000 --output large_folder.json

Each result has 50 steps and a score of 20 secrets. A command's processor time and its largest
memory are the system's own count for its process. `--folder` keeps the folder, and takes it as it
is if it is there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

from raydp.scores.score import Measurement
from raydp.spec.reading import load_spec
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import drawn, make_plan, plan_to_keep
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.results import RunResult
from raydp.sweep.store.state import Delivery

STEPS, SECRETS = 50, [f"secret-{k}" for k in range(20)]
BATCH_SIZES, NUM_STEPS, SEEDS = [16, 24, 32, 48], [10, 20, 30, 40, 50], list(range(10))
COMMANDS = {"status": (), "points": ("--json",), "select": ("--max-loss", "9")}


def spec_of(storage: Path, runs: int) -> dict[str, Any]:
    """Return a grid of about this many runs: 4 batch sizes, 5 numbers of steps, 10 seeds, and
    learning rates."""
    rates = max(1, runs // (len(BATCH_SIZES) * len(NUM_STEPS) * len(SEEDS)))
    return {
        "name": "large",
        "task": {"name": "builtin"},
        "model": {"name": "tiny", "adapter": {"r": 2, "alpha": 2, "target_modules": ["q_proj"]}},
        "method": {"name": "dp_adam", "max_grad_norm": 0.1},
        "privacy": {"target_epsilon": 8, "accountant": "rdp"},
        "space": {
            "batch_size": BATCH_SIZES,
            "num_steps": NUM_STEPS,
            "learning_rate": [float(f"{1e-3 * (1 + k / 10):.6g}") for k in range(rates)],
        },
        "seeds": SEEDS,
        "scores": [{"name": "vmr_exact"}],
        "select": {"score": "vmr_exact", "max_loss": 9},
        "storage": str(storage),
    }


def fill(storage: Path, runs: int) -> None:
    """Write the folder of a sweep whose runs have all finished."""
    spec = load_spec(spec_of(storage, runs))
    task, weight_hash = build_task(spec)
    plan = make_plan(spec, task.facts(), weight_hash)
    folder = SweepFolder.create(
        spec, lambda key: plan_to_keep(drawn(plan, spec, weight_hash, key), "a1b2" * 4)
    )
    rng = np.random.default_rng(0)
    row = {
        "drawn": 34.0,
        "loss": 10.472914751838236,
        "gradient_norm": 1.7133327932918774,
        "clipped": 1.0,
    }
    ids = [BASE_RUN, *(trial.run_id for trial in folder.plan().trials)]
    for number, run_id in enumerate(ids):
        result = RunResult(
            run_id=run_id,
            status="finished",
            utility_loss=float(rng.normal(8, 0.5)),
            scores={
                "vmr_exact": Measurement.over_secrets(rng.uniform(size=len(SECRETS)), ids=SECRETS)
            },
            history=[{"step": step, **row} for step in range(STEPS)],
            train_seconds=2.0,
            score_seconds=1.0,
        )
        delivery = Delivery(status="finished", model_uri=f"models:/large/{number}")
        folder.trial(run_id).mkdir()
        for name, document in (
            ("result.json", result.to_json()),
            ("tracked.json", delivery.to_json()),
        ):
            (folder.trial(run_id) / name).write_text(
                json.dumps(document, indent=1) + "\n", encoding="utf-8"
            )


def cost(folder: SweepFolder, command: str) -> dict[str, float]:
    """Run a command on the folder in a process of its own, and return its cost."""
    arguments = [sys.executable, "-m", "raydp", command, str(folder.path), *COMMANDS[command]]
    with tempfile.TemporaryFile() as out:
        actions = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1)]
        pid = os.posix_spawn(sys.executable, arguments, os.environ, file_actions=actions)
        _, status, used = os.wait4(pid, 0)
    return {
        "exit_code": os.waitstatus_to_exitcode(status),
        "processor_seconds": round(used.ru_utime + used.ru_stime, 2),
        "largest_memory_mb": round(used.ru_maxrss * 1024 / 1e6),
    }


def main() -> None:
    """Make the folder, and measure each command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, help="keep the sweeps here")
    parser.add_argument("--commands", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        storage = arguments.folder or Path(scratch)
        folder = SweepFolder(path=storage / "large")
        if not SweepFolder.is_at(folder.path):
            # In a process of its own, because a child's largest memory begins with its parent's.
            filling = get_context("spawn").Process(target=fill, args=(storage, arguments.runs))
            filling.start()
            filling.join()
        costs = {command: cost(folder, command) for command in arguments.commands}
        answer = {"machine": describe(), "runs": len(folder.plan().trials), "commands": costs}
    text = json.dumps(answer, indent=1)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
