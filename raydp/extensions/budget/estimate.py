"""A plan with its cost: measured, recorded or given, and simulated on a cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from raydp.extensions.budget.costs import MeasuredSteps, recorded_seconds
from raydp.extensions.budget.show import show_measured, show_simulation
from raydp.extensions.budget.simulate import Hardware, simulate
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.api import make_table, planned
from raydp.sweep.engine.stopping import evaluations_between
from raydp.sweep.planning.start import check_plan
from raydp.sweep.store.folder import SweepFolder
from raydp.system.output import stderr
from raydp.training.trial_plan import TrialPlan

NUM_STEPS, MAX_STEPS = 3, 1000


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """The answer of `raydp plan`.

    Attributes:
        unit: what a batch is drawn of, in a word: example or user.
        table: see `raydp.plan`, with hours, gpu_hours, memory_gib and cost if they were measured.
        measured: the measurement, None without one.
        simulation: see `simulate`, with "costs": the source of the runs' times, "at_most": whether
            a search or early stopping may run less, and "slot_notes": why there are no more slots.
            None without a simulation.
    """

    unit: str
    table: pd.DataFrame
    measured: MeasuredSteps | None
    simulation: dict[str, object] | None

    def document(self, rows: Sequence[Mapping[str, object]]) -> object:
        """Return what `raydp plan --json` prints: the rows, or an object if it was simulated."""
        if self.simulation is None:
            return rows
        measured = None if self.measured is None else self.measured.document()
        return {"configurations": rows, "measured": measured, "simulation": self.simulation}

    def show(self, *, json: bool) -> None:
        """Print the simulation, unless a document was printed, and on stderr what was measured."""
        if self.simulation is not None and not json:
            show_simulation(self.simulation)
        if self.measured is not None:
            show_measured(self.measured, float(self.table["hours"].sum()), self.unit)


def estimate(
    spec: str | Path | Mapping[str, object] | SweepSpec,
    *,
    measure: bool = False,
    num_steps: int | None = None,
    price: float | None = None,
    hardware: str | None = None,
) -> CostEstimate:
    """Plan a sweep and estimate its cost. No trained model is kept.

    Args:
        spec: the sweep.
        measure: whether to time steps on this machine.
        num_steps: number of steps to time at each of three batch sizes. None: 3, or fewer where
            they take more than a minute.
        price: price of a GPU for an hour.
        hardware: hardware to simulate, in the form of `Hardware.parse`.

    Raises:
        ValueError: an option needs another one that is missing, or has an invalid value.
    """
    # Read and check.
    with stderr.status("reading the spec and loading the libraries"):
        checked = spec if isinstance(spec, SweepSpec) else load_spec(spec)
    simulated = None if hardware is None else Hardware.parse(hardware)
    _check(checked, measure, num_steps, price, simulated)
    not_now = check_plan(checked, elsewhere=simulated is not None)
    plan, task = planned(checked)
    table, measured = make_table(plan), None
    table.attrs["warnings"] += not_now
    # Measure on this machine.
    if measure:
        from raydp.extensions.budget.measure import measure_cost

        # A number that the user gives is timed in full.
        limited = (
            {"num_steps": NUM_STEPS}
            if num_steps is None
            else {"num_steps": num_steps, "limit_seconds": math.inf}
        )
        measured = measure_cost(checked, task, plan.trials, **limited)
        table = _with_costs(table, measured, checked, price)
    # Simulate the cluster.
    simulation = None
    if simulated is not None:
        # Only the runs that are certain are simulated.
        simulation = simulation_of([(checked, plan.first_pass)], simulated, measured)
    unit = checked.privacy.unit
    return CostEstimate(unit=unit, table=table, measured=measured, simulation=simulation)


def simulation_of(
    sweeps: Sequence[tuple[SweepSpec, Sequence[TrialPlan]]],
    hardware: Hardware,
    measured: MeasuredSteps | None = None,
) -> dict[str, object]:
    """Simulate sweeps that share a queue; see `CostEstimate.simulation`.

    Args:
        sweeps: spec and runs of each sweep. The sections `cluster` are equal.
        hardware: the hardware.
        measured: the costs, if they were measured.

    Raises:
        ValueError: the hardware holds no run, or nothing tells the costs.
    """
    seconds, source = list[float](), ""
    for spec, trials in sweeps:
        own, source = _seconds(spec, trials, measured, hardware)
        seconds += own
    first = sweeps[0][0]
    runs = [trial for _, trials in sweeps for trial in trials]
    return {
        "costs": source,
        "at_most": any(s.space.search is not None or s.stopping is not None for s, _ in sweeps),
        **simulate(
            seconds,
            hardware.num_slots(first.cluster),
            hardware,
            orders=_orders(runs, first.seed_labels),
        ),
        "slot_notes": hardware.slot_notes(first.cluster, len(seconds)),
    }


def _with_costs(
    table: pd.DataFrame, measured: MeasuredSteps, spec: SweepSpec, price: float | None
) -> pd.DataFrame:
    """Add the columns of the costs to a plan's table."""
    own = zip(table["batch_size"], table["num_steps"], table["seeds"], strict=True)
    rows = [
        measured.columns(
            b, t, seeds,
            evaluations=evaluations_between(spec, t), cluster=spec.cluster, price=price,
        )
        for b, t, seeds in own
    ]  # fmt: skip
    # `pd.concat` drops the attributes of the table.
    attrs = table.attrs
    table = pd.concat([table, pd.DataFrame(rows, index=table.index)], axis=1)
    table.attrs.update(attrs)
    return table


def _check(
    spec: SweepSpec,
    measure: bool,
    num_steps: int | None,
    price: float | None,
    simulated: Hardware | None,
) -> None:
    """Refuse options that would be ignored, before anything is read."""
    # An option without effect is an error: these two belong to a measurement.
    for name, value in (("--steps", num_steps), ("--price", price)):
        if value is not None and not measure:
            raise ValueError(
                f"{name} must go with --measure, got {value:g} without. Add --measure."
            )
    if num_steps is not None and not 1 <= num_steps <= MAX_STEPS:
        raise ValueError(
            f"--steps must be 1 to {MAX_STEPS}, got {num_steps}. Leave it out for {NUM_STEPS}."
        )
    if price is not None and not (math.isfinite(price) and price >= 0):
        raise ValueError(
            f"--price must be 0 or above, got {price:g}. Give the price of a GPU for an hour."
        )
    # The price is of GPU-hours, so without GPUs there is nothing to multiply.
    if price is not None and not spec.cluster.gpus_per_worker:
        raise ValueError(
            f"--price must go with GPUs, got {price:g} and cluster.gpus_per_worker 0. Leave it out."
        )
    if simulated is None:
        return
    # Refuse hardware that holds no run before anything is measured.
    simulated.num_slots(spec.cluster)
    if measure and simulated.seconds_per_example is not None:
        raise ValueError(
            "--simulate: seconds_per_example must be left out with --measure, got "
            f"{simulated.seconds_per_example:g}. Choose one of the two."
        )
    spec.privacy.require_ignored_tuning(
        "with --simulate", "The number of runs is drawn: simulate the same spec without it."
    )


def _seconds(
    spec: SweepSpec, trials: Sequence[TrialPlan], measured: MeasuredSteps | None, hardware: Hardware
) -> tuple[list[float], str]:
    """Return the training and scoring seconds of each run, and their source."""
    shared = hardware.workers_per_trial(spec.cluster)
    if measured is not None:
        times = (
            measured.run_seconds(
                t.batch_size, t.num_steps, shared, evaluations_between(spec, t.num_steps)
            )
            for t in trials
        )
        return list(times), "measured"
    if (unit := hardware.seconds_per_example) is not None:
        return [t.batch_size * t.num_steps * unit / shared for t in trials], "seconds_per_example"
    results = {}
    if SweepFolder.exists(spec):
        folder = SweepFolder.open(Path(spec.storage) / spec.name)
        known = ((t.run_id, folder.result(t.run_id)) for t in trials)
        results = {run_id: r for run_id, r in known if r is not None and r.finished}
    return recorded_seconds(trials, results), "recorded"


def _orders(trials: Sequence[TrialPlan], seeds: Sequence[int]) -> dict[str, list[int]]:
    """Return two orders of the runs: the driver's (largest compute first) and the grid's."""
    place = {seed: k for k, seed in enumerate(seeds)}
    grid = sorted(
        range(len(trials)), key=lambda k: (trials[k].configuration.key, place[trials[k].seed])
    )
    # A stable sort: of one sweep, the plan has this order already.
    compute = [trial.batch_size * trial.num_steps for trial in trials]
    largest = sorted(range(len(trials)), key=lambda k: -compute[k])
    return {"largest_first": largest, "grid": grid}
