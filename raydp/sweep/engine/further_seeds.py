"""Give out a sweep's runs with adaptive seeds.

After the first pass, further runs go to the configurations that may be selected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from raydp.analysis.seeds.allocation import NextSeed, SeedLimits, next_seed
from raydp.plugins.registries import service
from raydp.search_spaces import Configuration
from raydp.spec.document import SweepSpec
from raydp.spec.sections import AdaptiveSeeds
from raydp.sweep.engine.adaptive import SharedQuestion, StepwiseSource
from raydp.sweep.engine.context import ReleaseBudget, SweepContext
from raydp.sweep.search import constraints_of
from raydp.sweep.store.folder import BASE_RUN
from raydp.sweep.store.measurements import measurements_in, words_of
from raydp.sweep.store.points import points_table, secrets_table
from raydp.sweep.store.results import RunResult
from raydp.sweep.store.state import SeedsEnd
from raydp.tasks.task import Task
from raydp.training.trial_plan import TrialPlan


class BeforeFurtherSeeds:
    """A step between a first pass that leaves the decision open and further seeds.

    This class does nothing. The service `finer_measurement` returns one that measures the trained
    models again, which costs less than a run. Its state is in the sweep's folder, so that a resume
    goes on with it.
    """

    def can_begin(self) -> bool:
        """Return whether the step has something to do and has not begun."""
        return False

    def begin(self) -> None:
        """Write into the folder that the step has begun. `settle` does the work."""

    def is_open(self) -> bool:
        """Return whether the step has begun and not ended. No further run is given out then."""
        return False

    def in_training(self, spec: SweepSpec) -> SweepSpec:
        """Return the spec by which runs are trained from now on."""
        return spec

    def sentence(self, score: str | None) -> str | None:
        """Return what was done for the score that selects, for seeds.json; None if nothing."""
        return None

    def settle(
        self, context: SweepContext, task: Task, console: Console, *, retry: bool = False
    ) -> bool:
        """End adaptive seeds if the results ask for no further run; first end a step that is open.

        Nothing happens in other sweeps, and before the first pass has ended.

        Args:
            retry: whether work that failed before is tried again.

        Returns:
            Whether an open step has ended, so that further runs may be asked for.

        Raises:
            KeyboardInterrupt: the user interrupts. A resume does what is left.
        """
        end_seeds(context, self)
        return False


def before_further_seeds(context: SweepContext, task: Task) -> BeforeFurtherSeeds:
    """Return the step of the extension that measures more finely, else one that does nothing.

    Raises:
        ValueError: the sweep relies on a finer measurement, and the extension is not installed.
    """
    own = {score.name for score in context.spec.scores}
    # Only a finer measurement has the label of a score that training measures.
    begun = [m.label for m in measurements_in(context.folder) if m.label in own]
    needed_by = f"the finer measurement scores/{begun[0]} of this sweep" if begun else None
    step_fn = service("finer_measurement", needed_by=needed_by)
    step = None if step_fn is None else step_fn(context.spec, context.folder, task)
    return BeforeFurtherSeeds() if step is None else step


@dataclass(kw_only=True)
class SeedSource(StepwiseSource):
    """Gives out the first pass, then further seeds one by one until a decision is reached.

    Every choice uses all results that there are. While runs are in progress, slots that are free
    get further runs without waiting for them. But the seeds end only when no run is in progress, so
    that how they ended is what the whole table says. A resumed sweep begins with the runs that were
    begun.

    If the first pass leaves the decision open and there is a step before further seeds, the source
    begins the step and is finished. The seeds have not ended then: another source goes on with the
    new values.

    Attributes:
        seeds: when further seeds end.
        before: the step before further seeds.
        question: the question that the further seeds follow; None for the sweep's own decision.
        budget: what all sweeps on the data may release; None without a ledger.
        refusal: why no further run may be released; None if it may.
    """

    seeds: AdaptiveSeeds
    before: BeforeFurtherSeeds = field(default_factory=BeforeFurtherSeeds)
    question: SharedQuestion | None = None
    budget: ReleaseBudget | None = None
    refusal: str | None = None
    _given: list[str] = field(default_factory=list)
    _waited_for: list[str] = field(default_factory=list)
    """The runs that were in progress when the other results said that the seeds may end."""

    def __post_init__(self) -> None:
        self._trials = {trial.run_id: trial for trial in self.trials}
        self._runs: dict[Configuration, list[str]] = {}
        # Further seeds of a configuration are taken in the order of their labels.
        for trial in sorted(self.trials, key=lambda t: t.seed):
            self._runs.setdefault(trial.configuration, []).append(trial.run_id)
        self._first = [
            trial.run_id for trial in self.trials if trial.seed in self.seeds.first_labels
        ]
        # A resumed sweep goes on with the further seeds that were begun.
        begun = [
            t.run_id
            for t in self.trials
            if t.run_id not in self._first and self.folder.trial(t.run_id).exists()
        ]
        self._give([*self._first, *begun])

    @classmethod
    def of(
        cls,
        context: SweepContext,
        base_fn: Callable[[], RunResult | None],
        before: BeforeFurtherSeeds,
    ) -> SeedSource:
        """Return the source of a sweep's runs, as its folder says; see the attributes."""
        spec, trials = context.spec, list(context.trials.values())
        assert isinstance(spec.seeds, AdaptiveSeeds), "its seeds are adaptive"
        return cls(
            spec=spec,
            folder=context.folder,
            trials=trials,
            base_fn=base_fn,
            seeds=spec.seeds,
            before=before,
            question=context.question,
            budget=context.budget,
        )

    def given(self) -> list[str]:
        """Return every run that was given out."""
        return self._given

    def _choose(self) -> None:
        # Wait for the untrained model: the utility threshold may be relative to its loss.
        self.base_fn()
        # An open step comes first. A further source goes on with the new values.
        if self.before.is_open():
            self.finished = True
            return
        # The allocation compares all configurations, so it waits until the first pass has ended.
        if not self._has_threshold() or self.in_progress(first=True):
            return
        if self.question is not None and not self.question.is_ready():
            return
        # Do not compute the allocation again if there is no result since it chose to wait.
        in_progress = self.in_progress()
        if in_progress and in_progress == self._waited_for:
            return  # no new result
        # From all results: begin the step before, give out a further seed, wait, or end.
        step = self._next()
        if step.is_open and self.before.can_begin():
            if in_progress:  # a resumed sweep of an earlier version
                self._waited_for = in_progress
            else:
                self.before.begin()
                self.finished = True
        elif step.configuration is not None:
            runs = self._runs[step.configuration]
            further = [next(run_id for run_id in runs if run_id not in self._given)]
            if self.budget is not None:
                self.refusal = self.budget.refused(further)
            if self.refusal is None:
                self._give(further)
            else:
                self._choose()  # which ends the seeds, or waits for what is in progress
        elif in_progress or step.state is None:
            # A run in progress may still change the decision, so the seeds do not end yet. Or the
            # next seed of the shared question is another sweep's.
            self._waited_for = in_progress
        else:
            self._end(step)

    def _next(self) -> NextSeed:
        """Return what the results so far ask for."""
        if self.refusal is not None:
            return NextSeed(state="budget used up", reason=self.refusal)
        if self.question is not None and (asked := self.question.next_seed(self)) is not None:
            return asked
        points = points_table(self.folder)
        points = points[points["status"] == "finished"]
        if points.empty:
            return NextSeed(state="no selection", reason="No run of the first pass has finished.")
        score, values = self.spec.select.score, secrets_table(self.folder)
        assert score is not None, "adaptive seeds follow a score"
        by_secret = (values, score) if (values["score"] == score).any() else None
        limits = SeedLimits(
            at_most=self.seeds.at_most, compute=self.compute_left(), **self.seeds.precision()
        )
        words = words_of(self.folder, score)
        return next_seed(
            points,
            constraints_of(self.spec.select),
            limits,
            begun=self.begun(),
            by_secret=by_secret,
            log_base=words.log_base,
            no_leak=words.no_leak,
        )

    def _end(self, step: NextSeed) -> None:
        """Write down how the seeds ended, and which planned runs were not needed."""
        self.finished = True
        reason = step.reason
        # A limit of the user ended the seeds: name it, and how to go on.
        if step.limit is not None:
            now = f"{getattr(self.seeds, step.limit):g}"
            reason = f"{reason} To go on, raise seeds.{step.limit} (now {now}), and run it again with --resume."
        end = SeedsEnd(
            state=str(step.state),
            reason=reason,
            further_runs=len(self._given) - len(self._first),
            cost_share=self._cost_share(),
            left_out=tuple(run_id for run_id in self._trials if run_id not in self._given),
            measured_again=self.before.sentence(self.spec.select.score),
        )
        self.folder.seeds_end.write(end)

    def in_progress(self, *, first: bool = False) -> list[str]:
        """Return the runs, of the first pass alone if asked, that have no result yet."""
        runs = self._first if first else self._given
        return [run_id for run_id in runs if self.folder.result(run_id) is None]

    def begun(self) -> Counter[Configuration]:
        """Return configuration -> number of its runs that were given out."""
        return Counter(self._trials[run_id].configuration for run_id in self._given)

    def compute_left(self) -> float:
        """Return what further runs may still cost together, in examples (b·T)."""
        return (self.seeds.max_cost_share - self._cost_share()) * self._cost(self._first)

    def _cost_share(self) -> float:
        """Return the cost of the further runs that were given out, in costs of the first pass."""
        return self._cost(self._given) / self._cost(self._first) - 1

    def _cost(self, run_ids: Sequence[str]) -> float:
        trials: list[TrialPlan] = [self._trials[run_id] for run_id in run_ids]
        return float(sum(trial.batch_size * trial.num_steps for trial in trials))

    def _give(self, run_ids: Sequence[str]) -> None:
        self._given.extend(run_ids)
        self._waiting.extend(run_id for run_id in run_ids if not self.folder.has_ended(run_id))


def end_seeds(context: SweepContext, before: BeforeFurtherSeeds) -> None:
    """End the seeds, or begin the step before further seeds, if the results ask for that."""
    folder = context.folder
    if isinstance(context.spec.seeds, AdaptiveSeeds) and folder.seeds_end() is None:
        SeedSource.of(context, lambda: folder.result(BASE_RUN), before).next_run()
