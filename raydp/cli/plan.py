"""`raydp plan`: the runs of a sweep with their cost and duration. No trained model is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raydp.cli.arguments import Json
from raydp.cli.interrupts import stoppable


def plan(
    spec: Annotated[Path | None, typer.Argument(metavar="SPEC", help="Without it: the embedded default.")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Time a few real steps here: hours, GPU-hours, memory.")
    ] = False,
    steps: Annotated[
        int | None, typer.Option(help="Steps to time at each of three batch sizes. By default 3, or fewer in a minute.")
    ] = None,
    price: Annotated[float | None, typer.Option(help="Price of a GPU for an hour: adds the column `cost`.")] = None,
    simulate: Annotated[
        str | None,
        typer.Option(
            help="nodes=N[,gpus_per_node=G][,cpus_per_node=C]: makespan on such a cluster. Costs of runs are "
            "from --measure, seconds_per_example=S, or the sweep's finished runs."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Every configuration with n, q, σ, ε, δ, C, U and estimated cost; trains nothing."""
    from raydp.spec.reading import DEMO, draft_spec
    from raydp.sweep.planning.start import check_plan

    spec = spec or DEMO
    check_plan(draft_spec(spec), elsewhere=simulate is not None)  # mistakes are reported before heavy imports
    from raydp.cli.show.costs import show_measured, show_simulation
    from raydp.cli.show.sweeps import show_plan
    from raydp.cost.estimate import estimate
    from raydp.io.output import print_json, stderr
    from raydp.sweep.api import plan_rows

    with stoppable("the plan"):
        estimated = estimate(spec, measure=measure, num_steps=steps, price=price, hardware=simulate)
    if json:
        for reason in estimated.table.attrs["rejected"]:
            stderr.print(f"left out: {reason}", markup=False)
        rows = plan_rows(estimated.table)
        measured = None if estimated.measured is None else estimated.measured.document()
        document = {"configurations": rows, "measured": measured, "simulation": estimated.simulation}
        print_json(rows if simulate is None else document)
    else:
        show_plan(estimated.table)
        if estimated.simulation is not None:
            show_simulation(estimated.simulation)
    if estimated.measured is not None:
        show_measured(estimated.measured)
