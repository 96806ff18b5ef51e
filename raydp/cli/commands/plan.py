"""`raydp plan`: the runs of a sweep with their cost and duration. No trained model is kept."""

from __future__ import annotations

from typing import Annotated

import typer

from raydp.cli.arguments import Json, SpecOrDemo
from raydp.cli.interrupts import stoppable
from raydp.cli.registration import RUN, ExtraCommand
from raydp.plugins.registries import service
from raydp.spec.reading import DEMO, draft_spec
from raydp.sweep.planning.start import check_plan
from raydp.system.output import print_json, stderr


def plan(
    spec: SpecOrDemo = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Time a few real steps here: hours, GPU-hours, memory."),
    ] = False,
    steps: Annotated[
        int | None, typer.Option(help="At each of three batch sizes; by default up to 3.")
    ] = None,
    price: Annotated[
        float | None, typer.Option(help="Price of a GPU for an hour: adds the column `cost`.")
    ] = None,
    simulate: Annotated[
        str | None,
        typer.Option(
            help="nodes=N[,gpus_per_node=G][,cpus_per_node=C]: makespan on such a cluster. Costs of runs are "
            "from --measure, seconds_per_example=S, or the sweep's finished runs."
        ),
    ] = None,
    attacks: Annotated[
        bool,
        typer.Option("--attacks", help="Also the most that an attacker can do; takes seconds."),
    ] = False,
    json: Json = False,
) -> None:
    """Every configuration with n, q, σ, ε, δ, C, U and estimated cost; trains nothing."""
    spec = spec or DEMO
    # Mistakes are reported before heavy imports.
    check_plan(draft_spec(spec), elsewhere=simulate is not None)
    from raydp.cli.show.sweeps import show_plan
    from raydp.sweep import api

    given = {
        "--measure": measure or None, "--steps": steps, "--price": price, "--simulate": simulate,
    }  # fmt: skip
    costs = None
    # A plan may time real steps, so it can be stopped at once.
    with stoppable("the plan"):
        if asked := [option for option, value in given.items() if value is not None]:
            costs = service("cost_of_plan", needed_by=asked[0])(
                spec, measure=measure, num_steps=steps, price=price, hardware=simulate
            )
            table = costs.table
        else:
            table = api.plan(spec)
        attacked = service("planned_attacks", needed_by="--attacks")(table) if attacks else None
    # stdout holds the document alone; what was left out goes to stderr.
    if json:
        for reason in table.attrs["rejected"]:
            stderr.print(f"left out: {reason}", markup=False)
        rows = api.plan_rows(table if attacked is None else attacked.table)
        print_json(rows if costs is None else costs.document(rows))
    else:
        show_plan(table)
        if attacked is not None:
            attacked.show()
    if costs is not None:
        costs.show(json=json)


COMMAND = ExtraCommand(run=plan, panel=RUN)
