"""`raydp report`: an HTML page on one sweep, or on several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from raydp.cli.arguments import (
    By,
    Json,
    MaxLoss,
    MinGain,
    Rule,
    Storage,
    WorstCase,
    check_new,
    check_page,
)
from raydp.cli.registration import READ, ExtraCommand
from raydp.plugins.registries import service
from raydp.system.output import print_json, stderr, stdout


def report(
    points: Annotated[
        list[str],
        typer.Argument(metavar="POINTS|SWEEP...", help="Several are compared on one page."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="A new file.")] = Path(
        "report.html"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output file.")] = False,
    by: Annotated[
        str | None, typer.Option(help="Compare one table's groups by this column, such as epsilon.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also write the figures into this folder.")
    ] = None,
    file_format: Annotated[
        str, typer.Option("--format", help="Format of the figures: svg, png or pdf.")
    ] = "svg",
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve it to this machine while the sweep runs.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of --watch; 0 takes a free one.")] = 0,
    rule: Rule = None,
    max_loss: MaxLoss = None,
    min_gain_share: MinGain = None,
    score: By = None,
    worst_case: WorstCase = False,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """A self-contained HTML report of a sweep, or a comparison of several."""
    # Check the arguments before the analysis, which takes long.
    with stderr.status("loading the libraries"):
        from raydp.sweep import reports
    if figures is not None:
        from raydp.analysis.figures.files import check_format, save_figures

        check_format(file_format)
    with stderr.status("checking the names"):
        reports.check_names(points, storage, rule=rule, score=score)
    options: dict[str, Any] = {"storage": storage, "score": score, "worst_case": worst_case}
    options |= {"rule": rule, "max_loss": max_loss, "min_gain_share": min_gain_share}
    if watch:
        return _serve(points, options, port, alone=by is None and not json)
    check_page(output)
    check_new(output, force=force)
    with stderr.status("analysing the points and writing the report"):
        if len(points) > 1 or by is not None:
            compare = service("comparison", needed_by="another POINTS")
            drawn = compare(points, output, by=by, **options)
        else:
            drawn = reports.report(points[0], output, **options)
    files = list[str]()
    if figures is not None:
        with stderr.status("drawing the figures"):
            files = [str(file) for file in save_figures(drawn, figures, file_format=file_format)]
    _tell(output, files, json=json)


def _serve(points: list[str], options: Mapping[str, object], port: int, *, alone: bool) -> None:
    """Serve the report of one sweep until Ctrl-C."""
    if len(points) > 1 or not alone:
        raise ValueError("--watch must be given with one sweep and neither --by nor --json.")
    service("live_report", needed_by="--watch")(points[0], options, port)


def _tell(output: Path, files: list[str], *, json: bool) -> None:
    """Print which files were written."""
    if json:
        print_json({"report": str(output), **({"figures": files} if files else {})})
        return
    stdout.print(f"report written to {output}", markup=False)
    if files:
        stdout.print(f"{len(files)} figures written to {Path(files[0]).parent}", markup=False)


COMMAND = ExtraCommand(run=report, panel=READ)
