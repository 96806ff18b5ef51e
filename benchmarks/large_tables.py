"""How long the analyses of large points tables take, and how much memory.

    OMP_NUM_THREADS=1 python benchmarks/large_tables.py -o large_tables.json

Three made-up tables of about 100,000 rows. In "seeds" and "distinct" no two hyperparameters are
alike, and losses and scores know nothing of them. "grid" has 46 values of each, losses that fall
with ln U and scores that rise with it. Each analysis is timed once, in one process; memory is the
largest that the process has held until then.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from machine import describe

from raydp.analysis import heuristic_accuracy, privacy_risk, regress, score_variance, select
from raydp.search_spaces import load_space

ANALYSES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "heuristics": heuristic_accuracy,
    "variance": score_variance,
    "regression": regress,
    "select": lambda table: select(table, max_loss=float(table["utility_loss"].median())),
    "risk": privacy_risk,
}


def distinct(size: int, seeds: int) -> pd.DataFrame:
    """Configurations no two hyperparameters of which are alike, each with some seeds."""
    rng = np.random.default_rng(0)
    columns = {
        name: rng.choice(np.arange(1, 10**7), size, replace=False)
        for name in ("batch_size", "num_steps")
    }
    columns |= {
        "learning_rate": rng.uniform(1e-5, 1e-1, size),
        "utility_loss": rng.uniform(1, 3, size),
    }
    columns |= {"score": rng.uniform(0.01, 1, size)}
    table = pd.DataFrame(columns).loc[np.repeat(np.arange(size), seeds)].reset_index(drop=True)
    noise = rng.normal(0, 0.05, (2, len(table)))
    return table.assign(
        seed=np.tile(np.arange(seeds), size),
        utility_loss=table["utility_loss"] + noise[0],
        score=np.maximum(table["score"] + noise[1], 0.001),
    )


def full_grid(values: int = 46) -> pd.DataFrame:
    """Every combination, with few distinct products; better utility leaks more."""
    rng = np.random.default_rng(0)
    b, t, rate = (axis.ravel() for axis in np.meshgrid(*[np.arange(values)] * 3, indexing="ij"))
    rates = np.array([float(f"{4e-6 * 1.2**k:.3g}") for k in range(values)])
    updates = np.log(8.0 * (b + 1)) + np.log(4.0 * (t + 1)) + np.log(rates[rate])
    return pd.DataFrame(
        {
            "batch_size": 8 * (b + 1),
            "num_steps": 4 * (t + 1),
            "learning_rate": rates[rate],
            "seed": 0,
            "utility_loss": 4 - 0.1 * updates + rng.normal(0, 0.03, len(b)),
            "score": np.exp(0.3 * updates + rng.normal(0, 0.2, len(b))),
        }
    )


def timed(analysis: Callable[[pd.DataFrame], Any], table: pd.DataFrame) -> dict[str, float]:
    """One call."""
    start = time.perf_counter()
    analysis(table)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {"seconds": round(seconds, 2), "peak_gigabytes": round(peak, 3)}


def resampled(table: pd.DataFrame) -> Any:
    """5,000 layouts, every rule."""
    return privacy_risk(table, layout="resample")


def small() -> pd.DataFrame:
    """The 75 configurations of a named space with three seeds."""
    table = distinct(75, 3)
    listed = load_space("tofu-4").configurations
    names = ["batch_size", "num_steps", "learning_rate"]
    values = [[getattr(c, name) for name in names] for c in listed for _ in range(3)]
    return table.assign(**pd.DataFrame(values, columns=names))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    timed(regress, small())  # imports
    found: dict[str, Any] = {}
    tables = {"seeds": distinct(33_333, 3), "distinct": distinct(100_000, 1), "grid": full_grid()}
    for name, table in tables.items():
        found[name] = {"rows": len(table)} | {key: timed(of, table) for key, of in ANALYSES.items()}
        print(name, json.dumps(found[name]), flush=True)
    found["resampled risk of 75 configurations"] = timed(resampled, small())
    settings = {"seeds": [33_333, 3], "distinct": [100_000, 1], "grid": [46, 46, 46]}
    result = {**describe("numpy", "pandas", "scipy"), "settings": settings, "results": found}
    arguments.output.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
