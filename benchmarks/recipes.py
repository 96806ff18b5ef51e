"""Recipes of DP-Adam on the embedded data at one (ε, δ): schedules of η, and Adam without the
variance of the noise.

    OMP_NUM_THREADS=1 python benchmarks/recipes.py --storage raydp_runs/recipes --output
    recipes.json

A sweep for each recipe, of the demo's task, model and ε. Of every recipe and batch size, the
learning rate with the lowest mean held-out loss is shown. What is in the storage is read and not
run again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml
from machine import describe

import raydp

DEMO = Path(raydp.__file__).parent / "data" / "demo.yaml"
RATES = [2.5e-3, 5e-3, 1e-2, 2e-2, 4e-2]
RECIPES: dict[str, dict[str, Any]] = {
    "constant": {},
    "linear": {"learning_rate_schedule": "linear"},
    "cosine": {"learning_rate_schedule": "cosine"},
    "cosine-warmup": {"learning_rate_schedule": "cosine", "warmup_ratio": 0.1},
    "corrected": {"second_moment": "noise_corrected"},
    "corrected-floor-1": {"second_moment": "noise_corrected", "second_moment_floor": 1.0},
}


def rows_of(
    name: str, storage: Path, *, batch_sizes: list[int], seeds: int
) -> list[dict[str, Any]]:
    """Run what has not run of a recipe, and return its best learning rate at each batch size."""
    spec = yaml.safe_load(DEMO.read_text())
    spec |= {
        "name": name,
        "space": {"batch_size": batch_sizes, "num_steps": [120], "learning_rate": RATES},
        "seeds": list(range(seeds)),
        "scores": [{"name": "vmr_exact"}],
        "storage": str(storage),
        "tracking": {"uri": f"sqlite:///{storage.resolve()}/mlflow.db", "registered_model": name},
    }
    spec["method"] |= RECIPES[name]
    spec["privacy"]["accountant"] = "pld"
    folder = storage / name
    if not (folder / "report.html").is_file():
        raydp.Sweep(spec).run(resume=folder.is_dir())
    points = raydp.load_points(folder / "points.csv")
    means = points.groupby(["batch_size", "learning_rate"])[["utility_loss", "score"]].agg(
        ["mean", "std"]
    )
    rows = []
    for size in batch_sizes:
        of_size = means.loc[size]
        rate = float(of_size[("utility_loss", "mean")].idxmin())
        best = of_size.loc[rate]
        figures = {
            f"{figure}_{part}": float(best[(figure, part)])
            for figure in ("utility_loss", "score")
            for part in ("mean", "std")
        }
        rows.append({"recipe": name, "batch_size": size, "learning_rate": rate, **figures})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--storage", type=Path, default=Path("raydp_runs/recipes"))
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("recipes.json"))
    args = parser.parse_args()
    args.storage.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name in RECIPES:
        for row in rows_of(name, args.storage, batch_sizes=args.batch_sizes, seeds=args.seeds):
            rows.append(row)
            print(
                f"{row['recipe']:18} b={row['batch_size']:<4} η={row['learning_rate']:<7g} loss "
                f"{row['utility_loss_mean']:.4f} ± {row['utility_loss_std']:.4f}  score "
                f"{row['score_mean']:.4f} ± {row['score_std']:.4f}"
            )
    args.output.write_text(
        json.dumps({**describe("torch", "ray", "opacus"), "rows": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
