"""The end of a private selection: release the best run, and nothing about the others.

The chosen model, its card, and what follows from the model and public data leave the sweep's
folder. MLflow is opened only at the end. Otherwise the times in MLflow would reveal how long the
sweep took.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import pandas as pd

from raydp.analysis import Selection, load_points, write_report
from raydp.analysis.selection.selected import SelectionStep
from raydp.analysis.tables.points import configurations
from raydp.extensions.private_selection.calibration import selection_guarantee
from raydp.extensions.private_selection.section import best_in_words, by_least_leak, num_runs_of
from raydp.privacy import PrivacyCard
from raydp.spec.document import SweepSpec
from raydp.sweep.ending.finish import Finish, carried, set_aliases
from raydp.sweep.ending.notes import about
from raydp.sweep.ending.sweep_selection import of_sweep
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.engine.listeners import SilentListener
from raydp.sweep.engine.recorder import Recorder, patiently
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.points import counts, points_table, write_tables
from raydp.sweep.store.results import RunResult
from raydp.sweep.store.runs import is_damaged
from raydp.sweep.store.summary import ReleasedModels, SelectedConfiguration, SweepSummary
from raydp.tasks.task import TaskFacts
from raydp.tracking import NotDeliveredError, TrialRecord
from raydp.tracking.records import BEST_UTILITY, PRIVACY_PREFERRED
from raydp.training.trial_plan import TrialPlan

PUBLIC_FACTS = ("num_units", "privacy_unit", "content_hash", "utility_is_public")
"""Facts of the data that are on the card in any case.

Counts of texts, copies and secrets stay in the folder.
"""
PUBLIC_METRICS = ("utility_loss", "base_utility_loss", "utility_gain")
"""Metrics that depend only on the released model, the base model and public data."""


def decided(folder: SweepFolder) -> bool:
    """Return whether the sweep is a private selection that has chosen.

    Nothing may change the choice any more.
    """
    return folder.decision() is not None


def decide(folder: SweepFolder) -> str | None:
    """Choose the run to release, and write the choice down once, before anything is released.

    The run with the lowest utility loss is chosen, or the one that leaks least of those that are
    useful enough (see `by_least_leak`); of equal runs, the first in the order of the draw. A failed
    run counts as the worst run and is never chosen.

    Returns:
        The chosen run; None if no run has finished.
    """
    # A choice is made once. A second choice, from other results, would not be covered by ε.
    if (decision := folder.decision()) is not None:
        return decision
    results = {trial.run_id: folder.result(trial.run_id) for trial in folder.plan().trials}
    assert None not in results.values(), "a private selection chooses when every run has ended"
    spec = folder.spec()
    ranks = {k: _rank(r, spec) for k, r in results.items() if r is not None and r.finished}
    if not ranks:
        return None
    run_id = min(ranks, key=lambda k: ranks[k])
    folder.decision.write(run_id)
    return run_id


def _rank(result: RunResult, spec: SweepSpec) -> tuple[bool, float]:
    """Return the place of a run in the order of the choice. It depends on this run alone."""
    select, figure, useless = spec.select, result.loss, False
    if by_least_leak(spec):
        assert select.max_loss is not None, "the section asks for it"
        assert select.score is not None, "the section asks for it"
        # If no run is useful enough, the most useful one is released.
        useless = not result.loss <= select.max_loss
        figure = result.loss if useless else result.scores[select.score].value
    # An order has a place for every figure.
    return useless, math.inf if math.isnan(figure) else figure


def release_best(context: SweepContext) -> Finish:
    """Choose a run, register its model alone, set the aliases, and write the report."""
    run_id = decide(context.folder)
    if run_id is None:
        reason = "the number of runs was drawn as 0: nothing was trained or released"
        if context.trials:
            reason = "every run failed: `raydp status` says why"
        return Finish(reason=reason)
    try:
        return patiently(lambda: _release(context, run_id))
    except NotDeliveredError as error:
        reason = (
            f"the choice is made, and was not recorded in MLflow ({error}). Once the server is "
            "there, `raydp sweep SPEC --resume` registers the chosen model and trains nothing"
        )
        return Finish(reason=reason)


def _release(context: SweepContext, run_id: str) -> Finish:
    """Release the chosen run."""
    folder = context.folder
    refusal = None if context.budget is None else context.budget.refused([run_id])
    if refusal is not None:
        return Finish(reason=refusal)
    releaser = Releaser.open(context)
    # The chosen model alone reaches MLflow. Its cost is the cost of the whole choice.
    together = releaser.release_run(run_id)
    points = load_points(write_tables(folder), scored=False)
    selection = released_selection(folder)
    names = (
        (PRIVACY_PREFERRED,) if by_least_leak(context.spec) else (BEST_UTILITY, PRIVACY_PREFERRED)
    )
    aliases = dict.fromkeys(names, selection)
    end = Finish(selected=selection, best_utility=selection, report=folder.report)
    with carried(end):
        set_aliases(releaser.tracker, aliases)
        write_report(points, selection, folder.report, **about(folder))
        chosen = selection.to_dict()
        folder.summary.write(
            SweepSummary(
                counts=counts(folder),
                selected=SelectedConfiguration.from_json(chosen),
                released=together,
                aliases=dict.fromkeys(aliases, str(selection.model_uri)),
            )
        )
        # A score of private secrets, which ε does not cover, stays in the folder. The score of twins
        # is a figure of the released model.
        covered = by_least_leak(context.spec)
        public = {name: value for name, value in chosen.items() if covered or name != "score"}
        releaser.tracker.finish_sweep({"selected": public, "released_together": together.to_json()})
    return end


def released_selection(folder: SweepFolder) -> Selection:
    """Return the selection of a private selection that has ended.

    Raises:
        ValueError: the sweep has not ended, or has released nothing.
    """
    points, decision, spec = points_table(folder), folder.decision(), folder.spec()
    if decision is None:
        raise ValueError(
            "SWEEP must be a private selection that has released a model, got "
            f"{folder.path.name!r}, which has not. Go on with it by --resume; `raydp status` says "
            "what is left."
        )
    # Exactly one row: no figure of another run may enter.
    (row,) = points[points["run_id"] == decision].to_dict("records")
    (configuration,) = configurations(pd.DataFrame([row]))
    # The selection has one step. It names the rule, and none of the runs that it dropped.
    step = SelectionStep(
        name="private selection",
        rule=f"the best run, {best_in_words(spec)}; of the others nothing is told",
        survivors=(configuration,),
        dropped=(),
    )
    score = row["score"]
    selection = Selection(
        configuration=configuration,
        utility_loss=row["utility_loss"],
        score=None if score is None or pd.isna(score) else float(score),
        rule=spec.select.rule,
        steps=(step,),
        model_uri=row["model_uri"],
        epsilon=float(row["epsilon"]),
        delta=row["delta"],
    )
    return of_sweep(selection, folder)


def select_released(folder: SweepFolder, **options: object) -> Selection:
    """Answer `select` on a private selection with the released model.

    Args:
        options: the options of `select` that the user gave.

    Raises:
        ValueError: the options have another rule or a constraint, or nothing has been released.
    """
    # Asking for the rule of the release is no other choice.
    rule = folder.spec().select.rule
    asked = {k: v for k, v in options.items() if v is not None and (k, v) != ("rule", rule)}
    if asked:
        name, value = next(iter(asked.items()))
        raise ValueError(
            f"{name} must be left out for a sweep with privacy.tuning private_selection, got "
            f"{value!r}. Its guarantee covers the one model that it released; any other choice "
            "would have none."
        )
    return released_selection(folder)


class PrivateSelectionEnding:
    """Ends a private selection: one run is released. See `SelectionEnding`."""

    def __init__(self, context: SweepContext) -> None:
        self._context = context
        self.listener = SilentListener()

    def is_over(self) -> bool:
        """Return whether no run was drawn, or the choice is made and may not change any more."""
        return not self._context.trials or decided(self._context.folder)

    def finish(self) -> Finish:
        """Choose a run and release it."""
        return release_best(self._context)


@dataclass(kw_only=True)
class Releaser(Recorder):
    """Hands the chosen run to MLflow, with the guarantee of the whole choice.

    Step metrics, scores and times are left out.
    """

    @classmethod
    def _public_facts(cls, facts: TaskFacts) -> dict[str, object]:
        return {name: value for name, value in asdict(facts).items() if name in PUBLIC_FACTS}

    def release_run(self, run_id: str) -> ReleasedModels:
        """Register the run's model, and write the model's cost to the folder and onto its card."""
        # The choice stands, so a damaged model is an error and no failed run.
        require_whole_model(self.context.folder, run_id)
        self.deliver(self.context.trials[run_id])
        together = self._together(run_id)
        self.context.folder.released.write(together)
        return together

    def _together(self, run_id: str) -> ReleasedModels:
        """Return the cost of the one released model, which is the cost of the whole choice."""
        accounted = self.context.plan.privacy[run_id].accounted
        return ReleasedModels(
            run_ids=(run_id,),
            epsilon=accounted.epsilon,
            delta=accounted.delta,
            accountant=accounted.accountant,
        )

    def _privacy(self, trial: TrialPlan, result: RunResult) -> PrivacyCard:
        spec = self.context.spec
        # The guarantee covers every configuration that could have been drawn, drawn or not.
        events = [
            spec.of_run(t.settings).method.params.event(t, t.noise_multiplier)
            for t in self._configurations()
        ]
        return PrivacyCard(
            record=self.context.plan.privacy[trial.run_id],
            guarantee=selection_guarantee(
                events, num_runs_of(self.context.spec), self.context.spec.privacy.accountant
            ),
            ledger=result.ledger,
            released_together=self._together(trial.run_id).on_card(),
        )

    def _configurations(self) -> list[TrialPlan]:
        """Return one run for each configuration that could have been drawn, drawn or not."""
        return list(self.context.plan.configurations)

    def _record(self, trial: TrialPlan, result: RunResult) -> TrialRecord:
        record = super()._record(trial, result)
        metrics = {name: record.metrics[name] for name in PUBLIC_METRICS if name in record.metrics}
        # Step metrics and times depend on the private data in ways that ε does not cover.
        return replace(record, step_metrics=(), metrics=metrics, seconds=None)


def require_whole_model(folder: SweepFolder, run_id: str) -> None:
    """Check the weights of the chosen run, because the choice may not change any more.

    Raises:
        ValueError: the weights changed since they were saved.
    """
    result = folder.result(run_id)
    if result is not None and is_damaged(folder.model(run_id), result):
        raise ValueError(
            "SWEEP must keep the weights of its chosen run, got others in "
            f"{str(folder.model(run_id))!r}. Restore them from a copy, and continue with --resume."
        )
