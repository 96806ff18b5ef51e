"""Calibrating HU's TOFU grid: raydp against a plain loop of prv_accountant.find_noise_multiplier,
side by side.

    OMP_NUM_THREADS=1 python benchmarks/calibration.py --output calibration.json

The grid is Hu et al. 2025, Table 6, TOFU-2: b in 256..2048, T in 16..256, three learning rates: 60
configurations, 20 distinct (b, T); n = 3600, ε = 8, δ = n^-1.1. Each of the 20 is timed with both,
one after the other, so that both see the same machine. The plain loop calibrates every
configuration, so its total counts each time three times ("configurations"); the ratio over distinct
problems, where neither repeats work, stands beside it. Times are seconds of processor time, so that
other load on the machine does not enter; calibrate_many's with processes is wall time. Where the
library's search raises, as it does on some settings, the row says so and is left out of both
totals. The privacy loss distribution of one step, at pld's σ, is timed as dp_accounting makes it
and as raydp does ("pld_step"). What it does not show: other targets, and the time of a first import
(both are warmed up).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from machine import describe
from prv_accountant.dpsgd import find_noise_multiplier

from raydp.privacy import (
    CalibrationRequest,
    PoissonGaussian,
    PrivacyTarget,
    PRVAccountant,
    calibrate,
    calibrate_many,
)
from raydp.privacy.accounting.pld_step import one_step

NUM_EXAMPLES = 3600
BATCH_SIZES = (256, 512, 1024, 2048)
NUM_STEPS = (16, 32, 64, 128, 256)
LEARNING_RATES = (5e-4, 1e-3, 2e-3)
TARGET = PrivacyTarget(epsilon=8.0, delta=NUM_EXAMPLES**-1.1)
EPS_ERROR = 0.01
INTERVAL = 1e-4


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """A call's result and the processor time of this process in seconds."""
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def request(batch_size: int, num_steps: int) -> CalibrationRequest:
    """One configuration of the grid."""
    return CalibrationRequest.of_batches(
        num_examples=NUM_EXAMPLES, batch_size=batch_size, num_steps=num_steps, target=TARGET
    )


def compare(batch_size: int, num_steps: int) -> dict[str, Any]:
    """Both on one (b, T), with the ε that prv's own upper bound gives at either σ."""
    rate = batch_size / NUM_EXAMPLES
    row: dict[str, Any] = {"batch_size": batch_size, "num_steps": num_steps}
    try:
        sigma, row["library_seconds"] = timed(
            lambda: find_noise_multiplier(
                rate, num_steps, TARGET.epsilon, TARGET.delta, eps_error=EPS_ERROR
            )
        )
    except RuntimeError as error:
        row["library_error"] = str(error)
    else:
        event = PoissonGaussian(
            sample_rate=rate, noise_multiplier=float(sigma), num_steps=num_steps
        )
        row |= {
            "library_sigma": float(sigma),
            "library_epsilon": PRVAccountant().epsilon(event, TARGET.delta),
        }
    for name in ("prv", "pld"):
        solved, row[f"{name}_seconds"] = timed(
            lambda name=name: calibrate(request(batch_size, num_steps), name)
        )
        row |= {f"{name}_sigma": solved.noise_multiplier, f"{name}_epsilon": solved.epsilon}
    event = PoissonGaussian(
        sample_rate=rate, noise_multiplier=row["pld_sigma"], num_steps=num_steps
    )
    _, row["library_pld_step_seconds"] = timed(
        lambda: from_gaussian_mechanism(
            event.noise_multiplier, sampling_prob=rate, value_discretization_interval=INTERVAL
        )
    )
    _, row["pld_step_seconds"] = timed(lambda: one_step(event, INTERVAL))
    return row


def main() -> None:
    """Run both over the grid and write the JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="where the JSON goes")
    parser.add_argument("--pairs", type=int, help="only the last so many pairs (b, T)")
    args = parser.parse_args()
    output: Path = args.output
    for name in ("prv", "pld"):  # imports and first calls
        calibrate(
            CalibrationRequest.of_batches(
                num_examples=1000, batch_size=10, num_steps=2, target=TARGET
            ),
            name,
        )
    pairs = [(batch_size, num_steps) for batch_size in BATCH_SIZES for num_steps in NUM_STEPS]
    rows = [compare(*pair) for pair in pairs[-(args.pairs or len(pairs)) :]]
    both = [row for row in rows if "library_seconds" in row]
    grid = [request(row["batch_size"], row["num_steps"]) for row in both for _ in LEARNING_RATES]
    _, one_process = timed(lambda: calibrate_many(grid, "prv", max_workers=1))
    start = time.perf_counter()
    calibrate_many(grid, "prv")
    processes = time.perf_counter() - start
    distinct = sum(row["library_seconds"] for row in both)
    plain_loop = len(LEARNING_RATES) * distinct
    report = {
        **describe("prv-accountant", "dp-accounting", "numpy", "scipy"),
        "settings": {
            "num_examples": NUM_EXAMPLES,
            "target_epsilon": TARGET.epsilon,
            "target_delta": TARGET.delta,
            "eps_error": EPS_ERROR,
            "batch_size": BATCH_SIZES,
            "num_steps": NUM_STEPS,
            "learning_rate": LEARNING_RATES,
        },
        "speedup_pld_step": sum(row["library_pld_step_seconds"] for row in rows)
        / sum(row["pld_step_seconds"] for row in rows),
        "rows_compared": len(both),
        "plain_loop_seconds": plain_loop,
        "plain_loop_distinct_seconds": distinct,
        "calibrate_many_one_process_seconds": one_process,
        "calibrate_many_wall_seconds": processes,
        "speedup_one_process": plain_loop / one_process,
        "speedup_distinct_one_process": distinct / one_process,
        "rows": rows,
    }
    output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(
        json.dumps(
            {
                key: value
                for key, value in report.items()
                if key.startswith(("speedup", "calibrate"))
            }
        )
    )


if __name__ == "__main__":
    main()
