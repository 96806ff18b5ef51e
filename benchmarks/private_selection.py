"""The price of choosing: noise of a private selection by each bound, and the least noise that any
bound must ask for.

    OMP_NUM_THREADS=1 python benchmarks/private_selection.py --output private_selection.json

Each row is one (b, T) with n = 4000 and δ = n^-1.1, one target ε and one distribution of the number
K of runs. σ of one run by pld and rdp stands beside σ of the selection by rdp and by pld. The
column `least` is the noise at which an exact best-of-K example reaches ε: a record whose clipped
gradient is the only one, all updates observed, and an order of the models that tells most. A bound
that holds for every order of the models cannot ask for less noise. The example is computed on pld's
grid of losses, which changes ε by less than 1e-4 of it. Only 144 orders are tried, so `least` may
be too low. What it does not show: other n and δ, and orders that are as harmless as those of real
utilities may be.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe
from numpy.typing import NDArray

from raydp.extensions.private_selection.calibration import calibrate_selection
from raydp.extensions.private_selection.choice_checks import generating
from raydp.extensions.private_selection.choice_profile_checks import best_in_orders
from raydp.extensions.private_selection.num_runs import (
    BinomialRuns,
    NumRuns,
    PoissonRuns,
    TruncatedNegativeBinomial,
)
from raydp.extensions.private_selection.two_way import _interval
from raydp.privacy import (
    CalibrationRequest,
    PLDAccountant,
    PoissonGaussian,
    PrivacyTarget,
    calibrate,
)
from raydp.privacy.accounting.pld import _directions

NUM_EXAMPLES = 4000
POINTS = ((64, 60), (256, 60), (256, 120))
EPSILONS = (8.0, 1.0)
CELLS = 20_000
TOPS = (0.003, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75)
SHARES = (0.3, 0.45, 0.6, 0.7, 0.8, 0.9)
KINDS: dict[str, NumRuns] = {
    "geometric, mean 3": TruncatedNegativeBinomial.with_mean(3, eta=1.0),
    "geometric (η = 1), mean 10": TruncatedNegativeBinomial.with_mean(10, eta=1.0),
    "logarithmic (η = 0), mean 10": TruncatedNegativeBinomial.with_mean(10, eta=0.0),
    "η = −0.5, mean 10": TruncatedNegativeBinomial.with_mean(10, eta=-0.5),
    "Poisson, mean 10": PoissonRuns(mean=10),
    "binomial, mean 10 of 20": BinomialRuns(mean=10, trials=20),
    "geometric, mean 50": TruncatedNegativeBinomial.with_mean(50, eta=1.0),
    "η = −0.5, mean 50": TruncatedNegativeBinomial.with_mean(50, eta=-0.5),
    "geometric, mean 100": TruncatedNegativeBinomial.with_mean(100, eta=1.0),
    "Poisson, mean 100": PoissonRuns(mean=100),
}
Masses = NDArray[np.float64]


def pairs(event: PoissonGaussian) -> list[tuple[Masses, Masses]]:
    """The outcomes of the worst case, by rising loss, under two neighbours, in both directions of
    adjacency."""
    parts = _directions(PLDAccountant(_interval(event))._composed([event]))
    sides = []
    for pmf in (
        parts
    ):  # of each direction, the losses above 0, where probabilities are known to many digits
        dense = pmf.to_dense_pmf()
        losses = (np.arange(dense.size) + dense._lower_loss) * dense._discretization
        probabilities = np.asarray(dense._probs)
        known = (losses > 0) & (probabilities > 1e-17)
        sides.append((losses[known], probabilities[known]))
    (up, p_up), (down, q_down) = sides
    p = np.concatenate([(q_down * np.exp(-down))[::-1], [0.0], p_up])
    q = np.concatenate([q_down[::-1], [0.0], p_up * np.exp(-up)])
    middle = len(q_down)  # the outcomes of loss 0 have the rest
    p[middle], q[middle] = max(0.0, 1 - p.sum()), max(0.0, 1 - q.sum())
    p, q = p / p.sum(), q / q.sum()
    starts = np.arange(0, len(p), math.ceil(len(p) / CELLS))
    p, q = np.add.reduceat(p, starts), np.add.reduceat(q, starts)
    order = np.argsort(np.log(p) - np.log(q), kind="stable")
    p, q = p[order], q[order]
    return [(p, q), (q[::-1], p[::-1])]


def reaches(event: PoissonGaussian, num_runs: NumRuns, epsilon: float, delta: float) -> bool:
    """Whether the best of K worst cases, under one of several orders, needs more than ε at δ."""
    best, _ = generating(num_runs)
    losses = [share * epsilon for share in SHARES]
    return any(
        np.maximum(a - math.exp(epsilon) * b, 0).sum() > delta
        for p, q in pairs(event)
        for a, b in best_in_orders(best, p, q, TOPS, losses)
    )


def least_noise(
    event: PoissonGaussian, num_runs: NumRuns, target: PrivacyTarget, low: float, high: float
) -> float:
    """The largest noise, up to 0.2 %, at which the worst case is known to need more than the
    target."""
    while high / low > 1.002:
        middle = math.sqrt(low * high)
        if reaches(event.with_noise(middle), num_runs, target.epsilon, target.delta):
            low = middle
        else:
            high = middle
    return low


def main() -> None:
    """Measure every row, print them, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output
    rows: list[dict[str, Any]] = []
    for epsilon in EPSILONS:
        target = PrivacyTarget(epsilon=epsilon, delta=NUM_EXAMPLES**-1.1)
        for batch_size, num_steps in POINTS:
            request = CalibrationRequest.of_batches(
                num_examples=NUM_EXAMPLES, batch_size=batch_size, num_steps=num_steps, target=target
            )
            one = {name: calibrate(request, name).noise_multiplier for name in ("pld", "rdp")}
            for kind, num_runs in KINDS.items():
                by_pld = calibrate_selection([request], num_runs, "pld").runs[0]
                by_rdp = None
                if not isinstance(num_runs, BinomialRuns):
                    by_rdp = (
                        calibrate_selection([request], num_runs, "rdp").runs[0].noise_multiplier
                    )
                least = least_noise(
                    by_pld.event, num_runs, target, one["pld"], by_pld.noise_multiplier
                )
                row = {
                    "epsilon": epsilon, "batch_size": batch_size, "num_steps": num_steps, "num_runs": kind,
                    "one_run_pld": one["pld"], "one_run_rdp": one["rdp"], "selection_rdp": by_rdp,
                    "selection_pld": by_pld.noise_multiplier, "least": least, "epsilon_alone": by_pld.epsilon,
                }  # fmt: skip
                rows.append(row)
                print(json.dumps(row, ensure_ascii=False), flush=True)
                output.write_text(
                    json.dumps({**describe("dp-accounting", "opacus"), "rows": rows}, indent=1)
                )


if __name__ == "__main__":
    main()
