"""Hands committed results to MLflow, once each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NotRequired, Self, TypedDict, TypeVar, cast

from raydp import tracking
from raydp.analysis.statistics.results import given
from raydp.analysis.tables.statements import stated_columns
from raydp.methods.method import Method
from raydp.privacy import PrivacyCard, Searched, card_markdown, composed, guarantee
from raydp.privacy.accounting.documents import ComposedCost, Guarantee
from raydp.search_spaces.settings import Settings
from raydp.spec.document import SweepSpec
from raydp.spec.sections import AdaptiveSeeds
from raydp.sweep.deliveries import check_deliveries
from raydp.sweep.descriptions import adapter_in_words, describe_model
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.store.folder import BASE_RUN
from raydp.sweep.store.measurements import measured_later, scores_of, variant_figures, words_of
from raydp.sweep.store.results import RunResult
from raydp.sweep.store.runs import DAMAGED
from raydp.sweep.store.state import Delivery
from raydp.sweep.store.summary import ReleasedModels
from raydp.sweep.tuning_record import tuning_of
from raydp.system.cache import cache_dir
from raydp.system.output import phase, stderr, strict
from raydp.tasks.task import TaskFacts
from raydp.tracking import NotDeliveredError, Pauses, Tracker, TrialRecord
from raydp.training.trial_plan import TrialPlan

T = TypeVar("T")
LOGGER = logging.getLogger(__name__)
PATIENCE_SECONDS = 90.0
"""How long the end of a sweep waits for a tracking store that does not answer.

A restart of the server takes less.
"""
RETRY_SECONDS = 5.0


def patiently(action_fn: Callable[[], T]) -> T:
    """Repeat an action, at most for `PATIENCE_SECONDS`, until the tracking store answers.

    Raises:
        NotDeliveredError: the store did not answer in this time.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with tracking.delivering():
                return action_fn()
        except NotDeliveredError:
            if time.monotonic() + RETRY_SECONDS > deadline:
                raise
            time.sleep(RETRY_SECONDS)


class RunParams(TypedDict):
    """Parameters of a run for the tracker: (b, T, η), the seed, and any further fields as text."""

    batch_size: int
    num_steps: int
    learning_rate: float
    seed: int
    settings: NotRequired[str]


@dataclass(kw_only=True)
class Recorder:
    """Hands committed runs to the tracker, then marks in the folder that the tracker has them.

    A `RunListener`.
    """

    context: SweepContext
    tracker: Tracker
    parent_run: str
    _searched: Searched | None = None  # the same for every run
    _pauses: Pauses = field(default_factory=Pauses)
    _why: str = ""  # why the store did not answer the last delivery; empty if it answered

    @classmethod
    def open(cls, context: SweepContext) -> Self:
        """Open the sweep's record in the tracker, or the record that an earlier driver opened."""
        spec, folder = context.spec, context.folder
        tracker = tracking.open_tracker(spec.tracking)
        # The path of the signing key stays out of the tracker, which others read.
        written = spec.model_dump(mode="json", exclude={"tracking": {"signing_key"}})
        parent = tracker.sweep_run(
            context.plan.sweep_id, spec.name, written, cls._public_facts(context.facts)
        )
        if folder.tracking_run() != parent:  # another store, without this sweep
            folder.set_tracking_run(parent)
        # The store may have lost runs that the folder marks as delivered.
        check_deliveries(folder, tracker)
        tuned = tuning_of(spec, list(context.trials.values()))
        return cls(context=context, tracker=tracker, parent_run=parent, _searched=tuned)

    @classmethod
    def _public_facts(cls, facts: TaskFacts) -> dict[str, object]:
        """Return the facts of the data that the tracker gets."""
        return asdict(facts)

    def committed(self, trial: TrialPlan) -> None:
        """Hand a committed run to MLflow.

        If MLflow does not answer, the run waits in the folder and training goes on. When MLflow
        answers again, the next delivery includes the runs that wait.
        """
        # After a failure, wait before the next attempt: training must not wait for the store.
        if not self._pauses.over():
            return
        # After an outage, the runs that waited are delivered with this one.
        waiting = self.undelivered() if self._why else [trial]
        try:
            for one in waiting:
                self.deliver(one)
        except NotDeliveredError as error:
            self._pauses.failed()
            if not self._why:
                LOGGER.warning(
                    "MLflow is away, runs wait in %s: %s", self.context.folder.path, error
                )
            self._why = str(error)
            return
        if self._why:
            LOGGER.info("MLflow answers again: the %d runs that waited are delivered", len(waiting))
        self._why = ""
        self._pauses.succeeded()

    def deliver_missing(self, trials: Sequence[TrialPlan]) -> None:
        """Deliver the runs that wait; wait for a silent store as long as its restart takes."""
        if count := len(self.undelivered()):
            LOGGER.info("Register the runs that MLflow has not got: %d", count)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while waiting := [trial for trial in trials if self._waits(trial)]:
            try:
                for trial in waiting:
                    self.deliver(trial)
            except NotDeliveredError as error:
                self._why = str(error)
                if time.monotonic() + RETRY_SECONDS > deadline:
                    return
                time.sleep(RETRY_SECONDS)

    def undelivered(self) -> list[TrialPlan]:
        """Return the committed runs that MLflow has not got."""
        return [trial for trial in self.context.trials.values() if self._waits(trial)]

    def not_delivered(self, reason: str = "") -> str:
        """Say what MLflow has not got, and which command delivers it."""
        waiting, all_runs = len(self.undelivered()), len(self.context.trials)
        what = (
            f"{waiting} of {all_runs} runs"
            if waiting
            else "all runs, but not their end and the aliases"
        )
        had = "has not got" if waiting else "has got"
        return (
            f"MLflow {had} {what} ({reason or self._why}). Everything is in "
            f"{self.context.folder.path}; once it is there, `raydp sweep SPEC --resume` delivers "
            "what is missing, once each, and trains nothing again"
        )

    def _waits(self, trial: TrialPlan) -> bool:
        result, delivery = (
            self.context.folder.result(trial.run_id),
            self.context.folder.delivery(trial.run_id),
        )
        return result is not None and (delivery is None or delivery.status != result.status)

    def deliver(self, trial: TrialPlan) -> None:
        """Hand a committed run to MLflow, unless the folder says that MLflow has the run.

        Raises:
            NotDeliveredError: the store does not answer.
        """
        if not self._waits(trial):
            return
        # Check the model's files first: a damaged model must not be registered.
        result = self.context.folder.fail_if_damaged(trial.run_id)
        assert result is not None, "a run that waits has a result"
        if result.reason == DAMAGED:
            LOGGER.warning(
                "run %s is not registered: %s. --resume trains it again", trial.run_id, DAMAGED
            )
        if result.finished:
            uri = self.tracker.log_trial(self._described(trial, result))
        else:
            self.tracker.fail_trial(
                trial.run_id, str(result.reason), self._params(trial), status=result.status
            )
            uri = None
        LOGGER.debug("MLflow has run %s (%s)", trial.run_id, uri or result.status)
        # Mark it last: after a crash before this line, the run is handed over again under its id.
        self.context.folder.set_delivery(
            trial.run_id, Delivery(status=result.status, model_uri=uri)
        )

    def release(self) -> ReleasedModels | None:
        """Write the joint cost of all registered models to the folder and onto every card.

        Returns:
            The joint cost; None without models.
        """
        # Every registered model counts, selected or not: whoever reads the registry has them all.
        released = [
            t
            for t in self.context.trials.values()
            if self.context.folder.model_uri(t.run_id) is not None
        ]
        if not released:
            return None
        delta, accountant = self.context.plan.delta, self.context.spec.privacy.accountant
        # The joint ε composes the events of all models, by the sweep's own accountant.
        with phase(
            stderr, f"composing the joint ε of {len(released)} models by accountant {accountant}"
        ):
            cost = cost_together(
                {t.settings: self._spec_of(t).method.params for t in released},
                released,
                delta,
                accountant,
                cache_dir=cache_dir() / "guarantee",
            )
        together = ReleasedModels(
            run_ids=tuple(t.run_id for t in released), **cost, note=self._steered()
        )
        self.context.folder.released.write(together)
        # A card states the joint ε because the model's own ε holds for this model alone.
        with phase(stderr, f"writing the joint ε onto the cards of {len(released)} models"):
            for trial in released:
                self._update_card(trial, together)
        return together

    def reopened(self) -> None:
        """Take the joint cost of an earlier end off all cards, because further models follow."""
        folder = self.context.folder
        before = folder.released()
        for run_id in () if before is None else before.run_ids:
            self._update_card(self.context.trials[run_id], None)
        folder.reopen()

    def _update_card(self, trial: TrialPlan, together: ReleasedModels | None) -> None:
        """Write a registered model's card anew, with the joint cost if it is known."""
        result = self.context.folder.result(trial.run_id)
        assert result is not None, "a registered model has a result"
        card = replace(
            self._privacy(trial, result), released_together=together.on_card() if together else None
        )
        record = replace(
            self._described(trial, result), privacy=card.to_json(), card=card_markdown(card)
        )
        self.tracker.update_privacy(str(self.context.folder.model_uri(trial.run_id)), record)

    def _steered(self) -> str | None:
        """Return a note if results chose which runs came next, which the joint ε does not cover."""
        spec = self.context.spec
        if isinstance(spec.seeds, AdaptiveSeeds):
            return "which configurations got further seeds was chosen by utility and scores, which are not covered"
        if spec.space.search is None or spec.space.search.name == "random":
            return None
        return "which configurations ran was chosen by utility and scores, which are not covered"

    def _privacy(self, trial: TrialPlan, result: RunResult) -> PrivacyCard:
        """Return the run's privacy record, with tuning, guarantee and executed steps."""
        event = self._spec_of(trial).method.params.event(trial, trial.noise_multiplier)
        said = guarantee(
            event, self.context.spec.privacy.accountant, cache_dir=cache_dir() / "guarantee"
        )
        return PrivacyCard(
            record=self.context.plan.privacy[trial.run_id],
            searched=self._searched,
            guarantee=cast("Guarantee", strict(said)),  # the same keys; infinite numbers as "inf"
            ledger=result.ledger,
        )

    def _params(self, trial: TrialPlan) -> RunParams:
        params = RunParams(
            batch_size=trial.batch_size,
            num_steps=trial.num_steps,
            learning_rate=trial.learning_rate,
            seed=trial.seed,
        )
        if trial.settings:
            params["settings"] = trial.settings.text
        return params

    def _spec_of(self, trial: TrialPlan) -> SweepSpec:
        """Return the spec with the further fields of a run's configuration."""
        return self.context.spec.of_run(trial.settings)

    def _record(self, trial: TrialPlan, result: RunResult) -> TrialRecord:
        base, card = self.context.folder.result(BASE_RUN), self._privacy(trial, result)
        spec = self._spec_of(trial)
        # Scores from training, replaced where a later measurement has values.
        scores = scores_of(result, trial.run_id, measured_later(self.context.folder))
        method, selected = spec.method.params.model_dump(mode="json"), spec.select.score
        # An inherited parameter that must stay 0 is one of another method.
        for name, one in type(spec.method.params).model_fields.items():
            if any(getattr(bound, "le", None) == 0 for bound in one.metadata):
                method.pop(name, None)
        return TrialRecord(
            run_id=trial.run_id,
            **self._params(trial),
            # Parameters define the run. A stated ε is one of them, and no guarantee.
            params={
                "method": spec.method.name,
                "task_hash": self.context.facts.content_hash,
                **method,
                **trial.settings,
                **given(**stated_columns(card.record.stated)),
                "base_model": _public_name(spec.model.name),
                "adapter": adapter_in_words(spec),
                **given(target_epsilon=spec.privacy.target_epsilon),
            },
            step_metrics=result.history or (),
            # Metrics: the score that selects has one name, so that sweeps can be compared.
            metrics={
                "utility_loss": result.loss,
                **given(score=None if selected is None else scores[selected].value),
                **_against(base, result.loss),
                **{f"score.{name}": m.value for name, m in scores.items()},
                **{f"score.{name}.std_error": m.std_error for name, m in scores.items()},
                **variant_figures(result),
            },
            privacy=card.to_json(),
            card=card_markdown(card),
            # Base model: the name without a local path, which may name people.
            base={
                "name": _public_name(spec.model.name),
                "weight_hash": self.context.weight_hash,
                "dtype": spec.model.weight_dtype,
                **given(quantization=spec.model.quantization, revision=self.context.base_revision),
            },
            model_dir=self.context.folder.model(trial.run_id),
            seconds=(result.train_seconds or 0.0) + (result.score_seconds or 0.0),
        )

    def _described(self, trial: TrialPlan, result: RunResult) -> TrialRecord:
        """Return the run's record with a description that is made from the record alone."""
        record, spec = self._record(trial, result), self._spec_of(trial)
        words = words_of(self.context.folder, spec.select.score)
        promised = self.context.plan.privacy[trial.run_id]
        return replace(record, description=describe_model(record, promised, spec, words))


def cost_together(
    methods: Mapping[Settings, Method],
    trials: Sequence[TrialPlan],
    delta: float,
    accountant: str,
    *,
    cache_dir: Path | None = None,
) -> ComposedCost:
    """Return the joint cost of the models of all these runs.

    Each run counts, also if runs have equal events.

    Args:
        methods: settings -> the method of the runs with these settings.
        trials: the runs.
        delta, accountant: δ of all models together, and the accountant.
        cache_dir: folder of computed costs; None computes always.
    """
    events = [methods[trial.settings].event(trial, trial.noise_multiplier) for trial in trials]
    return composed(events, delta, accountant, cache_dir=cache_dir)


def _against(base: RunResult | None, utility_loss: float) -> dict[str, float]:
    """Return the untrained model's utility and the gain over it, if it could be measured."""
    if base is None or not base.finished:
        return {}
    return {"base_utility_loss": base.loss, "utility_gain": base.loss - utility_loss}


def _public_name(name: str) -> str:
    """Return a base model's name for records: of an absolute path only the last part."""
    return Path(name).name if Path(name).is_absolute() else name
