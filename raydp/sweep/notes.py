"""What a report says at its end: the guarantee, what it does not cover, and what was made of the data."""

from __future__ import annotations

from typing import Any

from raydp.sweep.folder import BASE_RUN, SweepFolder
from raydp.sweep.points import PRIVATE
from raydp.sweep.show import data_notes
from raydp.tasks.base import TaskFacts


def about(folder: SweepFolder) -> dict[str, Any]:
    """What `analysis.write_report` is told of a sweep beside its points: title, base score, warnings and notes."""
    spec, base = folder.spec(), folder.result(BASE_RUN)
    measured = base is not None and base["status"] == "finished"
    return {
        "title": spec.name,
        "base_score": base["scores"][spec.select.score]["value"] if base is not None and measured else None,
        "warnings": [f"This page shows {PRIVATE}."] if spec.privacy.selects else [],
        "notes": [*notes_of(folder.read_json("plan.json")), *together_notes(folder.read_json("released.json"))],
    }


def notes_of(plan: dict[str, Any]) -> list[str]:
    """What the guarantee says and what was made of the data, for the report's end."""
    record = next(iter(plan["privacy"].values()))
    model = "The released model" if "private_selection" in record else "Each model"
    promise = (
        f"{model}: ε at most {record['target_epsilon'] or 'inf'} at δ = {record['delta']:.3g} for one "
        f"{record['unit']} added or removed, by accountant {record['accountant']} ({record['accountant_version']})."
    )
    certified = [f"Not certified: {reason}." for reason in record["not_certified_because"]]
    covered = [f"Not covered: {item}." for item in record["not_covered"]]
    return [promise, *certified, *covered, *data_notes(TaskFacts(**plan["facts"]))]


def together_notes(together: dict[str, Any] | None) -> list[str]:
    """What all models that the sweep registered cost together."""
    if together is None or together["epsilon"] == "inf":
        return []
    if together["epsilon"] is None:
        return [f"What all {together['models']} registered models cost together is not known: {together['reason']}"]
    return [
        f"All {together['models']} registered models together: ε at most {together['epsilon']:.4g} at "
        f"δ = {together['delta']:.3g}, by accountant {together['accountant']}. That is the guarantee if all are used."
    ]
