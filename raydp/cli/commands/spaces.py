"""`raydp spaces`: named search spaces."""

from __future__ import annotations

import typer

from raydp.cli.arguments import Json
from raydp.cli.groups import CommandGroup
from raydp.cli.registration import RUN, ExtraCommand
from raydp.search_spaces import load_space, space_names
from raydp.system.output import print_json, print_table, stdout

spaces_app = typer.Typer(cls=CommandGroup, help="Named search spaces.")


@spaces_app.command("list")
def spaces_list(json: Json = False) -> None:
    """The named search spaces."""
    spaces = [load_space(name) for name in space_names()]
    rows = [
        # Names and sizes; `spaces show` has the configurations.
        {"name": s.name, "points": len(s.configurations), "description": s.description}
        for s in spaces
    ]
    print_json(rows) if json else print_table("search spaces", rows, keep=("description",))


@spaces_app.command("show")
def spaces_show(name: str, json: Json = False) -> None:
    """The configurations of a named search space."""
    space = load_space(name)
    rows = [c.to_json() for c in space.configurations]
    if json:
        facts = {k: getattr(space, k) for k in ("name", "description", "source", "max_grad_norm")}
        print_json({**facts, "configurations": rows})
        return
    stdout.print(
        f"{space.description} Source: {space.source}. max_grad_norm {space.max_grad_norm:g}"
    )
    print_table(space.name, rows)


COMMAND = ExtraCommand(run=spaces_app, panel=RUN)
