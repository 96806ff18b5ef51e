"""Further seeds of a study, which go where the answer to "which ε?" is in doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from raydp.analysis.seeds.allocation import LEAST_SHRINKAGE, NextSeed
from raydp.analysis.surface.posterior import Posterior
from raydp.extensions.study.answers import Part, scores_by_data
from raydp.extensions.study.document import Study
from raydp.extensions.study.points import folder_of, study_points, study_secrets
from raydp.extensions.study.safe_epsilon import EPSILON, StudyScores, sentences
from raydp.search_spaces import Configuration
from raydp.search_spaces.settings import Settings
from raydp.spec.sections.seeds import AdaptiveSeeds
from raydp.sweep.engine.adaptive import StepwiseSource
from raydp.sweep.engine.further_seeds import SeedSource
from raydp.sweep.store.measurements import words_of

OPEN = "ε or ε^gold is in doubt."


def seed_of_doubt(
    parts: Sequence[Part], begun: Mapping[Configuration, int], *, at_most: int, compute_left: float
) -> NextSeed:
    """Return the configuration whose next seed shrinks a doubt most for its compute, or the end.

    Args:
        parts: the answers so far, with the scores behind them.
        begun: configuration of the study -> number of its runs that have begun, of the sweeps that
            train now.
        at_most: largest number of seeds of a configuration.
        compute_left: what a further run may cost, in examples (b·T).

    The variance p (1 - p) of whether a leak keeps to the limit is what a seed can remove, and a
    mean of s seeds loses 1/(s (s + 1)) of the variance of one.
    """
    doubts = [(scores, scores.doubts(answer)) for scores, answer in parts]
    if not any(doubt.any() for _, doubt in doubts):
        said = [sentence for _, answer in parts for sentence in sentences(answer)]
        return NextSeed(state="answered", reason=" ".join(said))
    open_ones: list[tuple[Configuration, float]] = [
        (scores.listed[m], float(doubt[m]))
        for scores, doubt in doubts
        for m in np.flatnonzero((doubt > 0) & _shrinks(scores, at_most))
    ]
    if not open_ones:
        return NextSeed(
            state="secrets are short",
            reason=f"{OPEN} Further seeds would hardly shrink the errors: measure more secrets.",
        )
    more = [(c, doubt) for c, doubt in open_ones if begun.get(c, at_most) < at_most]
    gains = {
        c: doubt / (begun[c] * (begun[c] + 1) * c.compute)
        for c, doubt in more
        if c.compute <= compute_left
    }
    if not gains:
        limit: Literal["at_most", "max_cost_share"] = "max_cost_share" if more else "at_most"
        return NextSeed(state="budget used up", reason=OPEN, limit=limit)
    return NextSeed(configuration=max(gains, key=lambda c: gains[c]))


def _shrinks(scores: StudyScores, at_most: int) -> NDArray[np.bool_]:
    """Return [m] whether `at_most` seeds of each configuration would shrink the error of its leak.

    Only the choice of the secrets, which all share, can keep an error from shrinking.
    """
    if scores.measured.of_secrets is None:
        return np.ones(len(scores.listed), dtype=np.bool_)

    def width(posterior: Posterior) -> NDArray[np.float64]:
        low, high = np.quantile(posterior.absolute, [0.05, 0.95], axis=0)
        wide: NDArray[np.float64] = high - low
        return wide

    then = scores.measured.posterior(num_seeds=at_most)
    return width(then) < (1 - LEAST_SHRINKAGE) * width(scores.posterior)


@dataclass(kw_only=True)
class StudyQuestion:
    """Which ε keeps to the limit: the question that the seeds of a study's sweeps follow.

    Attributes:
        study: the study, which has ε as an axis.
        seeds: the limits, whose cost is of all sweeps together.
    """

    study: Study
    seeds: AdaptiveSeeds
    _sources: Mapping[str, SeedSource] = field(default_factory=dict)
    _parts: tuple[int, list[Part] | None] = (-1, None)
    """Number of results, and the answers that follow from them; None if there are none."""
    _step: tuple[tuple[int, int, int], NextSeed] = ((-1, -1, -1), NextSeed())
    """Numbers of results, of runs that were given out and of sweeps without a budget for more, and
    what follows from them."""

    @classmethod
    def of(cls, study: Study) -> StudyQuestion | None:
        """Return the question; None if a study has no ε, no limit, or no adaptive seeds."""
        cell, limits = study.cells[0], study.limits
        seeds = cell.spec.seeds
        if EPSILON not in cell.values or limits.max_leak is None:
            return None
        return cls(study=study, seeds=seeds) if isinstance(seeds, AdaptiveSeeds) else None

    def begin(self, sources: Mapping[str, StepwiseSource]) -> None:
        """Take the sources of the sweeps that train now, by their names."""
        self._sources = {k: each for k, each in sources.items() if isinstance(each, SeedSource)}
        # The scores may have been measured more finely since.
        self._parts, self._step = (-1, None), ((-1, -1, -1), NextSeed())

    def is_ready(self) -> bool:
        """Return whether every first pass has ended; False while no sweep trains."""
        sources = self._sources.values()
        return bool(sources) and not any(each.in_progress(first=True) for each in sources)

    def next_seed(self, source: StepwiseSource) -> NextSeed | None:
        """Return the next seed of a sweep; see `SharedQuestion`."""
        sources = self._sources.values()
        # All scores are measured finely, or none. A sweep whose scores are waits for another round.
        if any(each.before.is_open() for each in sources):
            source.finished = not self._sources[source.spec.name].before.can_begin()
            return NextSeed()
        given = sum(len(each.given()) for each in sources)
        in_progress = sum(len(each.in_progress()) for each in sources)
        if (parts := self._answers(given - in_progress)) is None:
            return None
        places = self._places()
        refused = sum(each.refusal is not None for each in sources)
        if self._step[0] != (now := (given - in_progress, given, refused)):
            begun = {c: seeds for c, (_, _, seeds) in places.items()}
            found = seed_of_doubt(
                parts,
                begun,
                at_most=self.seeds.at_most,
                compute_left=sum(each.compute_left() for each in sources),
            )
            self._step = now, found
        step = self._step[1]
        if step.configuration is not None:
            sweep, own, _ = places[step.configuration]
            return NextSeed(configuration=own) if sweep == source.spec.name else NextSeed()
        # A run in progress may still change the answer.
        return NextSeed() if in_progress else step

    def _places(self) -> dict[Configuration, tuple[str, Configuration, int]]:
        """Return configuration of the study -> its sweep, its name there, and its runs so far."""
        places = dict[Configuration, tuple[str, Configuration, int]]()
        for cell in self.study.cells:
            source = self._sources.get(cell.spec.name)
            if source is None or source.refusal is not None:
                continue
            for own, seeds in source.begun().items():
                # Through its text, as in the points table.
                settings = Settings.parse(Settings({**cell.values, **own.settings}).text)
                places[replace(own, settings=settings)] = cell.spec.name, own, seeds
        return places

    def _answers(self, num_results: int) -> list[Part] | None:
        """Return the answers that follow from the results so far; None if there are none."""
        if self._parts[0] != num_results:
            self._parts = num_results, self._fitted()
        return self._parts[1]

    def _fitted(self) -> list[Part] | None:
        points = study_points(self.study)
        points = points[points["status"] == "finished"]
        cell, limits = self.study.cells[0], self.study.limits
        select, table = cell.spec.select, study_secrets(self.study)
        score = select.score
        assert score is not None, "adaptive seeds follow a score"
        try:
            found = scores_by_data(
                points,
                (table, score) if (table["score"] == score).any() else None,
                log_base=words_of(folder_of(cell), score).log_base,
                max_loss=select.max_loss,
                min_gain_share=select.min_gain_share,
            )
        except ValueError:  # errors are unknown, or no configuration keeps to the constraints
            return None
        return [
            (scores, answer)
            for scores in found
            for answer in scores.answers(max_leak=limits.max_leak, confidence=limits.confidence)
        ]
