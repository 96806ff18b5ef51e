"""Scores measured after training: storage/name/scores/<label>/, one file per model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

from raydp.scores.score import Measurement
from raydp.scores.words import ScoreWords
from raydp.sweep.store.json_files import read_json, read_state
from raydp.sweep.store.results import RunResult
from raydp.tasks.task import Secret

if TYPE_CHECKING:
    from raydp.sweep.store.folder import SweepFolder

SCORES = "scores"
ABOUT = "measurement.json"
WORST_CASE = "worst case of "
"""Before the name of a score whose largest value over the secrets is meant."""


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
    model; the name is a run id or "base".
    """

    folder: SweepFolder
    label: str

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

    def finished(self, name: str) -> Measurement | None:
        """Return the measurement of a model; None if it has none."""
        result = read_json(self.path / f"{name}.json")
        return (
            Measurement(**result["measurement"])
            if result and result["status"] == "finished"
            else None
        )


def write_counts(folder: SweepFolder, secrets: Sequence[Secret]) -> None:
    """Write the number of training examples that contain each secret, by the secret's name."""
    named = (
        replace(secret, number=secret.number or place)
        for place, secret in enumerate(secrets, start=1)
    )
    folder.secret_counts.write({secret.name: secret.count for secret in named})


def measured_later(folder: SweepFolder) -> list[Measurements]:
    """Return the measurements after training whose values count, sorted by label."""
    return [m for m in measurements_in(folder) if not m.is_open()]


def measurements_in(folder: SweepFolder) -> list[Measurements]:
    """Return the measurements after training, also one that is not complete, sorted by label."""
    labels = sorted(path.parent.name for path in (folder.path / SCORES).glob(f"*/{ABOUT}"))
    return [Measurements(folder=folder, label=label) for label in labels]


def _about(document: AboutMeasurement) -> AboutMeasurement:
    """Return the content of measurement.json. Raise LookupError or TypeError if it is another."""
    _ = [document["label"], document["score"]["name"], document["seed"], document["digest"]]
    return document


def words_of(folder: SweepFolder | None, label: str | None) -> ScoreWords:
    """Return how a person says the score behind a label; None for the folder of no sweep."""
    if label is None:
        return ScoreWords()
    label = label.removeprefix(WORST_CASE)
    if folder is None:
        return ScoreWords.of(label)
    score = _score_of(folder, label)
    return ScoreWords.of(str(score["name"]), score)


def _score_of(folder: SweepFolder, label: str) -> Mapping[str, object]:
    """Return a score with its parameters, as a later measurement or the spec has it."""
    # A label of a later measurement may differ from the name of its score.
    about = Measurements(folder=folder, label=label).about()
    in_spec = {score["name"]: score for score in folder.scores()}
    return in_spec.get(label, {"name": label}) if about is None else about["score"]


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
    """Return a run's or the base's finished measurements by label, those of training first."""
    measured = {m.label: score for m in later if (score := m.finished(name)) is not None}
    # Measured later wins: a finer measurement replaces the value of training under its label.
    of_training = {} if result is None else result.scores
    return {**of_training, **measured}
