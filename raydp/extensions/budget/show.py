"""Printed output of `raydp plan` about costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raydp.extensions.budget.costs import ASSUMED, MeasuredSteps
from raydp.system.output import print_table, stderr, stdout


def show_measured(measured: MeasuredSteps, hours: float, unit: str) -> None:
    """Print the measured steps, the fit of their time, and the assumptions of the estimates.

    The text goes to stderr, so that `--json` prints only its document to stdout.

    Args:
        hours: of all runs, one after the other.
        unit: what a batch is drawn of, in a word: example or user.
    """
    law = measured.law
    for step in measured.steps:
        stderr.print(
            f"batch_size {step['batch_size']}: {step['seconds']:.4g} s a step of "
            f"{step['examples']:.1f} {unit}s, {step['num_steps']} steps on {measured.device}",
            markup=False,
        )
    # One size gives no fit: then time in proportion to the batch size is an assumption, and said to
    # be one.
    fit = "" if law.r_squared is None else f" (R² {law.r_squared:.4f})"
    if len(measured.steps) == 1:
        told = (
            f"a step takes {law.seconds_per_example:.3g} s for each {unit}, if its time is in "
            "proportion to the batch size: one size was timed"
        )
    else:
        told = (
            f"a step takes {law.step_seconds:.3g} s + {law.seconds_per_example:.3g} s for each "
            f"{unit}{fit}; in proportion to C = b·T it would be "
            f"{law.proportional_seconds_per_example:.3g} s for each {unit}, off by at most "
            f"{law.max_relative_deviation:.1%} (Hu et al. 2025, Table 14)"
        )
    stderr.print(told, markup=False)
    if measured.utility_seconds:
        stderr.print(
            f"measuring utility between steps takes {measured.utility_seconds:.3g} s", markup=False
        )
    stderr.print(f"scoring a model takes {measured.score_seconds:.3g} s", markup=False)
    stderr.print(f"all runs, one after the other: about {hours:.2g} hours", markup=False)
    stderr.print(f"assumed: {'; '.join(ASSUMED)}", markup=False)


def show_simulation(simulation: Mapping[str, Any]) -> None:
    """Print the makespans beside their lower bound, and whether the driver keeps up."""
    stdout.print(
        f"{'at most ' if simulation['at_most'] else ''}{simulation['runs']} runs on "
        f"{simulation['slots']} {'slot' if simulation['slots'] == 1 else 'slots'} (times "
        f"{simulation['costs']}), {simulation['driver_seconds']:g} s of the driver a run",
        markup=False,
    )
    for note in simulation["slot_notes"]:
        stdout.print(note, markup=False)
    # One row for each order of the runs.
    rows = [
        {
            "order": name.replace("_", " "),
            "makespan, h": order["makespan_seconds"] / 3600,
            "utilisation": order["utilisation"],
            "over the bound": order["ratio"],
        }
        for name, order in simulation["orders"].items()
    ]
    print_table(f"lower bound {simulation['lower_bound_seconds'] / 3600:.4g} h", rows)
    # If the driver's own work is the longest part, more slots do not help.
    if simulation["driver_bound_seconds"] > simulation["lower_bound_seconds"]:
        stdout.print(
            f"the driver needs {simulation['driver_bound_seconds'] / 3600:.4g} h for these runs, "
            "one after the other: it holds the sweep up from "
            f"{simulation['slots_that_fill_the_driver']} slots on",
            markup=False,
        )
