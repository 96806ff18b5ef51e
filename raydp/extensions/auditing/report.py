"""The bounds that an audit's runs prove, separately and together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raydp.analysis.statistics.results import holm
from raydp.extensions.auditing.canaries import ACCESS, CanaryKind
from raydp.extensions.auditing.one_run import Guesses, one_run_bound
from raydp.extensions.auditing.separate_canaries import Outcomes, separate_bound, separate_p_value
from raydp.privacy import Event, PoissonGaussian
from raydp.scores.score import Measurement
from raydp.search_spaces.configuration import Configuration, Hyperparameters
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.points import counts
from raydp.sweep.store.summary import RunCounts
from raydp.system.shell import shell_line
from raydp.training.trial_plan import TrialPlan

if TYPE_CHECKING:
    from raydp.extensions.auditing.one_run_audit import OneRunAudit

SCORE = "one_run_audit"
_SEEN = {"loss": "losses", "gradient": "every noisy gradient"}
"""The view of an auditor with each access, in words."""


class AuditedRun(Hyperparameters):
    """The result of one audited run.

    Keys:
        epsilon_hat: the run's own ε̂ at the confidence, without an assumption on the mechanism.
        epsilon_mechanism: with gradient canaries, the run's ε̂ if the mechanism is the accounted
            one with unknown noise (`separate_bound`); None otherwise.
        p_value: p of the hypothesis "the mechanism is (ε, δ)-DP"; with gradient canaries, of "the
            mechanism reveals at most as much as the accounted one". None for a method without a
            guarantee.
        p_holm: p after Holm's correction for all runs.
        alarm: whether the run raises an alarm.
    """

    run_id: str
    seed: int
    epsilon_hat: float
    epsilon_gdp: float
    epsilon_mechanism: float | None
    correct: int
    guesses: int
    canaries: int
    p_value: float | None
    p_holm: float | None
    alarm: bool


class AuditedConfiguration(Hyperparameters):
    """The result of all runs of one configuration. `epsilon_hat` is corrected for their number."""

    runs: int
    epsilon_hat: float | None
    alarm: bool


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """The result of an audit.

    Attributes:
        audit: name of the audit.
        audited: name of the audited sweep.
        folder: folder of the audit's sweep.
        canaries: M, number of canaries of each run.
        canary: kind of the canaries.
        access: access to training that the guesses need: "loss" of the trained model, or every
            "gradient".
        coins: seed of the canaries and coins.
        confidence: confidence of each ε̂, and of the whole test. A true ε raises an alarm with
            probability at most 1 - confidence.
        epsilon: the stated ε; None for a method without a guarantee.
        claimed: whether ε is only claimed by the method and not proven.
        delta: the stated δ.
        runs: one row per finished run.
        configurations: one row per configuration: the largest ε̂ of its seeds, corrected for their
            number.
        epsilon_hat: the largest ε̂ of the sweep, corrected for the number of runs.
        counts: numbers of runs by status, and failures.
        interrupted: whether the audit stopped before all runs had a result.
    """

    audit: str
    audited: str
    folder: Path
    canaries: int
    canary: CanaryKind
    access: str
    coins: int
    confidence: float
    epsilon: float | None
    claimed: bool
    delta: float
    runs: tuple[AuditedRun, ...]
    configurations: tuple[AuditedConfiguration, ...]
    epsilon_hat: float | None
    counts: RunCounts
    interrupted: bool

    @property
    def alarm(self) -> bool:
        """Return whether the stated ε is refuted for a configuration."""
        return any(row["alarm"] for row in self.runs)

    def document(self) -> dict[str, object]:
        """Return the document that `raydp audit --json` prints."""
        return {**vars(self), "counts": self.counts.to_json(), "alarm": self.alarm}

    def canaries_used(self) -> dict[str, object]:
        """Return the kind, number and seed of the canaries, and the access that guesses need."""
        return {
            "kind": self.canary,
            "access": self.access,
            "number": self.canaries,
            "seed": self.coins,
        }

    def alarms(self) -> dict[Configuration, str | None]:
        """Return each audited configuration -> its alarm as a sentence, or None."""
        return {
            _key(row): _sentence(self, [r for r in self.runs if _key(r) == _key(row)])
            if row["alarm"]
            else None
            for row in self.configurations
        }


def report_of(audited: str, folder: SweepFolder, *, interrupted: bool = False) -> AuditReport:
    """Return the report on an audit's finished runs."""
    spec = folder.spec()
    # Only finished runs have guesses.
    score, task, plan = spec.scores[0].params, spec.task.params, folder.plan()
    results = [(trial, folder.result(trial.run_id)) for trial in plan.trials]
    finished = [
        (trial, result) for trial, result in results if result is not None and result.finished
    ]
    rows = [
        _row(t, r.scores[SCORE], plan.privacy[t.run_id].mechanism.event, score) for t, r in finished
    ]
    # Test all runs together, by Holm's correction.
    for row, p in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        row["p_holm"], row["alarm"] = p, p is not None and p <= 1 - score.confidence
    # Group the runs by configuration.
    by_configuration: dict[Configuration, list[AuditedRun]] = {}
    for row in rows:
        by_configuration.setdefault(_key(row), []).append(row)
    return AuditReport(
        audit=spec.name,
        audited=audited,
        folder=folder.path,
        canaries=task.num_canaries,
        canary=task.canary,
        access=ACCESS[task.canary],
        coins=task.seed,
        confidence=score.confidence,
        epsilon=score.epsilon,
        claimed=spec.method.params.states is not None,
        delta=score.delta,
        runs=tuple(rows),
        configurations=tuple(
            _configuration(by_configuration[one], score) for one in _sorted(by_configuration)
        ),
        epsilon_hat=_largest(rows, score),
        counts=counts(folder),
        interrupted=interrupted,
    )


def _row(trial: TrialPlan, measured: Measurement, event: Event, score: OneRunAudit) -> AuditedRun:
    """Return the row of one finished run, before Holm's correction over all runs."""
    details = {
        name: float(value or 0.0) for name, value in measured.details.items() if name != "p_value"
    }
    p_value, by_mechanism = measured.details.get("p_value"), None
    # Gradient canaries also have the sharper test against the accounted mechanism.
    if "guessed_in" in details:
        assert isinstance(event, PoissonGaussian), "gradient canaries are for private methods"
        counts = {name: int(details[name]) for name in ("num_in", "guessed_in", "wrongly_in")}
        outcomes = Outcomes(num_out=int(details["canaries"]) - counts["num_in"], **counts)
        p_value = separate_p_value(outcomes, event)
        by_mechanism = separate_bound(outcomes, event, score.delta, score.confidence)
    return {
        "run_id": trial.run_id,
        **trial.configuration.to_json(),
        "seed": trial.seed,
        "epsilon_hat": measured.value,
        "epsilon_gdp": details["epsilon_gdp"],
        "epsilon_mechanism": by_mechanism,
        "correct": int(details["correct"]),
        "guesses": int(details["guesses"]),
        "canaries": int(details["canaries"]),
        "p_value": p_value,
        "p_holm": None,
        "alarm": False,
    }


def _configuration(runs: Sequence[AuditedRun], score: OneRunAudit) -> AuditedConfiguration:
    """Return the row of the configuration that the runs have in common."""
    return {
        **_key(runs[0]).to_json(),
        "runs": len(runs),
        "epsilon_hat": _largest(runs, score),
        "alarm": any(row["alarm"] for row in runs),
    }


def _largest(rows: Sequence[AuditedRun], score: OneRunAudit) -> float | None:
    """Return the largest ε̂ of several runs, corrected to hold for all at once (Bonferroni)."""
    if not rows:
        return None
    confidence = 1 - (1 - score.confidence) / (len(rows) * len(score.shares))
    guessed = (
        Guesses(num_canaries=r["canaries"], num_guesses=r["guesses"], num_correct=r["correct"])
        for r in rows
    )
    return max(one_run_bound(each, score.delta, confidence).epsilon for each in guessed)


def _sentence(report: AuditReport, rows: Sequence[AuditedRun]) -> str:
    """Return the alarm of one configuration, from the row of its runs with the smallest p."""
    worst = min(rows, key=lambda row: 1.0 if row["p_holm"] is None else row["p_holm"])
    # Whichever of the two bounds is larger: both hold.
    least = max(worst["epsilon_hat"], worst["epsilon_mechanism"] or 0.0)
    return (
        f"the audit {report.audit} refutes its ε = {report.epsilon:g} at δ = {report.delta:.3g} "
        f"({worst['correct']} of {worst['guesses']} guesses right with access to "
        f"{_SEEN[report.access]}, ε is at least {least:.3g}, p = {worst['p_holm']:.2g} after "
        "Holm). Mend the training and lift it by a new audit: "
        f"{shell_line('raydp', 'audit', report.audited, '--new')}."
    )


def _key(row: AuditedRun | AuditedConfiguration) -> Configuration:
    return Configuration.from_json(row)


def _sorted(configurations: Iterable[Configuration]) -> list[Configuration]:
    """Return configurations by (b, T, η, settings)."""
    return sorted(
        configurations, key=lambda c: (c.batch_size, c.num_steps, c.learning_rate, c.settings)
    )
