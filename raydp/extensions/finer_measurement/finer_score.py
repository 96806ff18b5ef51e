"""The score that a sweep selects by, with a smaller error, measured before further seeds.

It helps where measurements, and not seeds, are what a decision lacks.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from rich.console import Console

from raydp.extensions.later_scores.measurement import BegunMeasurement, log_to_mlflow, measure
from raydp.extensions.later_scores.measurements import WrittenMeasurements, digest_of
from raydp.extensions.later_scores.requests import ScoreRequest
from raydp.plugins.described import Plugin
from raydp.scores.score import Measurement, params_of
from raydp.spec.document import SweepSpec
from raydp.spec.sections.seeds import AdaptiveSeeds
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.engine.further_seeds import BeforeFurtherSeeds, end_seeds
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.measurements import Measurements
from raydp.tasks.task import Task

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FinerScore(BeforeFurtherSeeds):
    """A score of a sweep with adaptive seeds, and the parameters with which its error is smaller.

    If the first pass leaves the decision open, the models that are trained are measured by it under
    the score's own name, and runs that are trained later measure it in training. All state is in
    the sweep's folder.

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
        """Return the finer form of the score that is in use already, else of the selecting score.

        None: the seeds are not adaptive, there is no finer form, or the nodes do not all see the
        trained models.
        """
        if not isinstance(spec.seeds, AdaptiveSeeds) or spec.cluster.exchange is not None:
            return None
        # A measurement that has begun decides: its values are in use.
        for own in spec.scores:
            if (finer := _as_measured(folder, own)) is not None:
                return cls(folder=folder, own=own, finer=finer)
        for own in spec.scores:
            params = own.params.finer(task) if own.name == spec.select.score else None
            if params is not None:
                return cls(folder=folder, own=own, finer=Plugin(own.name, params))
        return None

    @property
    def request(self) -> ScoreRequest:
        return ScoreRequest(label=self.own.name, plugin=self.finer)

    @property
    def measurements(self) -> WrittenMeasurements:
        return WrittenMeasurements(folder=self.folder, label=self.own.name)

    def can_begin(self) -> bool:
        """Return whether the models were never measured so."""
        return not self.is_begun()

    def begin(self) -> None:
        """Write down that the models are to be measured."""
        WrittenMeasurements.begin(self.folder, self.request, seed=None, models=None, replaces=True)

    def is_lost(self) -> bool:
        """Return whether the models were measured, and the folder no longer says so."""
        if self.is_begun():
            return False
        end = self.folder.seeds_end()
        said = end is not None and end.measured_again is not None
        return said or any(
            self._is_of_training(trial.run_id) for trial in self.folder.plan().trials
        )

    def is_begun(self) -> bool:
        """Return whether the models are measured, or are to be."""
        return self.measurements.about() is not None

    def is_open(self) -> bool:
        """Return whether the models are to be measured."""
        return self.measurements.is_open()

    def models(self) -> list[str]:
        """Return the base model and the trained models that training has not measured so."""
        finished = [
            t.run_id for t in self.folder.plan().trials if self.folder.is_finished(t.run_id)
        ]
        return [name for name in [BASE_RUN, *finished] if not self._is_of_training(name)]

    def failures(self) -> list[str]:
        """Return why models could not be measured, each of which keeps its value of training."""
        reasons = [self.measurements.failure(name) for name in self.models()]
        return [reason for reason in reasons if reason is not None]

    def in_training(self, spec: SweepSpec) -> SweepSpec:
        """Return the spec by which runs are trained from now on."""
        if not self.is_begun():
            return spec
        scores = tuple(
            self.finer if score.name == self.own.name else score for score in spec.scores
        )
        return spec.model_copy(update={"scores": scores})

    def in_words(self) -> str:
        """Return the parameters that differ from the spec's."""
        before, now = self.own.as_dict(), self.finer.as_dict()
        return ", ".join(
            f"{name} {now[name]} (in the spec: {before[name]})"
            for name in now
            if now[name] != before[name]
        )

    def sentence(self, score: str | None) -> str | None:
        if not self.is_begun() or self.own.name != score:
            return None
        lost = len(self.failures())
        kept = (
            f" {lost} of the models could not be measured, and keep the value of their training."
            if lost
            else ""
        )
        return (
            f"The first pass left the decision open, so {self.own.name} was measured again "
            f"with {self.in_words()}.{kept}"
        )

    def settle(
        self, context: SweepContext, task: Task, console: Console, *, retry: bool = False
    ) -> bool:
        folder = self.folder
        # Runs or the recorded end rely on finer values that the folder has lost: measure again.
        if self.is_lost():
            folder.seeds_end.remove()
            self.begin()
        end_seeds(context, self)  # nothing happens while a measurement is open
        if not self.is_begun():
            return False
        was_open, begun, failure = self.is_open(), self._begun(context), self.measurements.failure
        done = begun.finished()
        # Measure models without a value. Models that failed before are tried again only on request.
        if any(name not in done and (retry or failure(name) is None) for name in begun.seeds):
            self._measure(context, task, begun, console)
            # they may have ended without the values of models that could not be measured
            folder.seeds_end.remove()
        self.measurements.complete()
        _, note = log_to_mlflow(folder, context.spec, begun.trained(), [begun], console)
        if note is not None:
            LOGGER.warning("%s", note)
        end_seeds(context, self)
        return was_open

    def _begun(self, context: SweepContext) -> BegunMeasurement:
        """Return the measurement that the source of the seeds has begun."""
        # The untrained model is measured with the first seed.
        first = context.spec.seed_labels[0]
        seeds = {
            name: first if name == BASE_RUN else context.trials[name].seed for name in self.models()
        }
        return BegunMeasurement(
            request=self.request, measurements=self.measurements, seeds=seeds, runs=seeds
        )

    def _measure(
        self, context: SweepContext, task: Task, begun: BegunMeasurement, console: Console
    ) -> None:
        """Measure the models that are left; one that fails keeps the value of its training."""
        console.print(
            f"the first pass leaves the decision open: measuring {self.own.name} again with "
            f"{self.in_words()}",
            markup=False,
        )
        # `measure` catches the interruption to stop Ray. Raise it again.
        if not measure(self.folder, context.spec, task, begun.trained(), [begun], None, console):
            raise KeyboardInterrupt
        if failures := self.failures():
            LOGGER.warning(
                "%d of %d models keep the value of their training: %s",
                len(failures),
                len(begun.seeds),
                failures[0],
            )

    def _is_of_training(self, name: str) -> bool:
        result = self.folder.result(name)
        measured: Measurement | None = None if result is None else result.scores.get(self.own.name)
        return measured is not None and dict(measured.params) == params_of(self.finer.params)


def _as_measured(folder: SweepFolder, own: Plugin) -> Plugin | None:
    """Return a score with the parameters by which its models are measured again; None if not.

    Raises:
        ValueError: the folder says something else than a measurement has written.
    """
    measurements = Measurements(folder=folder, label=own.name)
    about = measurements.about()
    if about is None:
        return None
    params = {name: value for name, value in about["score"].items() if name != "name"}
    # The digest shows that the file still has the parameters that the values were measured with.
    with suppress(ValueError):
        finer = Plugin(own.name, type(own.params).model_validate(params))
        if digest_of(finer, None) == about["digest"]:
            return finer
    raise ValueError(
        "SWEEP must have the files that raydp wrote, got other parameters in "
        f"{str(measurements.path)!r}. Delete this folder: the sweep measures its models again."
    )
