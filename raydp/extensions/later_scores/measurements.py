"""Writes measurements into a sweep's folder: storage/name/scores/<label>/, one file per model."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from raydp.analysis.statistics.results import given
from raydp.extensions.later_scores.requests import ScoreRequest
from raydp.plugins.described import Plugin
from raydp.scores.score import params_of
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.json_files import read_json, write_json
from raydp.sweep.store.measurements import ABOUT, Measurements


@dataclass(frozen=True, kw_only=True)
class WrittenMeasurements(Measurements):
    """One measurement of a sweep's models, for the process that makes it.

    The folder work/ belongs to the score (Context.folder).
    """

    @classmethod
    def begin(
        cls,
        folder: SweepFolder,
        request: ScoreRequest,
        *,
        seed: int | None,
        models: list[str] | None,
        replaces: bool = False,
    ) -> WrittenMeasurements:
        """Begin a measurement, or resume an earlier one.

        Args:
            folder: the sweep's folder.
            request: the score and its label.
            seed: seed of the draws of every model. None uses each run's own seed, as in training.
            models: the whole set of models, if a model's value depends on the others. If the set
                has changed, earlier values are removed.
            replaces: whether the values will replace those of training under this label. `complete`
                ends it.

        Raises:
            ValueError: the label belongs to another score, other parameters or another seed.
        """
        measurements = cls(folder=folder, label=request.label)
        before = measurements.about()
        # A measurement that replaces values of training stays open over a resume.
        is_open = replaces if before is None else before.get("open", False)
        about = {
            "label": request.label,
            "score": request.plugin.as_dict(),
            "seed": "run" if seed is None else seed,
            "digest": digest_of(request.plugin, seed),
            **given(models=None if models is None else sorted(models), open=is_open or None),
        }
        # A label stands for one measurement. Values of two under one label would be compared.
        if before is not None and before["digest"] != about["digest"]:
            raise ValueError(
                f"label must be new for another measurement, got {request.label!r}, which is "
                f"{before['score']} with seed {before['seed']}. Give --label, such as "
                f"{request.label}-2."
            )
        if before is None or before.get("models") != about.get("models"):
            # A killed earlier call may have left results without measurement.json. They are removed
            # too, because it is not known what they measured.
            shutil.rmtree(measurements.path, ignore_errors=True)
        (measurements.path / "work").mkdir(parents=True, exist_ok=True)
        write_json(measurements.path / ABOUT, about)
        return measurements

    def complete(self) -> None:
        """Let the values of a measurement that replaces those of training count from now on."""
        about = self.about()
        assert about is not None, "it is begun"
        about.pop("open", None)
        write_json(self.path / ABOUT, about)

    def failure(self, name: str) -> str | None:
        """Return why the measurement of a model failed; None if it did not fail."""
        result = read_json(self.path / f"{name}.json")
        return str(result["reason"]) if result and result["status"] == "failed" else None

    def commit(self, name: str, result: Mapping[str, object]) -> None:
        """Commit the result of a model, whole or not at all.

        A finished measurement is never replaced.

        Args:
            name: the run id or "base".
            result: {"status": "finished", "measurement"} or {"status": "failed", "reason"}.
        """
        if self.finished(name) is None:
            write_json(self.path / f"{name}.json", result)


def digest_of(score: Plugin, seed: int | None) -> str:
    """Return the hash of a score and of the seed of its draws; None for each run's own seed.

    Defaults are left out, so that a new option changes no identity.
    """
    identity = {
        "score": {"name": score.name, **params_of(score.params)},
        "seed": "run" if seed is None else seed,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
