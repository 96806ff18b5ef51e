"""How often the embedded sweep decides, and how often rightly, with other noise keys.

    python benchmarks/demo.py --keys 20 --output demo.json

Each key is a whole sweep of `raydp/data/demo.yaml` with a secret key of its own, run like by a user. A choice is judged
by runs that it was not made from: those of docs/results/demo-seeds.csv, ten seeds of each configuration, and those of
all other keys. The true score of a configuration is its mean there. A choice is right if its true score is within 10 %
of the lowest among the configurations that keep 90 % of the best gain there. The output tells how far the true score is
from this limit, in standard errors. Finished keys are kept in the output and not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from machine import describe

from analysis import configuration_means, load_points
from analysis.tables.utility_filter import useful_points
from raydp.spec.document import DEMO
from search_spaces.configuration import HYPERPARAMETERS

SEEDS = Path(__file__).parents[1] / "docs" / "results" / "demo-seeds.csv"
WITHIN = 1.1
COLUMNS = [*HYPERPARAMETERS, "seed", "utility_loss", "score", "base_utility_loss"]


def judged(keys: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the keys with the verdict of the runs of all others."""
    return [{**key, **verdict(key["selected"], keys[:at] + keys[at + 1 :])} for at, key in enumerate(keys)]


def verdict(selected: list[float], others: list[dict[str, Any]]) -> dict[str, Any]:
    """Return whether a choice is right by the runs of other keys, and how far it is from the limit.

    The runs of a key are not equally many for all configurations, because each further one depended on those before. A
    sum over all runs is still unbiased for its number of runs (Wald's equation), so the means are over runs.
    """
    tables = [load_points(SEEDS)[COLUMNS], *(pd.DataFrame(key["points"], columns=COLUMNS) for key in others)]
    points = pd.concat(tables, ignore_index=True)
    points["seed"] = range(len(points))  # equal seeds of two keys are different runs
    means = configuration_means(points)
    useful = configuration_means(useful_points(points, min_utility_gain=0.9))
    best = useful.loc[useful["score"].idxmin()]
    own = means[(means[HYPERPARAMETERS] == selected).all(axis=1)].iloc[0]
    excess = own["score"] - WITHIN * best["score"]
    errors = [row["score_std"] / row["num_seeds"] ** 0.5 for row in (own, best)]
    same = (own[HYPERPARAMETERS] == best[HYPERPARAMETERS]).all()
    std_error = abs(1 - WITHIN) * errors[0] if same else (errors[0] ** 2 + (WITHIN * errors[1]) ** 2) ** 0.5
    return {"right": bool(excess <= 0), "standard_errors_above_the_limit": round(float(excess / std_error), 2)}


def run(folder: Path) -> dict[str, Any]:
    """Run the sweep with a key of its own, and return what it decided."""
    spec = yaml.safe_load(DEMO.read_text(encoding="utf-8"))
    spec["privacy"]["noise_key"] = "secret"
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    started = time.perf_counter()
    command = [sys.executable, "-m", "raydp", "sweep", "spec.yaml", "--json"]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(answer.stderr)
    document = json.loads(answer.stdout)
    selected, seeds = document["selected"], document["counts"]["seeds"]
    points = load_points(folder / spec["storage"] / spec["name"] / "points.csv")
    return {
        "selected": [selected[name] for name in HYPERPARAMETERS],
        "state": selected["decision"]["state"],
        "probability": selected["decision"]["probability"],
        "probability_within": selected["decision"]["probability_within"],
        "estimate": selected["decision"]["estimate"],
        "interval": selected["decision"]["interval"],
        "ended_as": seeds["state"],
        "further_runs": seeds["further_runs"],
        "seconds": round(time.perf_counter() - started, 1),
        "points": points[COLUMNS].to_numpy().tolist(),
    }


def main() -> None:
    """Run the keys and print how they ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    keys = json.loads(options.output.read_text())["keys"] if options.output.exists() else []
    while len(keys) < options.keys:
        with tempfile.TemporaryDirectory() as folder:
            key = run(Path(folder))
        keys = judged([*keys, key])
        options.output.write_text(json.dumps({"machine": describe(), "keys": keys}))
        print(json.dumps({name: value for name, value in keys[-1].items() if name != "points"}), flush=True)
    settled = [key for key in keys if key["state"] != "undecided"]
    print(f"{len(keys)} keys: {dict(Counter(key['ended_as'] for key in keys))}; right {sum(k['right'] for k in keys)}")
    print(f"settled {len(settled)}, of which right {sum(key['right'] for key in settled)}")
    print(f"seconds: {sorted(key['seconds'] for key in keys)}")


if __name__ == "__main__":
    main()
