"""`raydp variants`: run one spec with several values of some of its fields, and compare."""

from __future__ import annotations

import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from raydp.cli.arguments import Json, check_page


def variants(
    spec: Annotated[Path, typer.Argument(metavar="SPEC")],
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="FIELD=VALUES",
            help="A field by its path and YAML values between commas, such as method.num_teachers=20,50,100. Repeat it "
            "for every combination. To vary several fields together, give a whole section.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The comparison; STORAGE/NAME-variants.html by default.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and plan all, train nothing.")] = False,
    json: Json = False,
) -> None:
    """Run a sweep for every combination of values of any fields, each calibrated to its (ε, δ), and write a page that
    compares them.

    All sweeps are checked and planned before the first one runs. The same command continues after an interruption.
    """
    from raydp.spec.document import draft_spec, load_spec

    draft_spec(spec)  # mistakes are reported before heavy imports
    from raydp.cli.show.variants import plan_rows, show_plans, show_variants
    from raydp.io.output import print_json
    from raydp.sweep.variants import run_variants, values_of, variants_of

    if output is not None:
        check_page(output)
    chosen = variants_of(spec, values_of(vary))
    if dry_run:
        rows = plan_rows(chosen)
        print_json(rows) if json else show_plans(rows)
        return
    page = output or Path(chosen[0].spec.storage) / f"{load_spec(spec).name}-variants.html"
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM acts as Ctrl-C: stop, to be resumed
    with redirect_stdout(sys.stderr):  # Ray prints its own messages to stdout
        result = run_variants(chosen, page)
    print_json(result.document()) if json else show_variants(result)
    if result.interrupted or any(variant.selected is None for variant in result.variants):
        raise typer.Exit(1)
