"""How often the embedded sweep decides, and how often rightly, with other noise keys.

    python benchmarks/demo.py --keys 20 --output demo.json

Each key is a whole sweep of `raydp/data/demo.yaml` with a secret key of its own, run like by a user. The truth is the
table of ten seeds, docs/results/demo-seeds.csv: the true score of a configuration is its mean there. A choice is right
if its true score is within 10 % of the lowest among the configurations that keep 90 % of the best gain there. Finished
keys are kept in the output and not run again.
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

import yaml
from machine import describe

from analysis import configuration_means, load_points
from analysis.tables.utility_filter import useful_points
from raydp.spec.document import DEMO
from search_spaces.configuration import HYPERPARAMETERS

SEEDS = Path(__file__).parents[1] / "docs" / "results" / "demo-seeds.csv"
WITHIN = 1.1


def truth() -> tuple[dict[tuple[float, ...], float], float]:
    """Return (b, T, η) -> true score, and the lowest true score of the useful configurations."""
    points = load_points(SEEDS)
    means = configuration_means(points)
    useful = configuration_means(useful_points(points, min_utility_gain=0.9))
    scores = {tuple(map(float, row[:3])): float(row[3]) for row in means[[*HYPERPARAMETERS, "score"]].to_numpy()}
    return scores, float(useful["score"].min())


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
    }


def main() -> None:
    """Run the keys and print how they ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    scores, lowest = truth()
    keys = json.loads(options.output.read_text())["keys"] if options.output.exists() else []
    while len(keys) < options.keys:
        with tempfile.TemporaryDirectory() as folder:
            key = run(Path(folder))
        key["right"] = scores[tuple(map(float, key["selected"]))] <= WITHIN * lowest
        keys.append(key)
        options.output.write_text(json.dumps({"machine": describe(), "keys": keys}, indent=1))
        print(json.dumps(key), flush=True)
    settled = [key for key in keys if key["state"] != "undecided"]
    print(f"{len(keys)} keys: {dict(Counter(key['ended_as'] for key in keys))}; right {sum(k['right'] for k in keys)}")
    print(f"settled {len(settled)}, of which right {sum(key['right'] for key in settled)}")
    print(f"seconds: {sorted(key['seconds'] for key in keys)}")


if __name__ == "__main__":
    main()
