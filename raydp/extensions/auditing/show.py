"""Printed output of `raydp audit` and of `raydp analyze correlations --audit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from raydp.cli.show.sweeps import show_failures
from raydp.system.output import print_table, stdout
from raydp.system.shell import command_line

if TYPE_CHECKING:
    from raydp.analysis.statistics.correlations import CorrelatedPair, ScoreCorrelations
    from raydp.extensions.auditing.correlations import AuditCorrelations
    from raydp.extensions.auditing.own_twins import OwnAudit
    from raydp.extensions.auditing.report import AuditReport

SHOWN = (
    *("batch_size", "num_steps", "learning_rate", "seed", "correct", "guesses"),
    *("epsilon_hat", "epsilon_gdp", "epsilon_mechanism", "p_value", "p_holm"),
)
NAMES = {
    "epsilon_hat": "ε̂",
    "epsilon_gdp": "ε̂ if Gaussian",
    "epsilon_mechanism": "ε̂ if as accounted",
    "p_value": "p",
    "p_holm": "p (Holm)",
}


def show_audit(report: AuditReport) -> None:
    """Print the bounds as tables, and their meaning for the stated ε."""
    word = "claimed" if report.claimed else "stated"
    stated = (
        "without a guarantee"
        if report.epsilon is None
        else f"{word} ε = {report.epsilon:g} at δ = {report.delta:.3g}"
    )
    rows: Sequence[Mapping[str, object]] = report.runs
    # Only gradient canaries have the bound for the accounted mechanism.
    shown = [name for name in SHOWN if name != "epsilon_mechanism" or report.access == "gradient"]
    runs = [{NAMES.get(k, k): row[k] for k in shown} for row in rows]
    print_table(
        f"{report.audit}: {report.canaries} {report.canary} canaries, access to {report.access}, "
        f"{stated}, {report.confidence:.0%} each",
        runs,
        marks={i: "ALARM" for i, row in enumerate(report.runs) if row["alarm"]},
    )
    configurations = [{NAMES.get(k, k): v for k, v in row.items()} for row in report.configurations]
    print_table("configurations, corrected for their runs", configurations)
    show_failures(report.counts.failures)
    if report.interrupted:
        stdout.print("interrupted: go on with the same command", style="bold")
    # Without a finished run there is no bound to speak of.
    if report.epsilon_hat is None:
        return
    stdout.print(
        f"over all runs: ε >= {report.epsilon_hat:.3g} somewhere, with confidence "
        f"{report.confidence:.0%}",
        markup=False,
    )
    if report.alarm:
        stdout.print(
            f"ALARM: the {word} ε is refuted. privacy-preferred is refused for these "
            "configurations until a new audit finds nothing: "
            f"{command_line('audit', report.audited, '--new')}",
            style="bold red",
            markup=False,
        )
    elif report.epsilon is not None:
        # Finding nothing is no proof: the audit may be too weak.
        stdout.print(
            f"no alarm: the audit does not refute the {word} ε. It does not prove it either",
            markup=False,
        )


def show_own_audit(audit: OwnAudit) -> None:
    """Print the bounds of a sweep's own models, and their correlations with the other scores."""
    stated = "without a guarantee" if audit.epsilon is None else f"stated ε = {audit.epsilon:g}"
    runs = [{NAMES.get(k, k): v for k, v in row.items()} for row in audit.runs]
    print_table(f"{audit.audited}: planted twins of its own models, {stated}, 95% each", runs)
    rows = [pair_row(pair, {"models": pair["models"]}) for pair in audit.correlations]
    print_table("correlations over the same models", rows)
    if audit.interrupted:
        stdout.print("interrupted: go on with the same command", style="bold")
    if audit.above:
        again = command_line("audit", audit.audited, "--canary", "new_token")
        stdout.print(
            f"{audit.above} of {len(audit.runs)} models have an ε̂ above the stated ε, each at 95 "
            f"% for itself. Test all together: {again}",
            style="bold red",
            markup=False,
        )


def show_correlations(answer: ScoreCorrelations) -> None:
    """Print one row per pair of figures."""
    rows = [pair_row(pair, {"models": pair["models"]}) for pair in answer["pairs"]]
    print_table(f"correlations over {answer['models']} models", rows)


def pair_row(
    pair: CorrelatedPair, number: dict[str, int], p: dict[str, float | None] | None = None
) -> dict[str, object]:
    """Return the row of two figures, with the number of values and, if tested, the p-value."""
    return {
        "a": pair["a"],
        "b": pair["b"],
        **number,
        "Spearman": pair["spearman"],
        "95 %": pair["spearman_interval"],
        **(p or {}),
        "Pearson": pair["pearson"],
        "95 % ": pair["pearson_interval"],
        "note": pair.get("reason", ""),
    }


def show_audit_correlations(audit: AuditCorrelations) -> None:
    """Print one row per score: its correlations with the audited ε̂ over configurations."""
    title = f"with the audited ε̂ over {audit['configurations']} configurations that both have"
    rows = [
        pair_row(pair, {"configurations": pair["configurations"]}, {"p": pair["p"]})
        for pair in audit["pairs"]
    ]
    print_table(title, rows)
    stdout.print(
        f"{audit['only_points']} without an audit, {audit['only_audit']} without a score, "
        f"{audit['zeros']} with ε̂ = 0"
    )
