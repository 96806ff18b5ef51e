"""The models of a sweep that may be measured after training, and their locations."""

from __future__ import annotations

from pathlib import Path

from raydp import tracking
from raydp.spec.document import SweepSpec
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.measurements import SCORES

FETCHED = f"{SCORES}/.models"
"""Folder of models that exist only in the registry, kept during the measurement."""


def finished_runs(folder: SweepFolder) -> dict[str, int]:
    """Return the finished runs that may be measured, and their seeds."""
    disclosure = folder.disclosure()
    trials = disclosure.of(folder.plan().trials)
    runs = {trial.run_id: trial.seed for trial in trials if folder.is_finished(trial.run_id)}
    if not runs:
        private = "" if disclosure.note is None else f" This is {disclosure.note}."
        raise ValueError(
            f"SWEEP must have a finished run that may be measured, got {folder.path.name!r} with "
            f"none. Resume it first.{private}"
        )
    return runs


def model_folders(
    folder: SweepFolder, spec: SweepSpec, runs: dict[str, int]
) -> tuple[dict[str, Path | None], dict[str, str]]:
    """Return every model's folder, if need be from the registry, and why models are missing."""
    folders: dict[str, Path | None] = {BASE_RUN: None}
    lost = {}
    for name in runs:
        own = folder.model(name).resolve()
        # Weights in the sweep's folder need no download.
        if any(own.glob("*.safetensors")):
            folders[name] = own
            continue
        uri = folder.model_uri(name)
        # A model that cannot be fetched must not stop the measurement of the others.
        try:
            if uri is None:
                raise ValueError("it was never registered")
            folders[name] = tracking.fetch_model(
                uri, folder.path / FETCHED / name, tracking_uri=spec.tracking.uri
            ).resolve()
        except (ValueError, OSError) as error:
            lost[name] = f"the model is neither in the sweep's folder nor in the registry: {error}"
    return folders, lost
