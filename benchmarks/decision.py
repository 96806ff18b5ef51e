"""How well selection rules choose, and how honest the decision is: regret, probabilities and
intervals.

    python benchmarks/decision.py --tables 200 --output decision.json
    python benchmarks/decision.py --tables 100 --configurations 3 --output few.json
    python benchmarks/decision.py --tables 100 --errors collapse --output collapse.json
    python benchmarks/decision.py --tables 100 --seeds 10 --reaction 0.1 --correlation -0.8 --output
    correlated.json python benchmarks/decision.py --points docs/results/demo-seeds.csv
    --min-gain-share 0.9 --seeds 2 python benchmarks/decision.py --points
    docs/results/tofu-chat.csv --min-gain-share 0.7 --seeds 1

Without --points, sweeps are generated from surfaces whose truth is known: 27 configurations, 2
seeds, 24 secrets whose difficulty and whose reaction to a configuration vary, and errors over seeds
whose size varies. With --points, the seeds of each configuration are drawn from a table with many,
and the mean of the other seeds is taken for the truth.

A rule's regret is the true score of its choice minus the lowest true score among the configurations
that the utility threshold admits by the measured losses. "expected-score" is "informed" without its
choice between equivalent scores, and "select" is the public function with the rule "informed": it
also checks the utility, and whether anything leaks.
`kept`: how often the true loss of a rule's choice keeps to the threshold.
`right`: how often "informed" chooses the lowest one, beside the mean of the probability that it
states. `equivalent`: how many choices are equivalent to the lowest, and how often their true score
is within the tolerance of the lowest, beside the mean of the probability that is stated and the
share by "expected-score"; `loss_saved` is by how much the choice's true loss is lower there than
that of "expected-score". `covered`: how often the 95 % interval of the selected configuration holds
its true score, selected by "informed" and by the lowest mean.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from machine import describe
from numpy.typing import NDArray

from raydp.analysis import configuration_means, load_points, select
from raydp.analysis.selection.equivalents import Precision
from raydp.analysis.selection.rules import Layout, choose
from raydp.analysis.tables.columns import KEY, with_settings
from raydp.analysis.tables.points import configurations
from raydp.analysis.tables.utility_filter import loss_threshold, within

Array = NDArray[np.float64]
RULES = (
    "informed",
    "procedure",
    "best-utility",
    "worst-utility",
    "pareto-knee",
    "oracle",
)
EXPECTED, SELECT, PRECISION = "expected-score", "select", Precision()
COMPARED = (*RULES, EXPECTED, SELECT)
GRID = np.array(
    list(product([60, 120, 240], [64, 128, 256], [0.005, 0.01, 0.02]))
)  # in the order of KEY
NUM_SECRETS, SCORE = 24, "made"
COLUMNS = [
    "run_id",
    "batch_size",
    "num_steps",
    "learning_rate",
    "seed",
    "utility_loss",
    "score",
]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One measured sweep and its truth.

    Attributes:
        points: the points table.
        secrets: its values by secret; None without.
        threshold: the utility threshold.
        means: configuration means.
        by_secret: [m, k] means by secret, None without.
        truth, true_loss: [m] true scores and losses.
        pool: [m] which configurations keep to the utility threshold by their measured losses.
    """

    points: pd.DataFrame
    secrets: pd.DataFrame | None
    threshold: float
    means: pd.DataFrame
    by_secret: Array | None
    truth: Array
    true_loss: Array
    pool: NDArray[np.bool_]


def rising(z: Array, rng: np.random.Generator) -> Array:
    """The score rises with b, T and η, as the paper's heuristics expect."""
    return 0.6 * z @ rng.uniform(0.5, 1.2, 3)


def contrary(z: Array, rng: np.random.Generator) -> Array:
    """The slopes have other signs than the heuristics expect."""
    return 0.6 * z @ rng.uniform(-1.0, 0.3, 3)


def valley(z: Array, rng: np.random.Generator) -> Array:
    """The lowest score lies inside the grid."""
    return 0.4 * ((z - rng.uniform(-0.7, 0.7, 3)) ** 2).sum(axis=1)


def flat(z: Array, rng: np.random.Generator) -> Array:
    """The scores hardly differ: what is measured is chance."""
    return rng.normal(0, 0.05, len(z))


def rough(z: Array, rng: np.random.Generator) -> Array:
    """Neighbours tell nothing about each other."""
    return rng.normal(0, 0.8, len(z))


def cliff(z: Array, rng: np.random.Generator) -> Array:
    """Many steps at a large learning rate break the training, and with it the memorisation."""
    return rising(z, rng) - 2.0 * (z[:, 2] + z[:, 0] > 1.8)


def additive(z: Array, rng: np.random.Generator) -> Array:
    """A plane on the scale of the score itself, not of its logarithm."""
    return np.log(np.maximum(3 + 0.5 * z @ rng.uniform(-1, 1, 3), 0.1))


FAMILIES: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    family.__name__: family for family in (rising, contrary, valley, flat, rough, cliff, additive)
}


@dataclass(frozen=True, kw_only=True)
class Errors:
    """How generated sweeps are measured.

    Attributes:
        kind: "lognormal"; "collapse": 8 % of the runs also fall to a twentieth of their score;
            "counts": the score is a share of 240 generations, without values by secret.
        seeds: number of seeds of each configuration.
        difficulty: standard deviation of the logarithms of the secrets' difficulties.
        reaction: standard deviation of the logarithms of how a secret reacts to a configuration.
        correlation: of a run's errors in score and utility loss.
    """

    kind: str
    seeds: int
    difficulty: float
    reaction: float
    correlation: float


def generated(family: str, number: int, *, size: int, errors: Errors) -> Sweep:
    """Generate a sweep.

    Args:
        number: which sweep of the family.
        size: number of configurations, drawn from the grid.
        errors: how it is measured.
    """
    rng = np.random.default_rng([number, list(FAMILIES).index(family)])
    grid = GRID if size == len(GRID) else GRID[np.sort(rng.permutation(len(GRID))[:size])]
    logs = np.log(GRID)
    z = (np.log(grid) - logs.mean(axis=0)) / logs.std(axis=0)
    truth = 0.1 * np.exp(FAMILIES[family](z, rng))
    loss = (
        1.3
        + 0.12 * np.exp(-0.5 * z @ rng.normal(1, 0.3, 3))
        + 0.02 * np.maximum(z[:, 2] + z[:, 0] - 1.5, 0) ** 2
    )
    easy = rng.normal(0, errors.difficulty, NUM_SECRETS)
    own = rng.normal(0, errors.reaction, (len(grid), NUM_SECRETS))
    centre = (
        errors.difficulty**2 + errors.reaction**2
    ) / 2  # of the logarithms, so that the mean factor is 1
    by_secret, rows, values = [], [], []
    for at, (num_steps, batch_size, rate) in enumerate(grid):
        spread = 0.2 * rng.uniform(0.5, 1.5)
        runs = []
        for seed in range(errors.seeds):
            shift = rng.normal(0, spread)
            luck = errors.correlation * shift / spread
            if errors.kind == "collapse" and rng.random() < 0.08:
                shift += np.log(0.05)
            runs.append(truth[at] * np.exp(easy + own[at] - centre + shift - spread**2 / 2))
            if errors.kind == "counts":
                runs[-1] = rng.binomial(240, min(1.0, 0.2 * truth[at]), 1) / 240 / 0.2
            measured = loss[at] + 0.004 * (
                luck + np.sqrt(1 - errors.correlation**2) * rng.standard_normal()
            )
            rows.append(
                [
                    f"{at}-{seed}",
                    int(batch_size),
                    int(num_steps),
                    rate,
                    seed,
                    measured,
                    runs[-1].mean(),
                ]
            )
            values += [
                [f"{at}-{seed}", SCORE, f"secret-{k}", value] for k, value in enumerate(runs[-1])
            ]
        by_secret.append(np.mean(runs, axis=0))
    points = pd.DataFrame(rows, columns=COLUMNS)
    means = configuration_means(points)
    low, middle = means["utility_loss"].min(), means["utility_loss"].median()
    threshold = (
        float(low + 0.6 * (middle - low)) if size > 8 else float(means["utility_loss"].max())
    )
    counted = errors.kind == "counts"
    return Sweep(
        points=points.assign(**{f"score.{SCORE}": points["score"]}),
        secrets=None
        if counted
        else pd.DataFrame(values, columns=["run_id", "score", "secret_id", "value"]),
        threshold=threshold,
        means=means,
        by_secret=None if counted else np.array(by_secret),
        truth=truth,
        true_loss=loss,
        pool=(means["utility_loss"] <= threshold).to_numpy(),
    )


def drawn(points: pd.DataFrame, number: int, *, seeds: int, min_gain_share: float) -> Sweep:
    """Draw a few seeds of each configuration; the truth is the mean of the others."""
    rng = np.random.default_rng(number)
    order = (
        with_settings(points).assign(_place=rng.random(len(points))).groupby(KEY)["_place"].rank()
    )
    few, rest = points[order <= seeds], points[order > seeds]
    means = configuration_means(few)
    threshold = loss_threshold(means, min_gain_share=min_gain_share)
    assert threshold is not None
    pool = within(means["utility_loss"].to_numpy(), threshold)
    truth, true_loss = (
        configuration_means(rest)[figure].to_numpy() for figure in ("score", "utility_loss")
    )
    return Sweep(
        points=few, secrets=None, threshold=float(np.max(threshold)), means=means, by_secret=None, truth=truth,
        true_loss=true_loss, pool=pool,
    )  # fmt: skip


def selected(sweep: Sweep) -> int:
    """Return the position of the configuration that `select` selects, with all its checks."""
    by_secret = None if sweep.secrets is None else (sweep.secrets, SCORE)
    chosen = select(sweep.points, rule="informed", max_loss=sweep.threshold, by_secret=by_secret)
    return configurations(sweep.means).index(chosen.configuration)


def judged(sweeps: Iterator[Sweep]) -> dict[str, Any]:
    """Apply all rules to all sweeps."""
    regret: dict[str, list[float]] = {rule: [] for rule in COMPARED}
    kept: dict[str, list[bool]] = {rule: [] for rule in COMPARED}
    stated, right, sure, covered, covered_lowest, estimates, raw_estimates = ([] for _ in range(7))
    stated_within, within_tolerance, expected_within, loss_saved = [], [], [], []
    for sweep in sweeps:
        layout = Layout.of(sweep.means, by_secret=sweep.by_secret, precision=PRECISION)
        best = sweep.truth[sweep.pool].min()
        chosen = {rule: int(choose(rule, layout, sweep.pool)) for rule in RULES}
        chosen[EXPECTED] = int(choose("informed", replace(layout, precision=None), sweep.pool))
        chosen[SELECT] = selected(sweep)
        for rule, at in chosen.items():
            regret[rule].append(float(sweep.truth[at] - best))
            kept[rule].append(bool(sweep.true_loss[at] <= sweep.threshold))
        scores, own = layout.models.scores, chosen["informed"]
        lowest, close = scores.chances(sweep.pool, PRECISION.tolerance, log_base=None)
        stated.append(float(lowest[own]))
        right.append(bool(sweep.truth[own] <= best))
        if stated[-1] >= PRECISION.confidence:
            sure.append(right[-1])
        elif close[own] >= PRECISION.confidence:
            stated_within.append(float(close[own]))
            for at, into in ((own, within_tolerance), (chosen[EXPECTED], expected_within)):
                into.append(bool(sweep.truth[at] <= (1 + PRECISION.tolerance) * best))
            loss_saved.append(float(sweep.true_loss[chosen[EXPECTED]] - sweep.true_loss[own]))
        for at, into in ((own, covered), (chosen["oracle"], covered_lowest)):
            low, high = np.quantile(scores.absolute[:, at], [0.025, 0.975])
            into.append(bool(low <= sweep.truth[at] <= high))
        lowest_mean = chosen["oracle"]
        estimates.append((float(scores.own_mean[own]), float(sweep.truth[own])))
        raw_estimates.append(
            (float(sweep.means["score"].iloc[lowest_mean]), float(sweep.truth[lowest_mean]))
        )
    return {
        "sweeps": len(stated),
        "regret": {
            rule: [float(np.mean(v)), float(np.std(v) / np.sqrt(len(v)))]
            for rule, v in regret.items()
        },
        "kept": {rule: float(np.mean(values)) for rule, values in kept.items()},
        "stated": float(np.mean(stated)),
        "right": float(np.mean(right)),
        "decided": len(sure),
        "right_where_decided": float(np.mean(sure)) if sure else None,
        "equivalent": len(within_tolerance),
        "stated_within": float(np.mean(stated_within)) if stated_within else None,
        "within_where_equivalent": float(np.mean(within_tolerance)) if within_tolerance else None,
        "within_by_expected_score": float(np.mean(expected_within)) if expected_within else None,
        "loss_saved": float(np.mean(loss_saved)) if loss_saved else None,
        "covered": float(np.mean(covered)),
        "covered_lowest_mean": float(np.mean(covered_lowest)),
        "log_bias_of_estimate": log_bias(estimates),
        "log_bias_of_lowest_mean": log_bias(raw_estimates),
    }


def log_bias(estimates: list[tuple[float, float]]) -> float | None:
    """Return the mean logarithm of estimate over truth; None for scores that may be negative, which
    have no ratio."""
    pairs = np.array(estimates)
    if (pairs[:, 1] <= 0).any():
        return None
    return float(np.mean(np.log(np.maximum(pairs[:, 0], 1e-12) / pairs[:, 1])))


def as_markdown(results: dict[str, Any]) -> str:
    """Format the results as three tables: regret, how often the threshold is kept, and the
    decision."""
    heading = ["| family | " + " | ".join(COMPARED) + " |", "| --- |" + " --- |" * len(COMPARED)]
    lines = [*heading]
    for name, result in results.items():
        cells = [f"{mean:.4f} ± {error:.4f}" for mean, error in result["regret"].values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", *heading]
    for name, result in results.items():
        lines.append(
            f"| {name} | " + " | ".join(f"{share:.3f}" for share in result["kept"].values()) + " |"
        )
    columns = ["stated", "right", "decided", "right_where_decided", "equivalent", "stated_within",
               "within_where_equivalent", "within_by_expected_score", "loss_saved", "covered", "covered_lowest_mean",
               "log_bias_of_estimate", "log_bias_of_lowest_mean"]  # fmt: skip
    lines += ["", "| family | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    for name, result in results.items():
        cells = ["" if result[c] is None else f"{result[c]:.3g}" for c in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--difficulty", type=float, default=0.5)
    parser.add_argument("--configurations", type=int, default=len(GRID))
    parser.add_argument(
        "--errors", choices=["lognormal", "collapse", "counts"], default="lognormal"
    )
    parser.add_argument("--reaction", type=float, default=0.4)
    parser.add_argument("--correlation", type=float, default=0.0)
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--points", type=Path)
    parser.add_argument("--min-gain-share", type=float, default=0.9)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    started = time.perf_counter()
    numbers = range(options.tables)
    if options.points is None:
        errors = Errors(
            kind=options.errors,
            seeds=options.seeds,
            difficulty=options.difficulty,
            reaction=options.reaction,
            correlation=options.correlation,
        )
        results = {
            family: judged(
                generated(family, number, size=options.configurations, errors=errors)
                for number in numbers
            )
            for family in options.families
        }
    else:
        points = load_points(options.points)
        sweeps = (
            drawn(points, number, seeds=options.seeds, min_gain_share=options.min_gain_share)
            for number in numbers
        )
        results = {options.points.stem: judged(sweeps)}
    print(as_markdown(results))
    print(f"{time.perf_counter() - started:.0f} s")
    if options.output is not None:
        options.output.write_text(json.dumps({"machine": describe(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
