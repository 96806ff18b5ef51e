"""What a search spends against what it finds, replayed on complete sweeps and on made-up surfaces.

    python benchmarks/search.py --points raydp_runs/demo/points.csv --surfaces 12 -o search.json

For every table, three utility thresholds (quantiles of the losses) and each rule, the frugal search runs what it asks
for; random search runs as many configurations (ten seeds). The cost is compute, b·T, over the whole grid's. The excess
is that of the score which the rule selects from what was run over the one that it selects from all, relative to it; it
is infinite where nothing that was run keeps to the threshold.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from machine import describe

from analysis import configuration_means, load_points
from raydp.search.base import Goal
from raydp.search.frugal import FrugalSearch
from raydp.search.random_order import RandomSearch
from raydp.search.replay import Replay, replay
from search_spaces import grid

QUANTILES, RULES, RANDOM_SEEDS = (0.25, 0.5, 0.75), ("procedure", "oracle"), 10
COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]


def surface(seed: int) -> pd.DataFrame:
    """64 configurations, two seeds: scores with Hu et al.'s slopes (Table 2, Enron), each times a random factor; the
    loss falls with compute and learning rate and rises beyond a best learning rate."""
    rng = np.random.default_rng(seed)
    best, falls, turns = rng.uniform(-5.2, -3.8), rng.uniform(0.05, 0.2), rng.uniform(0.1, 0.6)
    slopes = np.array([0.13, 0.37, 0.51]) * np.exp(0.3 * rng.standard_normal(3))
    rows = []
    for c in grid([64, 128, 256, 512], [30, 60, 120, 240], ["2.5e-3", "5e-3", "1e-2", "2e-2"]):
        b, t, rate = np.log(c.batch_size), np.log(c.num_steps), np.log(c.learning_rate)
        loss = 4 - falls * (b + t) - 0.15 * min(rate, best) + turns * max(rate - best, 0) ** 2
        score = slopes @ [b, t, rate]
        for label in range(2):
            noisy = (loss + 0.01 * rng.standard_normal(), score + 0.15 * rng.standard_normal())
            rows.append((c.batch_size, c.num_steps, c.learning_rate, label, *noisy))
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.assign(score=table["score"] - table["score"].min() + 0.2)


def compare(name: str, points: pd.DataFrame) -> list[dict[str, Any]]:
    """Both searches on one table."""
    means, found = configuration_means(points), []
    for rule in RULES:
        for quantile in QUANTILES:
            goal = Goal(rule=rule, max_loss=float(means["utility_loss"].quantile(quantile)))
            frugal = replay(points, FrugalSearch(), goal)
            drawn = [
                replay(points, RandomSearch(num_configurations=len(frugal.order), seed=seed), goal)
                for seed in range(RANDOM_SEEDS)
            ]
            found.append({
                "table": name, "configurations": len(means), "rule": rule, "quantile": quantile,
                "ran": len(frugal.order), "cost_share": frugal.cost_share, "excess": _excess(frugal),
                "random_cost_share": float(np.mean([one.cost_share for one in drawn])),
                "random_excess": float(np.median([_excess(one) for one in drawn])),
            })  # fmt: skip
            print(found[-1], file=sys.stderr, flush=True)
    return found


def _excess(one: Replay) -> float:
    """Infinite without a selection, NaN where the score of the whole grid's choice is not above 0."""
    if one.selected is None:
        return float("inf")
    return float("nan") if one.relative_excess is None else one.relative_excess


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, and how often the choice is within 5 %."""
    excess = np.array([row["excess"] for row in rows])
    return {
        "replays": len(rows),
        "median_cost_share": float(np.median([row["cost_share"] for row in rows])),
        "median_excess": float(np.median(excess)),
        "within_5_percent": float(np.mean(excess <= 0.05)),
        "largest_excess": float(excess.max()),
        "random_median_cost_share": float(np.median([row["random_cost_share"] for row in rows])),
        "random_median_excess": float(np.median([row["random_excess"] for row in rows])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=Path, nargs="*", default=[], help="points files of complete sweeps")
    parser.add_argument("--surfaces", type=int, default=12, help="made-up surfaces")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    rows = []
    for path in args.points:
        rows += compare(f"{path.parent.name}/{path.name}", load_points(path))
    made_up = [row for k in range(args.surfaces) for row in compare(f"surface {k}", surface(k))]
    tables = {name: [row for row in rows if row["table"] == name] for name in dict.fromkeys(r["table"] for r in rows)}
    document = {
        **describe(),
        "settings": FrugalSearch().model_dump(),
        "summary": {name: summary(part) for name, part in {**tables, "surfaces": made_up}.items() if part},
        "rows": rows + made_up,
    }
    text = json.dumps(document, indent=1).replace("NaN", "null").replace("Infinity", '"inf"')
    args.output.write_text(text + "\n") if args.output else print(text)


if __name__ == "__main__":
    main()
