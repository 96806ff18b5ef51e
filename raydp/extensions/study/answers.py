"""The answers to "which ε?" of a points file, in words, as JSON and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from raydp.analysis.tables.per_secret import own_score
from raydp.extensions.study.document import Study
from raydp.extensions.study.page import study_page
from raydp.extensions.study.safe_epsilon import (
    EPSILON,
    SafeEpsilon,
    StudyScores,
    question_of,
    sentences,
)
from raydp.search_spaces.settings import Settings, settings_in_words
from raydp.sweep.store.measurements import words_of
from raydp.sweep.store.source import PointsSource
from raydp.system.files import write_atomically

Part = tuple[StudyScores, SafeEpsilon]


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The answers of a study: one for each task, model and unit, with the scores behind it."""

    parts: Sequence[Part]

    def to_json(self) -> list[dict[str, object]]:
        """Return a document for each answer; see the attributes of `SafeEpsilon`."""
        return [asdict(answer) | {"on": dict(answer.on)} for _, answer in self.parts]

    def in_doubt(self) -> bool:
        """Return whether further seeds might change an answer."""
        asked = [(scores, a) for scores, a in self.parts if a.max_leak is not None]
        return any(scores.doubts(answer).any() for scores, answer in asked)

    def sentences(self, answer: SafeEpsilon) -> list[str]:
        """Return an answer in words. If there are several, the first one begins with its model."""
        first, *others = sentences(answer)
        about = f"{settings_in_words(answer.on)}: " if len(self.parts) > 1 else ""
        return [about + first, *others]

    def write(self, file: Path, title: str) -> None:
        """Write the page. The owner alone may read it."""
        write_atomically(file, study_page(title, self.parts).encode(), private=True)


def answer_of(study: Study, files: Mapping[str, Path]) -> Answered | str | None:
    """Answer a study's own question from its points, and write its page.

    Returns:
        The answers; the reason if there are none; None if ε is no axis.
    """
    cell = study.cells[0]
    if EPSILON not in cell.values:
        return None
    own = cell.spec.select
    try:
        found = answered(
            PointsSource(file=files["points"]),
            **study.limits.model_dump(),
            max_loss=own.max_loss,
            min_gain_share=own.min_gain_share,
            score=own.score,
        )
    except ValueError as error:
        return f"Which ε is not known: {error}"
    found.write(files["envelope"], study.name)
    return found


def answered(
    source: PointsSource,
    *,
    max_leak: float | None,
    confidence: float,
    max_loss: float | None = None,
    min_gain_share: float | None = None,
    score: str | None = None,
) -> Answered:
    """Answer which ε keeps to a limit, from the points of a study.

    Args:
        source: the points.
        max_leak, confidence, max_loss, min_gain_share: see `StudyScores`.
        score: the score; by default the one that the table has in the column `score`.

    Raises:
        ValueError: as `StudyScores.of`, of any data set.
    """
    points = source.points(score=score)
    name = score or own_score(points)
    values = source.by_secret(name)
    parts = list[Part]()
    for scores in scores_by_data(
        points,
        values,
        log_base=words_of(source.folder, name).log_base,
        max_loss=max_loss,
        min_gain_share=min_gain_share,
    ):
        parts += [(scores, a) for a in scores.answers(max_leak=max_leak, confidence=confidence)]
    return Answered(parts=parts)


def scores_by_data(
    points: pd.DataFrame,
    values: tuple[pd.DataFrame, str] | None,
    *,
    log_base: float | None,
    max_loss: float | None,
    min_gain_share: float | None,
) -> list[StudyScores]:
    """Return the scores on each data set, whose secrets are others than those of the next.

    Args:
        points: finished runs.
        values, log_base: as for `raydp.analysis.select`.
        max_loss, min_gain_share: see `StudyScores`.

    Raises:
        ValueError: as `StudyScores.of`, of any data set.
    """
    texts = points["settings"] if "settings" in points else pd.Series("", index=points.index)
    data = texts.map(lambda text: question_of(Settings.parse(text), model=False).text)
    found = list[StudyScores]()
    for _, rows in points.groupby(data.to_numpy(), sort=False):
        own = None
        if values is not None:
            table, name = values
            own = table[table["run_id"].isin(rows["run_id"])], name
        found.append(
            StudyScores.of(
                rows,
                max_loss=max_loss,
                min_gain_share=min_gain_share,
                secrets=own,
                log_base=log_base,
            )
        )
    return found
