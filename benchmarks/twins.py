"""How precisely the runs of a sweep tell its configurations apart, by score.

    python benchmarks/twins.py demo:vmr_exact demo:logprob demo-twins:logprob

Each argument is a finished sweep and one of its scores. The first two seeds of every configuration
are used. The standard error of a configuration's mean score counts seeds and secrets as draws,
y[configuration, seed, secret], after the secrets' own effects are taken away: V = V_secrets +
V_seeds - V_rest, where V_secrets is the variance over secrets of the means over seeds divided by
the number of secrets, and V_seeds is the same the other way round (two crossed random effects). It
is printed beside the standard deviation between the configurations' true means, which is that of
their measured means less V. Their ratio has no unit, so it compares scores.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import raydp
from raydp.search_spaces.configuration import HYPERPARAMETERS

NUM_SEEDS = 2


def values(sweep: str, score: str) -> NDArray[np.float64]:
    """Return [configuration, seed, secret] the values of a score."""
    opened = raydp.Sweep.open(sweep)
    points, table = opened.points(), pd.read_parquet(opened.folder.path / "secrets.parquet")
    runs = points.sort_values(HYPERPARAMETERS).groupby(HYPERPARAMETERS)["run_id"]
    rows = table[table["score"] == score].pivot(index="run_id", columns="secret_id", values="value")
    return np.array([rows.loc[list(ids[:NUM_SEEDS])].to_numpy() for _, ids in runs])


def errors(y: NDArray[np.float64]) -> dict[str, float]:
    """Return the standard error of a configuration's mean and its parts, and the standard deviation
    between true means.

    The part of the secrets is the error with as many seeds as one likes, the part of the seeds the
    error with as many secrets as one likes; both are 0 at least.
    """
    _, num_seeds, num_secrets = y.shape
    y = y - y.mean((0, 1))
    of_secrets, of_seeds = y.mean(1), y.mean(2)
    rest = y - of_secrets[:, None, :] - of_seeds[:, :, None] + y.mean((1, 2))[:, None, None]
    of_rest = (rest**2).sum((1, 2)) / ((num_seeds - 1) * (num_secrets - 1))
    of_both = (of_rest / (num_seeds * num_secrets)).mean()
    secrets = (of_secrets.var(1, ddof=1) / num_secrets).mean()
    seeds = (of_seeds.var(1, ddof=1) / num_seeds).mean()
    variance = secrets + seeds - of_both
    variances = {
        "standard error": variance,
        "of secrets alone": secrets - of_both,
        "of seeds alone": seeds - of_both,
        "between configurations": y.mean((1, 2)).var(ddof=1) - variance,
    }
    return {name: math.sqrt(max(0.0, value)) for name, value in variances.items()}


def main() -> None:
    """Print a line for each sweep and score."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("of", nargs="+", metavar="SWEEP:SCORE")
    for argument in parser.parse_args().of:
        sweep, score = argument.rsplit(":", 1)
        y = values(sweep, score)
        parts = errors(y)
        between = parts["between configurations"]
        ratio = parts["standard error"] / between if between else math.inf
        loss = raydp.Sweep.open(sweep).points()["utility_loss"].min()
        print(
            f"{argument}: {len(y)} configurations, {y.shape[1]} seeds, {y.shape[2]} secrets; "
            f"lowest loss {loss:.4f}"
        )
        print(
            "  "
            + ", ".join(f"{name} {value:.4g}" for name, value in parts.items())
            + f"; ratio {ratio:.3f}"
        )


if __name__ == "__main__":
    main()
