"""What was measured of a sweep's models after training: storage/name/scores/<label>/, one file a model."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raydp.plugins.parameters import constant
from raydp.plugins.registries import names
from raydp.scores.base import Measurement
from raydp.scores.requests import ScoreRequest
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.json_files import read_json, write_json
from raydp.sweep.store.results import RunResult
from raydp.tasks.base import Secret

SCORES = "scores"
ABOUT = "measurement.json"


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """One measurement of a sweep's models: a score with its parameters, under a label.

    scores/<label>/measurement.json says what is measured; <name>.json commits one model's result, where name is a run
    id or "base"; work/ is the score's own (Context.folder).
    """

    folder: SweepFolder
    label: str

    @classmethod
    def begin(
        cls, folder: SweepFolder, request: ScoreRequest, *, seed: int | None, models: list[str] | None
    ) -> Measurements:
        """A new measurement, or the one of before to go on with.

        Args:
            seed: of every model's draws; None for each run's own, as in training.
            models: the whole set, where a model's value depends on the others; if it has changed, the values of before
                are dropped.

        Raises:
            ValueError: the label is taken by another score, other parameters or another seed.
        """
        measurements = cls(folder=folder, label=request.label)
        name, params = request.plugin.name, request.plugin.params
        said = params.model_dump(mode="json", exclude_defaults=True)  # a new option changes no identity
        drawn = "run" if seed is None else seed
        identity = {"score": {"name": name, **said}, "seed": drawn}
        about = {
            "label": request.label,
            "score": request.plugin.as_dict(),
            "seed": drawn,
            "digest": hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16],
            **({} if models is None else {"models": sorted(models)}),
        }
        before = measurements.about()
        if before is not None and before["digest"] != about["digest"]:
            raise ValueError(
                f"label must be new for another measurement, got {request.label!r}, which is {before['score']} with "
                f"seed {before['seed']}. Give --label, such as {request.label}-2."
            )
        if before is None or before.get("models") != about.get("models"):
            # also where a kill ended this: of results without measurement.json nobody knows what they measured
            shutil.rmtree(measurements.path, ignore_errors=True)
        (measurements.path / "work").mkdir(parents=True, exist_ok=True)
        write_json(measurements.path / ABOUT, about)
        return measurements

    @property
    def path(self) -> Path:
        return self.folder.path / SCORES / self.label

    def about(self) -> dict[str, Any] | None:
        """What is measured; None before it was begun."""
        document: dict[str, Any] | None = read_json(self.path / ABOUT)
        return document

    def result(self, name: str) -> dict[str, Any] | None:
        """A model's result: {"status": "finished", "measurement"} or {"status": "failed", "reason"}."""
        document: dict[str, Any] | None = read_json(self.path / f"{name}.json")
        return document

    def finished(self, name: str) -> dict[str, Any] | None:
        """A model's measurement as a document; None where it has none."""
        result = self.result(name)
        return result["measurement"] if result is not None and result["status"] == "finished" else None

    def commit(self, name: str, result: dict[str, Any]) -> None:
        """Commit a model's result, whole or not at all; what is finished stays as it is."""
        if self.finished(name) is None:
            write_json(self.path / f"{name}.json", result)


def write_counts(folder: SweepFolder, secrets: Sequence[Secret]) -> None:
    """Write down in how many training examples each secret is, by name."""
    named = (replace(secret, number=secret.number or place) for place, secret in enumerate(secrets, start=1))
    folder.set_secret_counts({secret.name: secret.count for secret in named})


def measured_later(folder: SweepFolder) -> list[Measurements]:
    """The measurements that a sweep has beside those of its training, by label."""
    found = sorted(path.parent.name for path in (folder.path / SCORES).glob(f"*/{ABOUT}"))
    return [Measurements(folder=folder, label=label) for label in found]


def is_logarithmic(folder: SweepFolder, label: str) -> bool | None:
    """Return whether the score behind a label is logarithmic. Return None if the score's package is not installed."""
    about = Measurements(folder=folder, label=label).about()
    name = label if about is None else about["score"]["name"]
    logarithmic: bool | None = constant("scores", name, "logarithmic") if name in names("scores") else None
    return logarithmic


def claimed_figures(result: RunResult | None) -> dict[str, float]:
    """The same training at other claimed ε, as columns: claimed.<ε>.utility_loss and claimed.<ε>.score.<name>."""
    found = {}
    for variant in () if result is None else result.variants:
        prefix = f"claimed.{variant.claimed_epsilon:.15g}"
        found[f"{prefix}.utility_loss"] = variant.utility_loss
        found |= {f"{prefix}.score.{name}": measured.value for name, measured in variant.scores.items()}
    return found


def scores_of(folder: SweepFolder, name: str, later: list[Measurements]) -> dict[str, Measurement]:
    """Every finished measurement of a run or of the base by its label; those of training first."""
    result = folder.result(name)
    measured = {m.label: Measurement(**document) for m in later if (document := m.finished(name)) is not None}
    return {**({} if result is None else result.scores), **measured}
