"""Give out a sweep's runs with adaptive seeds.

After the first pass, further runs go to the configurations that may be selected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from raydp.analysis.seeds.allocation import NextSeed, SeedLimits, next_seed
from raydp.search_spaces import Configuration
from raydp.spec.sections import AdaptiveSeeds
from raydp.sweep.engine.adaptive import StepwiseSource
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.engine.measuring.finer import FinerScore
from raydp.sweep.search import constraints_of
from raydp.sweep.store.measurements import is_logarithmic
from raydp.sweep.store.points import points_table, secrets_table
from raydp.sweep.store.results import RunResult
from raydp.sweep.store.state import SeedsEnd
from raydp.training.trial_plan import TrialPlan


@dataclass(kw_only=True)
class SeedSource(StepwiseSource):
    """Gives out the first pass, then further seeds one by one until a decision is reached.

    Every choice uses all results that there are. While runs are in progress, slots that are free
    get further runs without waiting for them. But the seeds end only when no run is in progress, so
    that how they ended is what the whole table says. A resumed sweep begins with the runs that were
    begun.

    If the first pass leaves the decision open and the score can be measured more finely, the source
    begins this measurement before any further seed, because a measurement costs less than a run,
    and is finished. The seeds have not ended then: another source goes on with the new values.

    Attributes:
        seeds: when further seeds end.
        finer: the score with a smaller error; None if there is none.
    """

    seeds: AdaptiveSeeds
    finer: FinerScore | None = None
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
        finer: FinerScore | None,
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
            finer=finer,
        )

    def given(self) -> list[str]:
        """Return every run that was given out."""
        return self._given

    def _choose(self) -> None:
        # Wait for the untrained model: the utility threshold may be relative to its loss.
        self.base_fn()
        # An open measurement comes first. A further source goes on with the new values.
        if self.finer is not None and self.finer.is_open():
            self.finished = True
            return
        # The allocation compares all configurations, so it waits until the first pass has ended.
        if not self._has_threshold() or any(
            self.folder.result(run_id) is None for run_id in self._first
        ):
            return
        # Do not compute the allocation again if there is no result since it chose to wait.
        in_progress = [run_id for run_id in self._given if self.folder.result(run_id) is None]
        if in_progress and in_progress == self._waited_for:
            return  # no new result
        # From all results: measure more finely, give out a further seed, wait, or end.
        step = self._next()
        if self.finer is not None and not self.finer.is_begun() and step.is_open:
            if in_progress:  # a resumed sweep of an earlier version
                self._waited_for = in_progress
            else:
                self.finer.begin()
                self.finished = True
        elif step.configuration is not None:
            runs = self._runs[step.configuration]
            self._give([next(run_id for run_id in runs if run_id not in self._given)])
        elif in_progress:
            # A run in progress may still change the decision, so the seeds do not end yet.
            self._waited_for = in_progress
        else:
            self._end(step)

    def _next(self) -> NextSeed:
        """Return what the results so far ask for."""
        points = points_table(self.folder)
        points = points[points["status"] == "finished"]
        if points.empty:
            return NextSeed(state="no selection", reason="No run of the first pass has finished.")
        score, values = self.spec.select.score, secrets_table(self.folder)
        assert score is not None, "adaptive seeds follow a score"
        by_secret = (values, score) if (values["score"] == score).any() else None
        # The budget is compute C = b·T, in costs of the first pass, without what is spent.
        limits = SeedLimits(
            at_most=self.seeds.at_most,
            compute=(self.seeds.max_cost_share - self._cost_share()) * self._cost(self._first),
            **self.seeds.precision(),
        )
        return next_seed(
            points,
            constraints_of(self.spec.select),
            limits,
            begun=Counter(self._trials[run_id].configuration for run_id in self._given),
            by_secret=by_secret,
            logarithmic=is_logarithmic(self.folder, score),
        )

    def _end(self, step: NextSeed) -> None:
        """Write down how the seeds ended, and which planned runs were not needed."""
        self.finished = True
        reason = step.reason
        # A limit of the user ended the seeds: name it, and how to go on.
        if step.limit is not None:
            now = f"{getattr(self.seeds, step.limit):g}"
            reason = f"{reason} To go on, raise seeds.{step.limit} (now {now}) and run `raydp sweep SPEC --resume`."
        end = SeedsEnd(
            state=str(step.state),
            reason=reason,
            further_runs=len(self._given) - len(self._first),
            cost_share=self._cost_share(),
            left_out=tuple(run_id for run_id in self._trials if run_id not in self._given),
            measured_again=self._measured_again(),
        )
        self.folder.seeds_end.write(end)

    def _measured_again(self) -> str | None:
        """Return a sentence on the finer measurement; None if there was none."""
        if (
            self.finer is None
            or not self.finer.is_begun()
            or self.finer.own.name != self.spec.select.score
        ):
            return None
        lost = len(self.finer.failures())
        kept = (
            f" {lost} of the models could not be measured, and keep the value of their training."
            if lost
            else ""
        )
        return (
            f"The first pass left the decision open, so {self.finer.own.name} was measured again "
            f"with {self.finer.in_words()}.{kept}"
        )

    def _cost_share(self) -> float:
        """Return the cost of the further runs that were given out, in costs of the first pass."""
        return self._cost(self._given) / self._cost(self._first) - 1

    def _cost(self, run_ids: Sequence[str]) -> float:
        trials: list[TrialPlan] = [self._trials[run_id] for run_id in run_ids]
        return float(sum(trial.batch_size * trial.num_steps for trial in trials))

    def _give(self, run_ids: Sequence[str]) -> None:
        self._given.extend(run_ids)
        self._waiting.extend(run_id for run_id in run_ids if not self.folder.has_ended(run_id))
