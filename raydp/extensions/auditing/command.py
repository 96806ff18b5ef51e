"""`raydp audit`: lower bounds on ε; and `raydp analyze correlations`."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydp import analysis
from raydp.analysis.statistics.results import given
from raydp.cli.arguments import DEFAULT_URI, By, Json, Source, Storage, Uri, WorstCase
from raydp.cli.commands.analyze import Resamples, points_of
from raydp.cli.groups import CommandGroup
from raydp.cli.registration import PRIVACY, READ, ExtraCommand
from raydp.spec.reading import draft_spec
from raydp.system.imports import imported
from raydp.system.interruption import or_partial
from raydp.system.output import print_json, print_table

if TYPE_CHECKING:
    from typer._click import Context  # see raydp.cli.groups


class _RunByDefault(CommandGroup):
    """`raydp audit SPEC` is `raydp audit run SPEC`."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Insert "run" if the arguments name no command."""
        named = args and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if named or not args else ["run", *args])


audit_app = typer.Typer(
    cls=_RunByDefault,
    help="Lower bounds on ε from one training run each: `raydp audit SPEC|MODEL`, short for `raydp audit run`.",
)


What = Annotated[
    str,
    typer.Argument(
        metavar="SPEC|MODEL", help="A spec, a sweep, its trials/RUN_ID, or a registered model."
    ),
]
Canary = Annotated[
    str | None,
    typer.Option(
        help="By default the planted twins of a sweep that has them, which needs no training, and else new_token. "
        "new_token: losses after training every weight. known_token: losses with the spec's "
        "own adapter. gradient: every noisy gradient, with the spec's own adapter."
    ),
]
Canaries = Annotated[int | None, typer.Option(help="M: canaries of each run; 500 by default.")]
Confidence = Annotated[
    float | None,
    typer.Option(help="Confidence of each bound and of the whole test; 0.95 by default."),
]
Seeds = Annotated[str | None, typer.Option(help="Comma-separated; the sweep's first by default.")]
OfModel = Annotated[
    Path | None, typer.Option(help="Spec of a registered model whose sweep is not here.")
]


@audit_app.command("run")
def audit_run(
    what: What,
    canary: Canary = None,
    canaries: Canaries = None,
    confidence: Confidence = None,
    seeds: Seeds = None,
    new: Annotated[bool, typer.Option("--new", help="Another audit, with new coins.")] = False,
    spec: OfModel = None,
    storage: Storage = "raydp_runs",
    uri: Uri = DEFAULT_URI,
    json: Json = False,
) -> None:
    """Bound ε from below: by the planted twins of a sweep's own models, or by training it once more
    with canaries."""
    for file in (spec, Path(what)):
        if file is not None and file.is_file():
            draft_spec(file)  # mistakes are reported before heavy imports
    from raydp.extensions.auditing.audits import DEFAULT_CANARIES, run_audit
    from raydp.extensions.auditing.own_twins import audit_own, has_own_canaries
    from raydp.extensions.auditing.show import show_audit, show_own_audit
    from raydp.extensions.auditing.source import numbers, source_of

    # A sweep that planted twins is audited as it is, unless options ask for training.
    source = source_of(what, storage=storage, tracking_uri=uri, spec=spec)
    asks_for_training = new or any(
        given is not None for given in (canary, canaries, confidence, seeds)
    )
    if not asks_for_training and has_own_canaries(source):
        own = audit_own(source)
        print_json(own.document()) if json else show_own_audit(own)
        # A script sees by the exit code that a stated ε is refuted, or that the audit is not
        # complete.
        if own.above or own.interrupted or not own.runs:
            raise typer.Exit(1)
        return
    with redirect_stdout(sys.stderr):  # Ray prints its own messages to stdout
        report = or_partial(
            lambda: run_audit(
                source,
                canary=canary or "new_token",
                num_canaries=DEFAULT_CANARIES if canaries is None else canaries,
                confidence=0.95 if confidence is None else confidence,
                seeds=numbers(seeds),
                new=new,
            )
        )
    print_json(report.document()) if json else show_audit(report)
    if report.alarm or report.interrupted or not report.runs:
        raise typer.Exit(1)


@audit_app.command("bound")
def audit_bound(
    canaries: Annotated[int, typer.Option(help="M: put in or left out by a fair coin each.")],
    guesses: Annotated[int, typer.Option(help="R: coins that were guessed.")],
    correct: Annotated[int, typer.Option(help="V: right guesses.")],
    delta: Annotated[float, typer.Option(help="δ of the guarantee; 0 is allowed.")],
    confidence: Annotated[float, typer.Option()] = 0.95,
    json: Json = False,
) -> None:
    """The lower bound on ε that a number of right guesses proves (Steinke et al. 2023)."""
    from raydp.extensions.auditing.one_run import Guesses, one_run_bound  # loads scipy

    counts = Guesses(num_canaries=canaries, num_guesses=guesses, num_correct=correct)
    bound = asdict(one_run_bound(counts, delta, confidence))
    answer = {**bound, "delta": delta, "confidence": confidence}
    if answer["epsilon_gdp"] is None:
        answer["reason"] = "no Gaussian mechanism has a finite ε at δ = 0"
    print_json(answer) if json else print_table("lower bound on ε", [answer])


def correlations(
    points: Source,
    audit: Annotated[
        str | None,
        typer.Option(
            metavar="AUDIT", help="An audit's sweep, or a file with a column epsilon_hat."
        ),
    ] = None,
    resamples: Resamples = 2000,
    worst_case: WorstCase = False,
    score: By = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Spearman and Pearson correlations of the scores over models, and with audited bounds, with
    95 % intervals."""
    table = points_of(points, storage, score, worst_case)
    answer, of_audit = analysis.score_correlations(table, num_resamples=resamples), None
    if audit is not None:
        bounds = imported("raydp.extensions.auditing.bounds").audited_bounds(audit, storage)
        correlate = imported("raydp.extensions.auditing.correlations").audit_correlations
        of_audit = correlate(table, bounds, num_resamples=resamples)
    if json:
        print_json({**answer, **given(audit=of_audit)})
        return
    show = imported("raydp.extensions.auditing.show")
    show.show_correlations(answer)
    if of_audit is not None:
        show.show_audit_correlations(of_audit)


COMMAND = ExtraCommand(run=audit_app, panel=PRIVACY)
CORRELATIONS = ExtraCommand(run=correlations, panel=READ, group="analyze")
