"""Commands that train more than a sweep does, on a GPU: seconds of each, and its result.

    python benchmarks/gpu/commands.py --output commands.json
    python benchmarks/gpu/commands.py --device cpu --small --output commands.json

A sweep of a network on scikit-learn's digits, an audit of the built-in task with the embedded
model, and the attack with shadow models on the same task.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml


def specs(folder: Path, args: argparse.Namespace) -> dict[str, tuple[list[str], dict[str, Any]]]:
    """Return the command and the spec of each case."""
    on_gpu = args.device != "cpu"
    shared = {
        "method": {"name": "dp_adam", "max_grad_norm": 0.1},
        "privacy": {
            "target_epsilon": 8,
            "target_delta": 1e-5,
            "accountant": "pld",
            "noise_key": "test",
        },
        "space": {
            "batch_size": [64],
            "num_steps": [5] if args.small else [20, 40],
            "learning_rate": [0.005],
        },
        "cluster": {"max_concurrent_trials": 1, "gpus_per_worker": 1 if on_gpu else 0},
        "storage": str(folder / "runs"),
        "tracking": {
            "uri": f"sqlite:///{folder}/mlflow.db",
            "experiment": "gpu",
            "registered_model": "gpu",
        },
    }
    text = {
        "task": {"name": "builtin", "num_examples": 2000, "num_heldout": 50},
        "model": {
            "name": "tiny",
            "adapter": {"type": "none"},
            "dtype": "bfloat16" if on_gpu else "float32",
        },
        "scores": [{"name": "vmr_exact"}],
        "select": {"score": "vmr_exact", "min_gain_share": 0},
    }
    digits = {
        "task": {"name": "digits"},
        "model": {"name": "cnn:1x8x8:10", "adapter": {"type": "none"}},
        "scores": [{"name": "mia_outputs"}],
        "select": {"score": "mia_outputs", "min_gain_share": None},
    }
    canaries = "200" if args.small else "1000"
    return {
        "classification": (["sweep", "{}", "--json"], shared | digits),
        "audit": (["audit", "{}", "--canaries", canaries, "--json"], shared | text),
        "mia": (["mia", "{}", "--shadows", "2", "--json"], shared | text),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for case, (command, spec) in specs(Path(name), args).items():
            file = Path(name) / f"{case}.yaml"
            file.write_text(yaml.safe_dump({"name": case, **spec}))
            start = time.perf_counter()
            words = [sys.executable, "-m", "raydp", *(word.format(file) for word in command)]
            answer = subprocess.run(words, capture_output=True, text=True)
            results[case] = {"seconds": time.perf_counter() - start, "exit": answer.returncode}
            if answer.returncode == 0:
                results[case]["answer"] = json.loads(answer.stdout)
            else:
                results[case]["log"] = answer.stderr.splitlines()[-15:]
            args.output.write_text(json.dumps(results, indent=1) + "\n")
            print(
                f"{case}: exit {answer.returncode} in {results[case]['seconds']:.1f} s", flush=True
            )
    if any(result["exit"] for result in results.values()):
        sys.exit(
            f"a command failed: {[case for case, result in results.items() if result['exit']]}"
        )


if __name__ == "__main__":
    main()
