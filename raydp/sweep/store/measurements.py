"""Scores measured after training: storage/name/scores/<label>/, one file per model."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NotRequired, TypedDict

from raydp.analysis.statistics.results import given
from raydp.plugins.described import Plugin
from raydp.plugins.parameters import constant
from raydp.plugins.registries import names
from raydp.scores.base import Measurement, params_of
from raydp.scores.requests import ScoreRequest
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.json_files import read_json, read_state, write_json
from raydp.sweep.store.results import RunResult
from raydp.tasks.base import Secret

SCORES = "scores"
ABOUT = "measurement.json"


class AboutMeasurement(TypedDict):
    """The content of measurement.json.

    Keys:
        label: the label of the measurement.
        score: the score with those parameters that are not the defaults.
        seed: seed of the draws of every model; "run" if each run's own seed was used.
        digest: hash of score and seed.
        models: the whole set of models, if a model's value depends on the others.
        open: whether the measurement will replace values of training, and is not complete yet. Its
            values count when it is, so that no table mixes them with those of training.
    """

    label: str
    score: dict[str, object]
    seed: int | Literal["run"]
    digest: str
    models: NotRequired[list[str]]
    open: NotRequired[bool]


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """One measurement of a sweep's models: a score with its parameters, under a label.

    scores/<label>/measurement.json describes the measurement. <name>.json commits the result of one
    model; the name is a run id or "base". The folder work/ belongs to the score (Context.folder).
    """

    folder: SweepFolder
    label: str

    @classmethod
    def begin(
        cls,
        folder: SweepFolder,
        request: ScoreRequest,
        *,
        seed: int | None,
        models: list[str] | None,
        replaces: bool = False,
    ) -> Measurements:
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

    @property
    def path(self) -> Path:
        return self.folder.path / SCORES / self.label

    def about(self) -> AboutMeasurement | None:
        """Return the description of the measurement; None before it was begun."""
        return read_state(self.path / ABOUT, _about)

    def is_open(self) -> bool:
        """Return whether the values will replace those of training, and do not count yet."""
        about = self.about()
        return about is not None and about.get("open", False)

    def complete(self) -> None:
        """Let the values of a measurement that replaces those of training count from now on."""
        about = self.about()
        assert about is not None, "it is begun"
        about.pop("open", None)
        write_json(self.path / ABOUT, about)

    def finished(self, name: str) -> Measurement | None:
        """Return the measurement of a model; None if it has none."""
        result = read_json(self.path / f"{name}.json")
        return (
            Measurement(**result["measurement"])
            if result and result["status"] == "finished"
            else None
        )

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


def write_counts(folder: SweepFolder, secrets: Sequence[Secret]) -> None:
    """Write the number of training examples that contain each secret, by the secret's name."""
    named = (
        replace(secret, number=secret.number or place)
        for place, secret in enumerate(secrets, start=1)
    )
    folder.secret_counts.write({secret.name: secret.count for secret in named})


def digest_of(score: Plugin, seed: int | None) -> str:
    """Return the hash of a score and of the seed of its draws; None for each run's own seed.

    Defaults are left out, so that a new option changes no identity.
    """
    identity = {
        "score": {"name": score.name, **params_of(score.params)},
        "seed": "run" if seed is None else seed,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def measured_later(folder: SweepFolder) -> list[Measurements]:
    """Return the measurements after training whose values count, sorted by label."""
    return [m for m in _all_measured(folder) if not m.is_open()]


def open_measurements(folder: SweepFolder) -> list[str]:
    """Return the labels of measurements that replace values of training and are not complete."""
    return [m.label for m in _all_measured(folder) if m.is_open()]


def _all_measured(folder: SweepFolder) -> list[Measurements]:
    labels = sorted(path.parent.name for path in (folder.path / SCORES).glob(f"*/{ABOUT}"))
    return [Measurements(folder=folder, label=label) for label in labels]


def _about(document: AboutMeasurement) -> AboutMeasurement:
    """Return the content of measurement.json. Raise LookupError or TypeError if it is another."""
    _ = [document["label"], document["score"]["name"], document["seed"], document["digest"]]
    return document


def is_logarithmic(folder: SweepFolder, label: str | None) -> bool | None:
    """Return whether the score behind a label is logarithmic.

    Return None if there is no score, or the score's package is not installed.
    """
    if label is None:
        return None
    # A label of a later measurement may differ from the name of its score.
    about = Measurements(folder=folder, label=label).about()
    name = label if about is None else str(about["score"]["name"])
    logarithmic: bool | None = (
        constant("scores", name, "logarithmic") if name in names("scores") else None
    )
    return logarithmic


def variant_figures(result: RunResult | None) -> dict[str, float]:
    """Return the figures of a run at further stated ε, by the columns of the points table.

    The columns are <level>.<ε>.utility_loss and <level>.<ε>.score.<name>.
    """
    columns = {}
    for variant in () if result is None else result.variants:
        prefix = f"{variant.stated.level}.{variant.stated.epsilon:.15g}"
        columns[f"{prefix}.utility_loss"] = variant.utility_loss
        columns |= {
            f"{prefix}.score.{name}": measured.value for name, measured in variant.scores.items()
        }
    return columns


def scores_of(
    result: RunResult | None, name: str, later: list[Measurements]
) -> dict[str, Measurement]:
    """Return the finished measurements of a run or of the base model, by label.

    Those of training come first.
    """
    measured = {m.label: score for m in later if (score := m.finished(name)) is not None}
    # Measured later wins: a finer measurement replaces the value of training under its label.
    return {**({} if result is None else result.scores), **measured}
