"""Audits: train a sweep's configurations again with canaries, and bound ε by the guesses."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from raydp.extensions.auditing.alarm_writer import note_audit
from raydp.extensions.auditing.canaries import ACCESS, CanaryKind
from raydp.extensions.auditing.report import SCORE, AuditReport, report_of
from raydp.extensions.auditing.source import AuditSubject
from raydp.search_spaces.configuration import point_of
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.api import Sweep
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.store.alarms import alarms_of
from raydp.sweep.store.folder import SweepFolder
from raydp.system.interruption import Interrupted
from raydp.system.output import stderr
from raydp.tracking import set_alarms

DEFAULT_CANARIES = 500
OF_THE_WEIGHTS = ("model.adapter", "model.quantization")
"""Fields that say which weights are trained, and in which form the others are."""


def run_audit(
    source: AuditSubject,
    *,
    canary: str = "new_token",
    num_canaries: int = DEFAULT_CANARIES,
    confidence: float = 0.95,
    seeds: Sequence[int] | None = None,
    new: bool = False,
) -> AuditReport:
    """Audit a sweep's configurations, or resume an unfinished audit.

    Args:
        source: what to audit.
        canary: kind of the canaries, which also says what access to training the guesses need.
        num_canaries: M, number of canaries.
        confidence: confidence of the bounds, and of the whole test.
        seeds: seeds of the audit's runs; by default the sweep's first one. All runs share the
            coins.
        new: start another audit, with new coins.

    Raises:
        ValueError: the spec cannot be audited, or the unfinished audit has other settings.
        Interrupted: Ctrl-C or SIGTERM came. The same call resumes.
    """
    spec, resume = next_audit(
        source,
        canary=canary,
        num_canaries=num_canaries,
        confidence=confidence,
        seeds=seeds,
        new=new,
    )
    sweep = Sweep(spec)
    try:
        sweep.run(resume=resume)
    except Interrupted:
        raise Interrupted(conclude(source, sweep.folder, interrupted=True)) from None
    return conclude(source, sweep.folder)


def next_audit(
    source: AuditSubject,
    *,
    canary: str = "new_token",
    num_canaries: int,
    confidence: float,
    seeds: Sequence[int] | None,
    new: bool,
) -> tuple[SweepSpec, bool]:
    """Return the sweep to run for an audit, and whether it was begun before.

    The sweep's name is NAME-audit, or with `new` NAME-audit-2 and so on.

    Raises:
        ValueError: the spec cannot be audited, or the unfinished audit has other settings.
    """
    # An audit of a sweep must be of the models that the sweep has trained.
    if SweepFolder.is_at(source.folder):
        SweepFolder.resume(source.spec)  # checks that the models belong to this spec
    seeds, kind = tuple(seeds or source.spec.seed_labels[:1]), _kind(canary)
    spec_fn = partial(
        audit_spec,
        source,
        canary=kind,
        num_canaries=num_canaries,
        confidence=confidence,
        seeds=seeds,
    )
    # Go on with the newest audit, or start one with coins of its own. Coins are never used twice:
    # bounds hold for coins that nobody could know before.
    before = _latest(source)
    if before is None or new:
        number = "" if before is None else f"-{_number(source, before.path.name) + 1}"
        return spec_fn(name=source.name + number, coins=secrets.randbits(63)), False
    started = before.spec()
    spec = spec_fn(name=started.name, coins=started.task.params.seed)
    _check_same(started, spec)
    return spec, True


def conclude(
    source: AuditSubject, folder: SweepFolder, *, interrupted: bool = False
) -> AuditReport:
    """Return the bounds of an audit's runs.

    The finding of a finished audit is written into the audited sweep's folder and onto its
    registered models.
    """
    report = report_of(source.spec.name, folder, interrupted=interrupted)
    # An unfinished audit has found nothing yet, for better or worse.
    if report.runs and not interrupted:
        note_audit(source.folder, report.audit, report.alarms(), report.canaries_used())
        if SweepFolder.is_at(source.folder):
            tracked, alarms = source.spec.tracking, alarms_of(source.folder)
            set_alarms(tracked.registered_model, source.spec.name, alarms, tracking_uri=tracked.uri)
    return report


def audit_spec(
    source: AuditSubject,
    *,
    name: str,
    coins: int,
    canary: CanaryKind = "new_token",
    num_canaries: int,
    confidence: float,
    seeds: Sequence[int],
) -> SweepSpec:
    """Return the audit's own sweep.

    It has the same configurations, method and (ε, δ), on the task with canaries. With canaries of
    new tokens every weight is trained, with others the weights of the spec's own adapter. The only
    score is the audit.

    Args:
        source, name: what to audit, and the name of the audit's sweep.
        coins: seed of the canaries and coins.
        canary, num_canaries, confidence, seeds: as for `run_audit`.

    Raises:
        ValueError: the spec cannot be audited.
    """
    spec = source.spec
    _check_auditable(spec, canary)
    # Determine δ from the number of units, if the spec does not give it.
    target = spec.privacy
    delta = target.target_delta
    if delta is None:
        with stderr.status("counting the audited sweep's units of privacy"):
            delta = target.delta(build_task(spec)[0].facts().num_units)
    # Derive the spec of the audit's sweep.
    data = spec.model_dump(mode="json")
    measured = {"name": SCORE, "delta": delta, "confidence": confidence}
    # The stated ε is tested; a method without a guarantee has none to test.
    if spec.method.params.private or spec.method.params.states:
        measured["epsilon"] = target.require_target("for an audit")
    canaries = {"canary": canary, "num_canaries": num_canaries, "seed": coins}
    data.update(
        name=name,
        task={"name": "audited", "of": spec.task.as_dict(), **canaries},
        privacy={**data["privacy"], "target_delta": delta, "delta_exponent": None},
        scores=[measured],
        select={"score": SCORE, "min_gain_share": None},
        seeds=list(seeds),
    )
    # A token that is new is learnt in its embedding, which an adapter would leave frozen.
    if canary == "new_token":
        data["model"]["adapter"] = {"type": "none"}
    if source.only is not None:
        data["space"] = {"points": [point_of(source.only)]}
    return load_spec(data)


def _check_auditable(spec: SweepSpec, canary: CanaryKind) -> None:
    """Raise ValueError unless a spec is of single runs whose unit of privacy is the example.

    With canaries of new tokens, no further field of the weights may vary.
    """
    for field, value, wanted in (
        ("tuning", spec.privacy.tuning, "ignored"),
        ("unit", spec.privacy.unit, "example"),
    ):
        if value != wanted:
            raise ValueError(
                f"privacy.{field} must be {wanted} for an audit, got {value}. Audit a spec of "
                "single runs with the example as the unit: canaries are examples of nobody's."
            )
    varied = [path for path in spec.space.paths if path.startswith(OF_THE_WEIGHTS)]
    if varied and canary == "new_token":
        raise ValueError(
            f"space must not vary {varied[0]} with --canary new_token, which trains every weight "
            "of the base model. Use --canary known_token or gradient, which keep the spec's "
            "adapters."
        )


def _latest(source: AuditSubject) -> SweepFolder | None:
    """Return the folder of the newest audit of a source, or None."""
    storage = Path(source.spec.storage)
    folders = (spec.parent for spec in storage.glob(f"{source.name}*/spec.yaml"))
    begun = [folder for folder in folders if _number(source, folder.name)]
    return SweepFolder.open(max(begun, key=lambda p: _number(source, p.name))) if begun else None


def _number(source: AuditSubject, name: str) -> int:
    """Return 1 for NAME-audit, k for NAME-audit-k, and 0 for other sweeps."""
    match = re.fullmatch(rf"{re.escape(source.name)}(?:-([1-9]\d{{0,5}}))?", name)
    return 0 if match is None else int(match[1] or 1)


def _kind(name: str) -> CanaryKind:
    """Return a kind of canaries by its name."""
    for kind in ACCESS:
        if kind == name:
            return kind
    raise ValueError(
        f"canary must be one of {', '.join(ACCESS)}, got {name!r}. new_token is usual."
    )


def _check_same(started: SweepSpec, now: SweepSpec) -> None:
    """Refuse to resume an audit with other settings. The message names the options."""
    options = {
        "canary": (started.task.params.canary, now.task.params.canary),
        "canaries": (started.task.params.num_canaries, now.task.params.num_canaries),
        "confidence": (started.scores[0].params.confidence, now.scores[0].params.confidence),
        "seeds": (list(started.seed_labels), list(now.seed_labels)),
    }
    for name, (before, wanted) in options.items():
        # Chosen before the results are known: another choice afterwards would void the confidence.
        if before != wanted:
            raise ValueError(
                f"{name} must be {before} as the audit {started.name!r} was started with, got "
                f"{wanted}. Leave it as it was, or start another audit with --new."
            )
