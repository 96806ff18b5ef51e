"""How often the embedded sweep decides, and how often rightly, with other noise keys.

    python benchmarks/demo.py --keys 20 --output demo.json

Each key is a whole sweep of `raydp/data/demo.yaml` with a secret key of its own, run like by a
user. A choice is judged by runs that it was not made from: those of docs/results/demo-seeds.csv,
ten seeds of each configuration, and those of all other keys. The true score and the true loss of a
configuration are its means there.

The rule selects among the configurations whose loss keeps to the threshold with 95 % probability.
So there are three verdicts on a choice:

- right: its true score is within 10 % of the lowest of all that the key's own runs admitted;
- useful: its true loss keeps to the threshold;
- of_all: its true score is within 10 % of the lowest of all whose true loss keeps to the threshold.

Finished keys are kept in the output and not run again.
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

from raydp.analysis import configuration_means, load_points, select
from raydp.analysis.selection.rules import UTILITY_CHECK
from raydp.analysis.tables.points import configurations
from raydp.analysis.tables.utility_filter import useful_points
from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.spec.reading import DEMO

SEEDS = Path(__file__).parents[1] / "docs" / "results" / "demo-seeds.csv"
WITHIN, GAIN = 1.1, 0.9
COLUMNS = [*HYPERPARAMETERS, "seed", "utility_loss", "score", "base_utility_loss"]


def judged(keys: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the keys with the verdicts of the runs of all others."""
    return [{**key, **verdicts(key, keys[:at] + keys[at + 1 :])} for at, key in enumerate(keys)]


def verdicts(key: dict[str, Any], others: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the runs of other keys say of a choice.

    The runs of a key are not equally many for all configurations, because each further one depended
    on those before. A sum over all runs is still unbiased for its number of runs (Wald's equation),
    so the means are over runs.
    """
    points = pd.concat([load_points(SEEDS)[COLUMNS], *map(table, others)], ignore_index=True)
    points["seed"] = range(len(points))  # equal seeds of two keys are different runs
    means = configuration_means(points)
    true = dict(zip(configurations(means), means["score"], strict=True))
    useful = configurations(configuration_means(useful_points(points, min_gain_share=GAIN)))
    own = select(table(key), rule="informed", min_gain_share=GAIN)
    admitted = next(step.survivors for step in own.steps if step.name == UTILITY_CHECK)
    (selected,) = configurations(pd.DataFrame([key["selected"]], columns=HYPERPARAMETERS))
    return {
        "right": bool(true[selected] <= WITHIN * min(true[one] for one in admitted)),
        "useful": selected in useful,
        "of_all": bool(true[selected] <= WITHIN * min(true[one] for one in useful)),
        "true_score": round(true[selected], 4),
        "lowest_admitted": round(min(true[one] for one in admitted), 4),
    }


def table(key: dict[str, Any]) -> pd.DataFrame:
    """Return the runs of a key as a points table."""
    return pd.DataFrame(key["points"], columns=COLUMNS)


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    keys = json.loads(options.output.read_text())["keys"] if options.output.exists() else []
    keys = judged(keys)
    while len(keys) < options.keys:
        with tempfile.TemporaryDirectory() as folder:
            key = run(Path(folder))
        keys = judged([*keys, key])
        options.output.write_text(json.dumps({"machine": describe(), "keys": keys}))
        print(
            json.dumps({name: value for name, value in keys[-1].items() if name != "points"}),
            flush=True,
        )
    print(f"{len(keys)} keys: {dict(Counter((key['ended_as'], key['state']) for key in keys))}")
    settled = [key for key in keys if key["state"] != "undecided"]
    for name, some in {"all": keys, "settled": settled}.items():
        counts = {
            verdict: sum(key[verdict] for key in some) for verdict in ("right", "useful", "of_all")
        }
        print(f"{name} {len(some)}: {counts}")
    print(f"seconds: {sorted(key['seconds'] for key in keys)}")


if __name__ == "__main__":
    main()
