"""Which models of a sweep may be measured after training, and where they are."""

from __future__ import annotations

from pathlib import Path

from raydp.spec import SweepSpec
from raydp.sweep.folder import BASE_RUN, SweepFolder
from raydp.sweep.measurements import SCORES
from raydp.sweep.plan import run_id
from raydp.sweep.selection import DECISION_FILE
from raydp.tasks.base import Task
from raydp.tracking import fetch_model
from search_spaces import Configuration

FETCHED = f"{SCORES}/.models"
"""Models that only the registry has, for the time of the measurement."""


def finished_runs(folder: SweepFolder, spec: SweepSpec) -> dict[str, int]:
    """The finished runs and their seeds; of a private selection the released one."""
    trials = folder.read_json("plan.json")["trials"]
    runs = {t["run_id"]: t["seed"] for t in trials if folder.is_finished(t["run_id"])}
    if spec.privacy.selects:
        decision = folder.read_json(DECISION_FILE)
        runs = {} if decision is None else {decision["run_id"]: runs[decision["run_id"]]}
        if not runs:
            raise ValueError(
                f"SWEEP must be a private selection that has released a model, got {folder.path.name!r}. The scores of "
                "any other model are not covered by its guarantee."
            )
    if not runs:
        raise ValueError(f"SWEEP must have a finished run, got {folder.path.name!r} with none. Resume it first.")
    return runs


def require_same(folder: SweepFolder, spec: SweepSpec, task: Task, weight_hash: str) -> None:
    """Raise ValueError if data, secrets or base weights have changed since the sweep was started."""
    plan = folder.read_json("plan.json")
    if not plan["trials"]:
        return
    first = plan["trials"][0]
    configuration = Configuration(**{k: first[k] for k in ("batch_size", "num_steps", "learning_rate")})
    if run_id(spec, task.facts(), weight_hash, configuration, first["seed"]) != first["run_id"]:
        raise ValueError(
            "SWEEP must have the data, secrets and base weights that it was started with, got others. Restore them: "
            "scores of other secrets would not compare."
        )


def model_folders(
    folder: SweepFolder, spec: SweepSpec, runs: dict[str, int]
) -> tuple[dict[str, Path | None], dict[str, str]]:
    """Every model's folder, those from the registry among them; and of the models that are nowhere the reason."""
    found: dict[str, Path | None] = {BASE_RUN: None}
    lost = {}
    for name in runs:
        own = (folder.trial(name) / "model").resolve()
        if any(own.glob("*.safetensors")):
            found[name] = own
            continue
        uri = (folder.read_json(f"trials/{name}/tracked.json") or {}).get("model_uri")
        try:
            if uri is None:
                raise ValueError("it was never registered")
            found[name] = fetch_model(uri, folder.path / FETCHED / name, tracking_uri=spec.tracking.uri).resolve()
        except (ValueError, OSError) as error:
            lost[name] = f"the model is neither in the sweep's folder nor in the registry: {error}"
    return found, lost
