"""Seeds where they matter against equal seeds for all: how often the choice is right, and what the
runs cost.

    python benchmarks/seeds.py --tables 40 --output seeds.json
    python benchmarks/seeds.py --tables 40 --points docs/results/demo-seeds.csv --output demo.json
    python benchmarks/seeds.py --tables 40 --measure-again --output measured.json

Without --points, sweeps are generated as in decision.py: a few configurations of its grid, two
seeds of each at first, and secrets whose difficulty and whose reaction to a configuration vary.
`--configurations` says how many. With --points, the true means and standard deviations are those of
a table with many seeds of each configuration.

A choice is right if its true score is at most 10 % above the lowest true score of the
configurations that keep to the utility threshold by their true losses. With --measure-again
adaptive seeds are compared with themselves: sweeps whose first pass leaves the decision open
measure every run with 5 controls of each secret in place of one, and go on.

Adaptive seeds end by `raydp.analysis.seeds.next_seed`; equal seeds give each
configuration 2, 3, 4, ... seeds. The cost of both is in first passes (two seeds of each
configuration).
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from decision import FAMILIES, GRID, NUM_SECRETS
from machine import describe
from numpy.typing import NDArray

from raydp.analysis import load_points, select
from raydp.analysis.seeds.allocation import SeedLimits, next_seed
from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.tables.columns import KEY, with_settings
from raydp.search_spaces import Configuration

Array = NDArray[np.float64]
FIRST, AT_MOST, MAX_COST_SHARE, TOLERANCE = 2, 12, 2.0, 0.1
LIMITS = {"confidence": 0.95, "tolerance": TOLERANCE}
CONTROLS = 5
"""Number of controls of each secret in a finer measurement."""
COLUMNS = [
    "batch_size",
    "num_steps",
    "learning_rate",
    "seed",
    "utility_loss",
    "score",
    "base_utility_loss",
    "run_id",
]
BASE_LOSS, GAIN = 2.5, 0.9


@dataclass(frozen=True, kw_only=True)
class World:
    """Configurations with known true scores, of which any number of seeds can be run.

    Attributes:
        listed: the m configurations.
        scores: [m, seeds, secrets] the score of every run that can be made, by secret.
        losses: [m, seeds] the utility loss of every run.
        truth, true_loss: [m] the true scores and losses.
        base_loss: the untrained model's loss.
        by_secret: whether the scores by secret are shown to the rule.
        finer: the scores with more controls of each secret; None if there are none.
    """

    listed: list[Configuration]
    scores: Array
    losses: Array
    truth: Array
    true_loss: Array
    base_loss: float
    by_secret: bool
    finer: Array | None = None

    @property
    def compute(self) -> Array:
        """Return the compute of one run of each configuration, [m]."""
        return np.array([float(c.batch_size * c.num_steps) for c in self.listed])

    def points(self, seeds: Array) -> pd.DataFrame:
        """Return the points table of the first seeds of each configuration, [m] how many."""
        rows = [
            [
                *_columns(c),
                seed,
                self.losses[k, seed],
                self.scores[k, seed].mean(),
                self.base_loss,
                f"{k}-{seed}",
            ]
            for k, c in enumerate(self.listed)
            for seed in range(int(seeds[k]))
        ]
        return pd.DataFrame(rows, columns=COLUMNS)

    def secrets(self, points: pd.DataFrame) -> tuple[pd.DataFrame, str] | None:
        """Return the values by secret of a points table's runs, as for `select`; None if they are
        not shown."""
        if not self.by_secret:
            return None
        places = [run_id.split("-") for run_id in points["run_id"]]
        values = np.array([self.scores[int(k), int(seed)] for k, seed in places])
        num_runs, num_secrets = values.shape
        table = pd.DataFrame(
            {
                "run_id": np.repeat(points["run_id"].to_numpy(), num_secrets),
                "score": "vmr",
                "secret_id": np.tile([f"s{k:02}" for k in range(num_secrets)], num_runs),
                "value": values.ravel(),
            }
        )
        return table, "vmr"

    def is_right(self, configuration: Configuration) -> bool:
        """Return whether a choice is within the tolerance of the best one."""
        useful = self.true_loss <= self.base_loss - GAIN * (self.base_loss - self.true_loss.min())
        return bool(
            self.truth[self.listed.index(configuration)]
            <= (1 + TOLERANCE) * self.truth[useful].min() + 1e-15
        )


def _columns(configuration: Configuration) -> list[float]:
    return [configuration.batch_size, configuration.num_steps, configuration.learning_rate]


def generated(family: str, number: int, *, size: int) -> World:
    """Generate a world of one of the families of decision.py."""
    rng = np.random.default_rng([number, list(FAMILIES).index(family), 5])
    grid = GRID[np.sort(rng.permutation(len(GRID))[:size])]
    logs = np.log(GRID)
    z = (np.log(grid) - logs.mean(axis=0)) / logs.std(axis=0)
    truth = 0.1 * np.exp(FAMILIES[family](z, rng))
    loss = (
        1.3
        + 0.05 * np.exp(-0.5 * z @ rng.normal(1, 0.3, 3))
        + 0.02 * np.maximum(z[:, 2] + z[:, 0] - 1.5, 0) ** 2
    )
    easy = rng.normal(0, 0.5, NUM_SECRETS) - 0.125
    own = rng.normal(0, 0.2, (size, 1, NUM_SECRETS)) - 0.02
    spread = 0.2 * rng.uniform(0.5, 1.5, (size, 1))
    shift = rng.normal(0, 1, (size, AT_MOST)) * spread - spread**2 / 2
    noise = rng.normal(0, 0.4, (size, AT_MOST, NUM_SECRETS)) - 0.08
    common = truth[:, None, None] * np.exp(easy + shift[..., None])
    again = np.random.default_rng([number, list(FAMILIES).index(family), 6])
    return World(
        listed=[
            Configuration(batch_size=int(b), num_steps=int(t), learning_rate=float(r))
            for t, b, r in grid
        ],
        scores=common * np.exp(own + noise),
        finer=common
        * np.exp(_with_more_controls(own, 0.2, again) + _with_more_controls(noise, 0.4, again)),
        losses=loss[:, None] + rng.normal(0, 0.008, (size, AT_MOST)),
        truth=truth,
        true_loss=loss,
        base_loss=BASE_LOSS,
        by_secret=True,
    )


def _with_more_controls(effects: Array, std: float, rng: np.random.Generator) -> Array:
    """Draw the effects of contrasts with `CONTROLS` texts, given the effects of contrasts with the
    first of them.

    The effect of a text and the effect of a control have one variance and are independent. So the
    effects have the share s = (1 + 1 / CONTROLS) / 2 of the variance, and s of the variance is what
    both have in common.
    """
    share, mean = (1 + 1 / CONTROLS) / 2, -(std**2) / 2
    deviations = share * (effects - mean) + std * np.sqrt(share - share**2) * rng.normal(
        0, 1, effects.shape
    )
    finer: Array = deviations - share * std**2 / 2  # keeps the mean of the exponential at 1
    return finer


def like(points: pd.DataFrame, number: int) -> World:
    """Generate a world whose configurations have the means and standard deviations of a table with
    many seeds.

    Scores are drawn from gamma distributions, because they are not negative.
    """
    rng = np.random.default_rng(number)
    runs = with_settings(points).groupby(KEY)
    mean, std = (getattr(runs["score"], figure)().to_numpy()[:, None] for figure in ("mean", "std"))
    loss, loss_std = (
        getattr(runs["utility_loss"], figure)().to_numpy()[:, None] for figure in ("mean", "std")
    )
    size = (len(mean), AT_MOST)
    return World(
        listed=[
            Configuration(batch_size=int(b), num_steps=int(t), learning_rate=float(r))
            for (t, b, r, _), _ in runs
        ],
        scores=rng.gamma((mean / std) ** 2, std**2 / mean, size)[..., None],
        losses=rng.normal(loss, loss_std, size),
        truth=mean[:, 0],
        true_loss=loss[:, 0],
        base_loss=float(points["base_utility_loss"].iloc[0]),
        by_secret=False,
    )


def adaptive(world: World, *, measure_again: bool = False) -> dict[str, Any]:
    """Run a sweep whose further seeds go where they matter.

    Args:
        measure_again: whether a sweep that the first pass leaves open uses the finer scores from
            then on.
    """
    compute, seeds = world.compute, np.full(len(world.listed), FIRST)
    first_pass = float((FIRST * compute).sum())
    while True:
        points = world.points(seeds)
        secrets = world.secrets(points)
        spent = float((seeds * compute).sum()) - first_pass
        limits = SeedLimits(at_most=AT_MOST, compute=MAX_COST_SHARE * first_pass - spent, **LIMITS)
        begun = dict(zip(world.listed, seeds.tolist(), strict=True))
        step = next_seed(
            points, Constraints(min_gain_share=GAIN), limits, begun=begun, by_secret=secrets
        )
        if step.is_open and measure_again and world.finer is not None:
            world = replace(world, scores=world.finer, finer=None)
            continue
        if step.configuration is None:
            break
        seeds[world.listed.index(step.configuration)] += 1
    chosen = select(points, min_gain_share=GAIN, by_secret=secrets, **LIMITS)
    return {
        "state": step.state,
        "right": world.is_right(chosen.configuration),
        "runs": int(seeds.sum()) / (FIRST * len(seeds)),
        "cost": (spent + first_pass) / first_pass,
    }


def equal(world: World, seeds: int) -> dict[str, Any]:
    """Run a sweep with the same number of seeds for all."""
    points = world.points(np.full(len(world.listed), seeds))
    chosen = select(points, min_gain_share=GAIN, by_secret=world.secrets(points), **LIMITS)
    assert chosen.decision is not None
    return {"state": chosen.decision.state, "right": world.is_right(chosen.configuration)}


def compared(worlds: Iterator[World]) -> dict[str, Any]:
    """Compare both on some worlds."""
    ended, others = [], {seeds: [] for seeds in range(FIRST, AT_MOST + 1, 2)}
    for world in worlds:
        ended.append(adaptive(world))
        for seeds, into in others.items():
            into.append(equal(world, seeds))
    settled = [each["right"] for each in ended if each["state"] in ("decided", "equivalent")]
    return {
        "sweeps": len(ended),
        "right": float(np.mean([each["right"] for each in ended])),
        "runs": float(np.mean([each["runs"] for each in ended])),
        "cost": float(np.mean([each["cost"] for each in ended])),
        "states": dict(Counter(each["state"] for each in ended)),
        "settled": len(settled),
        "right_where_settled": float(np.mean(settled)) if settled else None,
        "equal": {
            seeds: {
                "right": float(np.mean([each["right"] for each in all_of])),
                "settled": sum(each["state"] != "undecided" for each in all_of),
                "cost": seeds / FIRST,
            }
            for seeds, all_of in others.items()
        },
    }


def measured_again(worlds: Iterator[World]) -> dict[str, Any]:
    """Compare adaptive seeds without and with a finer measurement on some worlds."""
    each = [(adaptive(world), adaptive(world, measure_again=True)) for world in worlds]
    figures: dict[str, Any] = {"sweeps": len(each)}
    for name, ended in zip(("seeds alone", "measured again"), zip(*each, strict=True), strict=True):
        settled = [one["right"] for one in ended if one["state"] in ("decided", "equivalent")]
        figures[name] = {
            "right": float(np.mean([one["right"] for one in ended])),
            "runs": float(np.mean([one["runs"] for one in ended])),
            "settled": len(settled),
            "right_where_settled": sum(settled),
        }
    return figures


def measured_as_markdown(results: dict[str, Any]) -> str:
    """Format the comparison of `measured_again` as a table."""
    head = [
        "family",
        "right",
        "measured again",
        "settled",
        "measured again",
        "right where settled",
        "measured again",
    ]
    lines = [
        "| " + " | ".join([*head, "runs", "measured again"]) + " |",
        "| --- |" + " --- |" * (len(head) + 1),
    ]
    for name, result in results.items():
        ways = [result["seeds alone"], result["measured again"]]
        cells = [
            name,
            *(f"{way['right']:.3f}" for way in ways),
            *(f"{way['settled']} of {result['sweeps']}" for way in ways),
        ]
        cells += [f"{way['right_where_settled']}" for way in ways] + [
            f"{way['runs']:.2f}" for way in ways
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def as_markdown(results: dict[str, Any]) -> str:
    """Format the results as a table."""
    seeds = next(iter(results.values()))["equal"]
    head = ["family", "right", "runs", "cost", "settled", "right where settled", "ended as"]
    head += [f"{n} seeds: right (settled)" for n in seeds]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " --- |" * (len(head) - 1)]
    for name, result in results.items():
        among = result["right_where_settled"]
        states = ", ".join(f"{state} {count}" for state, count in sorted(result["states"].items()))
        settled = f"{result['settled']} of {result['sweeps']}"
        cells = [
            name,
            f"{result['right']:.3f}",
            f"{result['runs']:.2f}",
            f"{result['cost']:.2f}",
            settled,
        ]
        cells += ["" if among is None else f"{among:.3f}", states]
        cells += [f"{each['right']:.3f} ({each['settled']})" for each in result["equal"].values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--tables", type=int, default=40)
    parser.add_argument("--configurations", type=int, default=9)
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--points", type=Path)
    parser.add_argument("--measure-again", action="store_true")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    started, numbers = time.perf_counter(), range(options.tables)
    if options.points is None:
        compare = measured_again if options.measure_again else compared
        results = {
            family: compare(
                generated(family, number, size=options.configurations) for number in numbers
            )
            for family in options.families
        }
    else:
        points = load_points(options.points)
        results = {options.points.stem: compared(like(points, number) for number in numbers)}
    print(measured_as_markdown(results) if options.measure_again else as_markdown(results))
    print(f"{time.perf_counter() - started:.0f} s")
    if options.output is not None:
        options.output.write_text(json.dumps({"machine": describe(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
