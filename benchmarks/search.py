"""What a search spends against what it finds, replayed on complete sweeps and on made-up surfaces.

    python benchmarks/search.py --points raydp_runs/demo/points.csv --surfaces 12 -o search.json

For every table, three utility thresholds (quantiles of the losses) and each rule, the frugal search
runs what it asks for; Optuna (TPE, and Gaussian processes) and random search run as many
configurations, and Optuna also half of the compute, its default. The cost is compute, b·T, over the
whole grid's; `reached` is the part of it after which the choice stays within 5 %, which a search
does not know. The excess is that of the score which the rule selects from what was run over the one
that it selects from all, relative to it; it is infinite where nothing that was run keeps to the
threshold. The front is the area (utility loss, score) that what was run dominates, of what the
whole grid does, among those that keep to the threshold, up to the worst of both.
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
from replay import Replay, replay

from raydp.analysis import configuration_means, load_points
from raydp.analysis.tables.points import configurations
from raydp.extensions.searches.frugal import FrugalSearch
from raydp.extensions.searches.optuna_search import OptunaSearch
from raydp.extensions.searches.random_order import RandomSearch
from raydp.search_spaces import grid
from raydp.sweep.search import Goal

QUANTILES, RULES, RANDOM_SEEDS = (0.25, 0.5, 0.75), ("procedure", "oracle"), 10
COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]


def surface(seed: int) -> pd.DataFrame:
    """64 configurations, two seeds: scores with Hu et al.'s slopes (Table 2, Enron), each times a
    random factor; the loss falls with compute and learning rate and rises beyond a best learning
    rate."""
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


def compare(name: str, points: pd.DataFrame, optuna_seeds: int) -> list[dict[str, Any]]:
    """Every search on one table; medians over the seeds of those that draw."""
    means, found = configuration_means(points), []
    for rule in RULES:
        for quantile in QUANTILES:
            goal = Goal(rule=rule, max_loss=float(means["utility_loss"].quantile(quantile)))
            frugal = replay(points, FrugalSearch(), goal)
            number = len(frugal.order)
            by_search = {
                "frugal": [frugal],
                "optuna": [
                    replay(points, OptunaSearch(num_configurations=number, seed=k), goal)
                    for k in range(optuna_seeds)
                ],
                "optuna, gp": [
                    replay(
                        points, OptunaSearch(sampler="gp", num_configurations=number, seed=k), goal
                    )
                    for k in range(optuna_seeds)
                ],
                "random": [
                    replay(points, RandomSearch(num_configurations=number, seed=k), goal)
                    for k in range(RANDOM_SEEDS)
                ],
                "optuna, half": [
                    replay(points, OptunaSearch(seed=k), goal) for k in range(optuna_seeds)
                ],
                "optuna, gp, half": [
                    replay(points, OptunaSearch(sampler="gp", seed=k), goal)
                    for k in range(optuna_seeds)
                ],
            }
            for search, replays in by_search.items():
                excess = [_excess(one) for one in replays]
                found.append({
                    "table": name, "configurations": len(means), "rule": rule, "quantile": quantile, "search": search,
                    "ran": float(np.median([len(one.order) for one in replays])),
                    "cost_share": float(np.median([one.cost_share for one in replays])),
                    "excess": float(np.median(excess)),
                    "within_5_percent": float(np.mean(np.array(excess) <= 0.05)),
                    "largest_excess": float(np.max(excess)),
                    "reached": float(np.median([np.inf if one.reached is None else one.reached for one in replays])),
                    "front": float(np.median([front_share(means, one, goal) for one in replays])),
                })  # fmt: skip
                print(found[-1], file=sys.stderr, flush=True)
    return found


def front_share(means: pd.DataFrame, one: Replay, goal: Goal) -> float:
    """The dominated area of what was run over that of the whole grid; NaN where the grid's is
    none."""
    allowed = means[means["utility_loss"] <= goal.max_loss]
    mask = [configuration in one.order for configuration in configurations(allowed)]
    corner = allowed[["utility_loss", "score"]].max().to_numpy()
    of_all = dominated_area(allowed, corner)
    return dominated_area(allowed[mask], corner) / of_all if of_all > 0 else float("nan")


def dominated_area(means: pd.DataFrame, corner: np.ndarray) -> float:
    """The area between the front of some configurations and a corner that is worse than each."""
    area, lowest = 0.0, float(corner[1])
    for loss, score in means.sort_values("utility_loss")[["utility_loss", "score"]].itertuples(
        index=False
    ):
        if score < lowest:
            area += (float(corner[0]) - loss) * (lowest - score)
            lowest = score
    return area


def _excess(one: Replay) -> float:
    """Infinite without a selection, NaN where the score of the whole grid's choice is not above
    0."""
    if one.selected is None:
        return float("inf")
    return float("nan") if one.relative_excess is None else one.relative_excess


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By search: medians, and how often the choice is within 5 %."""
    table = pd.DataFrame(rows)
    return {
        str(search): {
            "replays": len(part),
            "median_configurations": float(part["ran"].median()),
            "median_cost_share": float(part["cost_share"].median()),
            "median_reached": float(part["reached"].median()),
            "median_excess": float(part["excess"].median()),
            "within_5_percent": float(part["within_5_percent"].mean()),
            "largest_excess": float(part["largest_excess"].max()),
            "median_front": float(part["front"].median()),
        }
        for search, part in table.groupby("search", sort=False)
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--points", type=Path, nargs="*", default=[], help="points files of complete sweeps"
    )
    parser.add_argument("--surfaces", type=int, default=12, help="made-up surfaces")
    parser.add_argument(
        "--optuna-seeds", type=int, default=3, help="repetitions of the search by Optuna"
    )
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    rows = []
    for path in args.points:
        rows += compare(f"{path.parent.name}/{path.name}", load_points(path), args.optuna_seeds)
    made_up = [
        row
        for k in range(args.surfaces)
        for row in compare(f"surface {k}", surface(k), args.optuna_seeds)
    ]
    tables = {
        name: [row for row in rows if row["table"] == name]
        for name in dict.fromkeys(r["table"] for r in rows)
    }
    document = {
        **describe("optuna", "numpy", "pandas", "scikit-learn"),
        "settings": {"frugal": FrugalSearch().model_dump(), "optuna": OptunaSearch().model_dump()},
        "summary": {
            name: summary(part) for name, part in {**tables, "surfaces": made_up}.items() if part
        },
        "rows": rows + made_up,
    }
    text = json.dumps(document, indent=1).replace("NaN", "null").replace("Infinity", '"inf"')
    args.output.write_text(text + "\n") if args.output else print(text)


if __name__ == "__main__":
    main()
