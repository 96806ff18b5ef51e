"""The score that a sweep selects by, with a smaller error: what is measured where further seeds do not help."""

from __future__ import annotations

from dataclasses import dataclass

from raydp.plugins.described import Plugin
from raydp.scores.requests import ScoreRequest
from raydp.spec.document import SweepSpec
from raydp.spec.sections import AdaptiveSeeds
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.measurements import Measurements
from raydp.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class FinerScore:
    """The score that a sweep with adaptive seeds selects by, and the parameters with which its error is smaller.

    If the first pass leaves the decision open, the models that are trained are measured by it under the score's own
    name, and runs that are trained later measure it in training. All state is in the sweep's folder.

    Attributes:
        folder: the sweep's folder.
        own: the score as the spec has it.
        finer: the score with other parameters.
    """

    folder: SweepFolder
    own: Plugin
    finer: Plugin

    @classmethod
    def of(cls, spec: SweepSpec, folder: SweepFolder, task: Task) -> FinerScore | None:
        """Return it; None if the seeds are not adaptive or the score has no smaller error at no training."""
        if not isinstance(spec.seeds, AdaptiveSeeds):
            return None
        for own in spec.scores:
            params = own.params.finer(task) if own.name == spec.select.score else None
            if params is not None:
                found = cls(folder=folder, own=own, finer=Plugin(own.name, params))
                about = found.measurements.about()
                # After a change of the spec the folder may hold the score with parameters of an earlier spec.
                return found if about is None or about["score"] == found.finer.as_dict() else None
        return None

    @property
    def request(self) -> ScoreRequest:
        return ScoreRequest(label=self.own.name, plugin=self.finer)

    @property
    def measurements(self) -> Measurements:
        return Measurements(folder=self.folder, label=self.own.name)

    def begin(self, runs: list[str]) -> None:
        """Write down that the base model and these trained runs are to be measured."""
        Measurements.begin(self.folder, self.request, seed=None, models=[BASE_RUN, *runs])

    def is_begun(self) -> bool:
        """Return whether the models are measured, or are to be."""
        return self.measurements.about() is not None

    def left(self) -> list[str]:
        """Return the models that are to be measured and have neither a value nor a failure."""
        about, measurements = self.measurements.about(), self.measurements
        names = [] if about is None else about["models"]
        return [n for n in names if measurements.finished(n) is None and measurements.failure(n) is None]

    def in_training(self, spec: SweepSpec) -> SweepSpec:
        """Return the spec by which runs are trained from now on."""
        if not self.is_begun():
            return spec
        scores = tuple(self.finer if score.name == self.own.name else score for score in spec.scores)
        return spec.model_copy(update={"scores": scores})

    def in_words(self) -> str:
        """Return the parameters that differ from the spec's."""
        before, now = self.own.as_dict(), self.finer.as_dict()
        return ", ".join(
            f"{name} {now[name]} (in the spec: {before[name]})" for name in now if now[name] != before[name]
        )
