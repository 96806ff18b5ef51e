"""How often the 95 % interval of a selected score holds the true score, for many kinds of errors.

    python benchmarks/intervals.py --tables 100 --output intervals.json     # both cores
    python benchmarks/intervals.py --tables 100 --kinds saturating additive

Every sweep has a surface of decision.py, 27 configurations, and two seeds of each. Only the way in
which scores are measured differs: `KINDS`.

`held` is the share of intervals that hold the true score, with its standard error, `below` the
share of true scores below it. `width` is the median of the interval's width over the width of the
interval that somebody would give who knows the standard deviation of the configuration's mean.
Beside them stand the probability that the decision states, how often it is right, and how often
where it is decided, and the mean regret relative to the lowest score.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from decision import COLUMNS, FAMILIES, GRID, NUM_SECRETS, SCORE
from machine import describe
from numpy.typing import NDArray
from scipy.special import expit, logit

from raydp.analysis import configuration_means, select
from raydp.analysis.tables.points import configurations

Array = NDArray[np.float64]
TRIES, SEEDS = 10, 2
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(64)


Runs = list[Array]
"""What the seeds of each configuration show: [m][seeds, k], by secret if k > 1."""
Kind = Callable[[Array, np.random.Generator], tuple[Array, Callable[[], Runs]]]
"""From a surface [m] around 0.1 to the true scores, and a function that measures them anew."""


def _each(
    truth: Array, run: Callable[[int], float], seeds: NDArray[np.int64] | None = None
) -> Callable[[], Runs]:
    """Measure scores without values by secret: `run(c)` is one run of a configuration."""
    counts = np.full(len(truth), SEEDS) if seeds is None else seeds
    return lambda: [np.array([[run(c)] for _ in range(counts[c])]) for c in range(len(truth))]


def lognormal(truth: Array, rng: np.random.Generator) -> tuple[Array, Callable[[], Runs]]:
    """Factors of 10 to 30 %, and secrets that differ by factors."""
    spread = 0.2 * rng.uniform(0.5, 1.5, len(truth))
    own = np.random.default_rng(rng.integers(2**32))

    def measure() -> Runs:
        easy, reaction = (
            own.normal(0, 0.5, NUM_SECRETS),
            own.normal(0, 0.4, (len(truth), NUM_SECRETS)),
        )
        shift = own.normal(0, 1, (len(truth), SEEDS, 1)) * spread[:, None, None]
        logs = easy + reaction[:, None] + shift - (0.5**2 + 0.4**2 + spread[:, None, None] ** 2) / 2
        return list(truth[:, None, None] * np.exp(logs))

    return truth, measure


def additive(truth: Array, rng: np.random.Generator) -> tuple[Array, Callable[[], Runs]]:
    """Errors of one size whatever the score; a rate below 0 is 0."""
    size = 0.3 * float(np.median(truth))
    return truth, _each(truth, lambda c: max(0.0, truth[c] + rng.normal(0, size)))


def uneven(truth: Array, rng: np.random.Generator) -> tuple[Array, Callable[[], Runs]]:
    """Spreads that differ by configuration: some agree by chance, some are skewed."""
    spread = np.exp(rng.normal(np.log(0.15), 1.0, len(truth))).clip(max=1.0)
    skewed = rng.random(len(truth)) < 0.5

    def run(c: int) -> float:
        if skewed[c]:
            return float(truth[c] * (1 + spread[c] * (rng.exponential() - 1)))
        return float(truth[c] * np.exp(rng.normal(0, spread[c]) - spread[c] ** 2 / 2))

    return truth, _each(truth, run)


def hard_secrets(truth: Array, rng: np.random.Generator) -> tuple[Array, Callable[[], Runs]]:
    """Counts of ten generations a secret, whose log-odds have a standard deviation of 2.2."""
    middle = logit(np.clip(truth, 0.002, 0.9))
    deep = middle[:, None] + np.sqrt(2.2**2 + 0.4**2 + 0.3**2) * NODES
    expected = expit(deep) @ WEIGHTS / WEIGHTS.sum()

    def measure() -> Runs:
        easy, reaction = (
            rng.normal(0, 2.2, NUM_SECRETS),
            rng.normal(0, 0.4, (len(truth), 1, NUM_SECRETS)),
        )
        shift = rng.normal(0, 0.3, (len(truth), SEEDS, 1))
        rates = expit(middle[:, None, None] + easy + reaction + shift)
        return list(rng.binomial(TRIES, rates) / TRIES)

    return expected, measure


def zero_inflated(truth: Array, rng: np.random.Generator) -> tuple[Array, Callable[[], Runs]]:
    """Runs that leak nothing, the more often the lower the score."""
    leaks = truth / (truth + 0.05)

    def run(c: int) -> float:
        leaking = rng.random() < leaks[c]
        return rng.binomial(240, min(1.0, truth[c] / leaks[c] * rng.gamma(9) / 9)) / 240 * leaking

    return truth, _each(truth, run)


def saturating(truth: Array, rng: np.random.Generator) -> tuple[Array, Callable[[], Runs]]:
    """Rates near 1, with errors of their log-odds."""
    middle = 3.0 + 1.5 * np.log(truth / 0.1)
    expected = expit(middle[:, None] + 0.8 * NODES) @ WEIGHTS / WEIGHTS.sum()
    return expected, _each(truth, lambda c: float(expit(middle[c] + rng.normal(0, 0.8))))


def student(truth: Array, rng: np.random.Generator) -> tuple[Array, Callable[[], Runs]]:
    """Errors by Student's t with three degrees of freedom."""
    return truth, _each(truth, lambda c: max(0.0, truth[c] * (1 + 0.15 * rng.standard_t(3))))


def bad_seed(truth: Array, rng: np.random.Generator) -> tuple[Array, Callable[[], Runs]]:
    """One run of a sweep leaks five times as much, or a twentieth."""
    factor = 5.0 if rng.random() < 0.5 else 0.05

    def measure() -> Runs:
        runs = [truth[c] * np.exp(rng.normal(0, 0.2, (SEEDS, 1)) - 0.02) for c in range(len(truth))]
        runs[rng.integers(len(truth))][0] *= factor
        return runs

    return truth, measure


def unequal(truth: Array, rng: np.random.Generator) -> tuple[Array, Callable[[], Runs]]:
    """From two to six seeds of a configuration."""
    seeds = rng.integers(2, 7, len(truth))
    return truth, _each(truth, lambda c: truth[c] * np.exp(rng.normal(0, 0.2) - 0.02), seeds)


def shared_seed(truth: Array, rng: np.random.Generator) -> tuple[Array, Callable[[], Runs]]:
    """A seed that moves all configurations alike, beside their own errors."""

    def measure() -> Runs:
        common = rng.normal(0, 0.1, (SEEDS, 1))
        own = rng.normal(0, 0.15, (len(truth), SEEDS, 1))
        return list(truth[:, None, None] * np.exp(common + own - (0.1**2 + 0.15**2) / 2))

    return truth, measure


def few_secrets(truth: Array, rng: np.random.Generator) -> tuple[Array, Callable[[], Runs]]:
    """A few secrets hold most of the score: Pareto with the shape 2.5."""

    def measure() -> Runs:
        easy = (rng.pareto(2.5, NUM_SECRETS) + 1) * 1.5 / 2.5
        own = np.exp(rng.normal(0, 0.3, (len(truth), 1, NUM_SECRETS)) - 0.045)
        shift = np.exp(rng.normal(0, 0.2, (len(truth), SEEDS, 1)) - 0.02)
        return list(truth[:, None, None] * easy * own * shift)

    return truth, measure


def poisson_like(truth: Array, rng: np.random.Generator) -> tuple[Array, Callable[[], Runs]]:
    """Variances in proportion to the score."""
    return truth, _each(truth, lambda c: rng.gamma(truth[c] / 0.005) * 0.005)


def near_chance(truth: Array, rng: np.random.Generator) -> tuple[Array, Callable[[], Runs]]:
    """An AUC a little above 0.5, with errors of one size."""
    auc = 0.5 + 0.4 * (1 - np.exp(-truth))
    return auc, _each(truth, lambda c: auc[c] + rng.normal(0, 0.01))


def two_modes(truth: Array, rng: np.random.Generator) -> tuple[Array, Callable[[], Runs]]:
    """Runs fall into one of two optima, whose scores differ by a factor of two."""

    def run(c: int) -> float:
        factor = 4 / 3 if rng.random() < 0.5 else 2 / 3
        return float(truth[c] * factor * np.exp(rng.normal(0, 0.05) - 0.00125))

    return truth, _each(truth, run)


KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        lognormal,
        additive,
        uneven,
        hard_secrets,
        zero_inflated,
        saturating,
        student,
        bad_seed,
        unequal,
        shared_seed,
        few_secrets,
        poisson_like,
        near_chance,
        two_modes,
    )
}


def table(kind: str, number: int) -> tuple[pd.DataFrame, pd.DataFrame | None, Array, Array]:
    """Return a sweep's points, its values by secret, the true scores and a mean's deviations."""
    rng = np.random.default_rng([number, list(KINDS).index(kind)])
    logs = np.log(GRID)
    z = (logs - logs.mean(axis=0)) / logs.std(axis=0)
    family = list(FAMILIES.values())[number % len(FAMILIES)]
    truth, measure = KINDS[kind](0.1 * np.exp(family(z, rng)), rng)
    loss = 1.3 + 0.12 * np.exp(-0.5 * z @ rng.normal(1, 0.3, 3))
    runs = measure()
    again = np.array([[of_one.mean() for of_one in measure()] for _ in range(60)])
    rows, values = [], []
    for c, (num_steps, batch_size, rate) in enumerate(GRID):
        for seed, by_secret in enumerate(runs[c]):
            run_id = f"{c}-{seed}"
            loss_of_run = loss[c] + rng.normal(0, 0.0002)
            rows.append(
                [run_id, int(batch_size), int(num_steps), rate, seed, loss_of_run, by_secret.mean()]
            )
            values += [[run_id, SCORE, f"s{k}", value] for k, value in enumerate(by_secret)]
    points = pd.DataFrame(
        rows,
        columns=COLUMNS,
    ).assign(**{f"score.{SCORE}": lambda of: of["score"]})
    secrets = pd.DataFrame(values, columns=["run_id", "score", "secret_id", "value"])
    return points, secrets if runs[0].shape[1] > 1 else None, truth, again.std(axis=0)


def judged(kind: str, number: int) -> dict[str, Any]:
    """Select in one sweep, and compare the interval with the truth."""
    points, secrets, truth, deviation = table(kind, number)
    means = configuration_means(points)
    losses = np.sort(means["utility_loss"])
    gap = 7 + int(np.argmax(np.diff(losses[7:13])))
    threshold = float(losses[gap : gap + 2].mean())
    by_secret = None if secrets is None else (secrets, SCORE)
    chosen = select(points, rule="informed", max_loss=threshold, by_secret=by_secret)
    decision = chosen.decision
    at = configurations(means).index(chosen.configuration)
    assert decision is not None
    if decision.interval is None:
        return {"kind": kind}
    low, high = decision.interval
    useful = (means["utility_loss"] <= threshold).to_numpy()
    return {
        "kind": kind,
        "held": bool(low <= truth[at] <= high),
        "below": bool(truth[at] < low),
        "width": (high - low) / max(2 * 1.96 * float(deviation[at]), 1e-9),
        "probability": decision.probability,
        "lowest": bool(truth[at] <= truth[useful].min() * (1 + 1e-9)),
        "regret": float(truth[at] - truth[useful].min()) / float(truth[useful].min()),
        "state": decision.state,
    }


def summary(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one kind."""
    known = [one for one in each if "held" in one]
    held = np.array([one["held"] for one in known], dtype=float)
    sure = [one["lowest"] for one in known if one["state"] == "decided"]
    stated = [one for one in known if one["probability"] is not None]
    return {
        "sweeps": len(each),
        "held": float(held.mean()),
        "error": float(np.sqrt(held.mean() * (1 - held.mean()) / len(held))),
        "below": float(np.mean([one["below"] for one in known])),
        "width": float(np.median([one["width"] for one in known])),
        "stated": float(np.mean([one["probability"] for one in stated])),
        "right": float(np.mean([one["lowest"] for one in stated])),
        "decided": len(sure),
        "right_where_decided": float(np.mean(sure)) if sure else None,
        "regret": float(np.mean([one["regret"] for one in known])),
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    started, results = time.perf_counter(), {}
    print(f"{'kind':14} held  error below width stated right decided (right) regret")
    with ProcessPoolExecutor(options.workers) as pool:
        for kind in options.kinds:
            found = summary(
                list(pool.map(partial(judged, kind), range(options.tables), chunksize=4))
            )
            results[kind] = found
            sure = found["right_where_decided"]
            print(
                f"{kind:14} {found['held']:.3f} {found['error']:.3f} {found['below']:.3f} "
                f"{found['width']:5.2f} {found['stated']:6.3f} {found['right']:.3f} "
                f"{found['decided']:3d} {'' if sure is None else f'({sure:.2f})'} {found['regret']:.4f}",
                flush=True,
            )
    print(f"{time.perf_counter() - started:.0f} s")
    if options.output is not None:
        options.output.write_text(json.dumps({"machine": describe(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
