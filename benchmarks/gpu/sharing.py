"""A whole sweep on a GPU, by one, two and four trials that share it: seconds from start to end, and
of training.

    python benchmarks/gpu/sharing.py --output sharing.json
    python benchmarks/gpu/sharing.py --device cpu --small --output sharing.json   # with two slots of a CPU

The base model is a Llama of 135 million random weights (the shape of SmolLM2) with the tokenizer of
`tiny`. The task is the built-in one. Every sweep has the same eight runs, with Ray, MLflow and the
scores of the demo.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers

import raydp
from raydp.models.lookup import TINY
from raydp.sweep.store.folder import SweepFolder

SHARES = (0.25, 1.0, 0.5)


def make_model(folder: Path, *, small: bool) -> None:
    """Write a base model with random weights."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY)
    width, layers, heads = (64, 2, 4) if small else (576, 30, 9)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=width * 8 // 3, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 3 if not small else 2, tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def spec(folder: Path, share: float, args: argparse.Namespace) -> dict[str, Any]:
    """Return the sweep whose trials take a share of the device each."""
    name = f"share-{share:g}"
    on_gpu = args.device != "cpu"
    slots = round(1 / share) if on_gpu else min(2, round(1 / share))
    return {
        "name": name,
        "task": {"name": "builtin", "num_examples": 2000, "num_heldout": 50},
        "model": {
            "name": str(folder / "model"),
            "dtype": "bfloat16" if on_gpu else "float32",
            "adapter": {"type": "lora", "r": 8, "alpha": 8, "target_modules": "all-linear"},
        },
        "method": {"name": "dp_adam", "max_grad_norm": 0.1},
        "privacy": {
            "target_epsilon": 8,
            "delta_exponent": 1.1,
            "accountant": "pld",
            "noise_key": "test",
        },
        "space": {
            "batch_size": [64, 128],
            "num_steps": [2, 4] if args.small else [20, 40],
            "learning_rate": [1e-3, 5e-3],
        },
        "seeds": [0],
        "scores": [{"name": "vmr_exact"}, {"name": "air"}, {"name": "logprob"}],
        "select": {"score": "vmr_exact", "min_gain_share": 0},
        "cluster": {
            "gpus_per_worker": share if on_gpu else 0,
            "cpus_per_worker": 1,
            "max_concurrent_trials": slots,
            "prefix_cache_gib": 1,
        },
        "storage": str(folder / "runs"),
        "tracking": {
            "uri": f"sqlite:///{folder}/mlflow.db",
            "experiment": name,
            "registered_model": name,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", small=args.small)
        for share in args.shares:
            start = time.perf_counter()
            result = raydp.Sweep(spec(folder, share, args)).run()
            seconds = time.perf_counter() - start
            folder_of = SweepFolder.open(result.folder)
            points = raydp.load_points(result.folder / "points.csv")
            results[f"{share:g}"] = {
                "seconds": seconds,
                "runs": len(points),
                "train_seconds": [
                    found.train_seconds
                    for found in map(folder_of.result, points["run_id"])
                    if found
                ],
                "utility_loss": points["utility_loss"].tolist(),
            }
            args.output.write_text(json.dumps(results, indent=1) + "\n")
            print(f"share {share:g}: {len(points)} runs in {seconds:.1f} s", flush=True)
            print(
                points[["batch_size", "num_steps", "utility_loss", "score"]].to_string(), flush=True
            )


if __name__ == "__main__":
    main()
