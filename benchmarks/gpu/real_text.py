"""Two sweeps of SmolLM2-135M on Enron e-mails at ε = 8 and ε = 1, as long as the paper's, on one
GPU in ten minutes.

    python benchmarks/gpu/real_text.py --data data --output gpu                       # on a GPU
    python benchmarks/gpu/real_text.py --data data --output gpu --device cpu --small  # a hundredth of the steps

Each sweep has 12 configurations × 2 seeds with up to 1,024 examples a step and up to 500 steps, so
that models reach verbatim memorisation. Pairs of canaries are planted in 1, 16 and 64 copies. Both
sweeps run at the same time and share the device. The runs with the largest compute start first.
After --seconds the sweeps are told to stop; finished runs stay, and the same command goes on with
the others. If time is left, ACR is measured with three random starts. real_text.json holds what is
known, also while the sweeps run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from machine import describe  # the folder of the other benchmarks

ROOT = Path(__file__).resolve().parents[2]
EPSILONS = (8, 1)
POINTS = (
    *(
        (1024, 500, 2e-3),
        (1024, 125, 2e-3),
        (512, 250, 2e-3),
        (512, 60, 2e-3),
        (256, 500, 1e-3),
        (256, 500, 4e-3),
    ),
    *(
        (256, 125, 2e-3),
        (256, 125, 8e-3),
        (128, 250, 4e-3),
        (128, 60, 4e-3),
        (64, 500, 2e-3),
        (64, 125, 4e-3),
    ),
)
"""Configurations (b, T, η). The largest one trains on as many examples as the six next ones
together."""
END_SECONDS = 45
"""Time that a sweep has to end after it was told to stop, and that the results need."""


def spec(epsilon: float, args: argparse.Namespace) -> dict[str, Any]:
    """Return the sweep at one ε."""
    name = f"enron-epsilon-{epsilon:g}"
    small, on_gpu = args.small, args.device != "cpu"
    points = [list(point) for point in POINTS[-args.configurations :]]
    if small:
        points = [[b // 16, max(1, steps // 100), rate] for b, steps, rate in points]
    enron = {
        "name": "enron", "path": str(args.data / "enron_emails.jsonl.gz"), "window": "lines", "max_windows_per_mail": 1,
        "secrets": str(args.data / "enron_secrets.jsonl"), "max_length": 64,
    }  # fmt: skip
    return {
        "name": name,
        "task": {"name": "planted", "of": enron, "twins": True, "copies": {1: 8, 16: 8, 64: 8}},
        "model": {
            "name": args.model,
            "dtype": "bfloat16" if on_gpu else "float32",
            "adapter": {"type": "lora", "r": 4, "alpha": 32, "target_modules": "all-linear"},
        },
        "method": {"name": "dp_adam", "max_grad_norm": 0.5},
        "privacy": {"target_epsilon": epsilon, "delta_exponent": 1.1, "accountant": "pld"},
        "space": {"points": points},
        "seeds": [0] if small else [0, 1],
        "scores": [
            {"name": "logprob"},
            {"name": "vmr_exact"},
            {"name": "vmr"},
            {"name": "twin_audit"},
        ],
        "select": {"score": "logprob", "min_gain_share": 0.8},
        "cluster": {
            "gpus_per_worker": 0.5 if on_gpu else 0,
            "cpus_per_worker": 1,
            "max_concurrent_trials": 2 if on_gpu else 1,
        },
        "storage": str(args.output / "runs"),
        "tracking": {
            "uri": f"sqlite:///{args.output / name}.db",
            "experiment": name,
            "registered_model": name,
        },
    }


def raydp(*arguments: str, log: Path | None = None) -> subprocess.Popen[str]:
    """Start a command of raydp. Its output goes to a file, or can be read."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "raydp", *arguments]
    if log is None:
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    with log.open("a") as stream:
        return subprocess.Popen(
            command, env=environment, stdout=stream, stderr=subprocess.STDOUT, text=True
        )


def answer(*arguments: str) -> Any:
    """Return the JSON that a command prints, None if it fails."""
    process = raydp(*arguments, "--json")
    output, _ = process.communicate()
    return json.loads(output) if process.returncode == 0 else None


def wait(processes: list[subprocess.Popen[str]], until: float) -> list[int]:
    """Wait for processes, and tell the ones that are left at a time to stop.

    Return the exit codes.
    """
    while time.monotonic() < until and any(process.poll() is None for process in processes):
        time.sleep(0.5)
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    return [process.wait() for process in processes]


def results(storage: str, name: str) -> dict[str, Any]:
    """Return what a sweep found so far."""
    where = ("--storage", storage)
    return {"points": answer("points", name, *where), "selected": answer("select", name, *where)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the e-mails and of the secrets"
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="folder of the results and of the sweeps"
    )
    parser.add_argument("--model", default="smollm2-135m-instruct-q4")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--small", action="store_true", help="a hundredth of the steps, small batches, one seed"
    )
    parser.add_argument(
        "--configurations", type=int, default=len(POINTS), help="this many, the smaller ones first"
    )
    parser.add_argument("--seconds", type=float, default=560)
    args = parser.parse_args()
    end = time.monotonic() + args.seconds - END_SECONDS
    args.data, args.output = args.data.resolve(), args.output.resolve()
    args.output.mkdir(parents=True, exist_ok=True)
    # Start both sweeps, or go on with them.
    specs = {f"{epsilon:g}": spec(epsilon, args) for epsilon in EPSILONS}
    sweeps = []
    for one in specs.values():
        file = args.output / f"{one['name']}.yaml"
        begun = (Path(one["storage"]) / one["name"]).exists()
        file.write_text(yaml.safe_dump(one))
        options = ["--resume"] if begun else []
        sweeps.append(raydp("sweep", str(file), *options, log=args.output / f"{one['name']}.log"))
    codes = wait(sweeps, end)
    document = describe("torch", "transformers", "peft", "ray") | {
        "device": args.device,
        "exit_codes": codes,
    }
    file = args.output / "real_text.json"
    for epsilon, one in specs.items():
        document[epsilon] = {"spec": one, **results(one["storage"], one["name"])}
        file.write_text(json.dumps(document, indent=1) + "\n")
    # Measure ACR in the time that is left.
    if end - time.monotonic() > END_SECONDS:
        first = next(iter(specs.values()))
        steps = ["--param", "max_steps=2", "--param", "num_seeds=1"] if args.small else []
        where = ("--storage", first["storage"], "--uri", first["tracking"]["uri"])
        command = ("score", first["name"], "--score", "acr", *steps, *where)
        document["acr_exit_code"] = wait([raydp(*command, log=args.output / "acr.log")], end)[0]
        document[f"{EPSILONS[0]:g}"] |= results(first["storage"], first["name"])
        file.write_text(json.dumps(document, indent=1) + "\n")
    rows = [
        len([p for p in document[e]["points"] or [] if p["status"] == "finished"]) for e in specs
    ]
    print(
        "finished runs: "
        f"{', '.join(f'{n} at epsilon {e}' for e, n in zip(specs, rows, strict=True))}",
        flush=True,
    )


if __name__ == "__main__":
    main()
