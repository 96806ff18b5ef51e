"""One run in one worker: reset the adapter, train, measure, save.

The module knows neither Ray nor MLflow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.analysis.tables.statements import Statement
from raydp.models import adapters
from raydp.models import base_models as models
from raydp.models.families import family_of
from raydp.models.pretrained import PretrainedModel
from raydp.models.quantization import quantise
from raydp.plugins.registries import service
from raydp.privacy import Event
from raydp.scores.score import Measurement, measured
from raydp.spec.document import SweepSpec
from raydp.sweep.engine.stopping import check_steps, evaluations_between
from raydp.sweep.engine.trial_observers import EarlyEnd, Heartbeats, StepEvaluation, TrialControl
from raydp.sweep.store.folder import BASE_RUN
from raydp.sweep.store.results import RunResult, VariantFigures
from raydp.sweep.store.transfer import TrialFiles
from raydp.system.cache import cache_dir
from raydp.tasks.task import Task
from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.wrappers.twins import for_seed
from raydp.training import probe, sharding
from raydp.training.comm import Comm
from raydp.training.gradients.memory import TokenBudget, recompute_layers, state_bytes, take_share
from raydp.training.observers import Accounting, Observer, ObservingTask, TaskObserver
from raydp.training.rank0 import on_rank_0
from raydp.training.trial import Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from raydp.spec.sections import ModelSpec


def prefix_folder() -> Path:
    """Return the folder of this machine for hidden states below the first adapter."""
    return cache_dir() / "prefix"


T = TypeVar("T")


def with_chat_template(
    tokenizer: PreTrainedTokenizerBase | None, template: str | None
) -> PreTrainedTokenizerBase:
    """Return a tokenizer with a chat template; the given one, which runs share, stays as it is."""
    changed = copy(tokenizer) if template is not None else tokenizer
    if template is not None and changed is not None:
        changed.chat_template = template
    return cast("PreTrainedTokenizerBase", changed)


def runs_on(model: ModelSpec, spec: SweepSpec, trials: Sequence[TrialPlan]) -> list[TrialPlan]:
    """Return the planned runs of a sweep whose section on the model is this one."""
    sections = {
        settings: spec.of_run(settings).model for settings in {trial.settings for trial in trials}
    }
    return [trial for trial in trials if sections[trial.settings] == model]


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """Utility and scores of a model."""

    utility_loss: float
    scores: dict[str, Measurement]


class TrialRunner:
    """Trains the runs of a sweep one after another on one copy of the base model.

    Args:
        pretrained: the base model; the adapter is attached to it in place.
        key: the sweep's secret key.
        prepare: takes what the runner does before it can run, in words; None says nothing.
        planned: all runs that are planned. The frozen prefix is computed if it saves more than it
            costs for them; if they are unknown, it is computed.
    """

    def __init__(
        self,
        spec: SweepSpec,
        task: Task,
        pretrained: PretrainedModel,
        comm: Comm,
        key: bytes,
        *,
        prepare: Callable[[str], object] | None = None,
        planned: Sequence[TrialPlan] | None = None,
    ) -> None:
        self.comm = comm
        say = prepare or (lambda work: None)
        say("loads the base model")
        self._spec = spec
        self._key = key
        adapter = spec.model.adapter
        self._sharded = spec.cluster.sharding == "full" and comm.world_size > 1
        # Quantise before the adapter is attached, whose own weights stay in full precision.
        quantise(pretrained, comm.device)
        model = adapters.attach_adapter(pretrained, adapter, copy=not self._sharded)
        full = adapter.trains_base
        # Place the model: in parts over the ranks, or whole on this rank's share of the GPU.
        trained = adapters.trainable_parameters(model, adapter)
        if self._sharded:
            sharding.shard(model, comm, replicated=set() if full else set(trained.values()))
        else:
            needed = state_bytes(model, trained, copied=full)
            take_share(comm.device, spec.cluster.gpus_per_worker, needed)
            model.to(comm.device)
        # Look the parameters up after the placement, because sharding replaces them.
        self._parameters = adapters.trainable_parameters(model, adapter)
        self._start = adapters.starting_values(model, adapter)
        self._loaded = models.LoadedModel(
            model=model,
            tokenizer=with_chat_template(pretrained.tokenizer, task.facts().chat_template),
            base_weights=self._start if full else {},  # an adapter is switched off instead
        )
        self._autocast = torch.bfloat16 if spec.model.autocasts_on(comm.device.type) else None
        self._task = self._given = task
        say("checks that examples do not depend on each other")
        # Clipping bounds one example's influence only if no example changes another's gradient.
        context = TrainingContext(model=model, parameters=self._parameters, autocast=self._autocast)
        self._clipping_checked = clipped = spec.method.params.max_grad_norm is not None
        probe.check(context, task, model=spec.model.name, clipped=clipped, sharded=self._sharded)
        if spec.cluster.gradient_checkpointing:
            # Recompute activations in the backward pass: slower, but with less memory.
            recompute_layers(model)
        self._budget = _budget(spec, pretrained, comm.device)
        # Layers below the first trained layer never change, so their outputs are computed once.
        if isinstance(task, LanguageModelingTask) and not self._sharded:
            self._task = self._with_prefix(task, pretrained.weight_hash, planned, say)
        say("waits for a run")

    def _with_prefix(
        self,
        task: LanguageModelingTask,
        weight_hash: str,
        planned: Sequence[TrialPlan] | None,
        say: Callable[[str], object],
    ) -> LanguageModelingTask:
        """Return the task with the frozen prefix, if it saves more than it costs."""
        if (keep_states := service("keep_states", needed_by=None)) is None:
            return task
        say("looks for the frozen prefix, which the workers compute together")
        model, cluster = self._spec.model, self._spec.cluster
        tokens = float("inf")  # without a plan, nothing is known against computing the prefix
        if planned is not None:
            count_fn = service("planned_tokens", needed_by=None)
            tokens = count_fn(task, planned, self._evaluations)
        kept: LanguageModelingTask = keep_states(
            task,
            self._loaded.model,
            self._parameters,
            weight_hash=weight_hash + (model.quantization or ""),
            folder=prefix_folder(),
            max_bytes=cluster.prefix_cache_gib * 2**30,
            say=logging.getLogger(__name__).warning,
            progress=lambda share: say(
                f"computes the frozen prefix with the others, {share:.0%} of it is done"
            ),
            planned_tokens=tokens,
        )
        return kept

    def turn_to(
        self, spec: SweepSpec, *, task: Task | None = None, key: bytes | None = None
    ) -> bool:
        """Go on with the runs of a spec that has other further fields.

        Return False if they need another model, or a check of this one that was not made.

        Args:
            task, key: those of another sweep; None keeps the present ones.
        """
        # Another model section means another adapter or other weights.
        clips = spec.method.params.max_grad_norm is not None
        if (
            spec.model != self._spec.model
            or (task is not None and task is not self._given)
            or (clips and not self._clipping_checked)
        ):
            return False
        self._spec, self._key = spec, key or self._key
        return True

    def run(
        self,
        plan: TrialPlan,
        files: TrialFiles,
        attempt: str,
        control: TrialControl | None = None,
        accounted: Event | None = None,
    ) -> RunResult | None:
        """Train and score one run. Every rank calls this method; rank 0 measures and saves.

        Args:
            files: the run's checkpoints, ledger and model.
            attempt: names the model until it is committed.
            control: follows the run on rank 0, and may pause or end it.
            accounted: event of the run's privacy record; None for a run without one.

        Returns:
            The result to commit on rank 0, else None. A run that ended at a check has no model.

        Raises:
            Paused: the control asked for a pause. The state is saved.
        """
        # Train nothing but the accounted event: the privacy record must stay true.
        if accounted is not None:
            self._require(plan, accounted)
        # Reset the trained weights, which depend on the run's seed and on no earlier run.
        start = self._untrained(plan.seed) or self._start
        adapters.initialise(self._parameters, self._spec.model.adapter, start, plan.seed)
        # The ledger counts the noisy steps of all attempts. Rank 0 alone writes it.
        ledger, notes = files.ledger(), list[str]()
        accounting = Accounting(event=accounted, ledger=ledger if self.comm.rank == 0 else None)
        early, own = self._early_end(plan, control), self._task_observer(plan)
        context = self._context(accounting, control, early, own)
        store = files.checkpoints(notes.append)
        # Train by the method, from the newest checkpoint if there is one.
        task = for_seed(self._task, plan.seed)
        trained = self._spec.method.params.train(plan, context, task, self.comm, self._key, store)
        result = RunResult(
            run_id=plan.run_id,
            status="stopped",
            history=trained.history,
            ledger=ledger.summary(),
            resumed_from=trained.resumed_from,
            train_seconds=trained.seconds,
            details=dict(trained.details),
            notes=tuple(notes),
        )
        # A stopped run has no model, and its utility was measured at the check.
        if trained.ended_early:
            reason = None if early is None else early.reason
            return replace(result, reason=reason) if self.comm.rank == 0 else None
        observed = None if own is None else own.seen(plan, self._spec.method.name)
        return self._finished(result, plan.seed, trained, files, attempt, observed)

    def _require(self, plan: TrialPlan, accounted: Event) -> None:
        """Check that training as planned is the accounted event, on as many units as there are.

        Raises:
            ValueError: it is another event, or another number of units.
        """
        trains, units = (
            self._spec.method.params.event(plan, plan.noise_multiplier),
            self._task.facts().num_units,
        )
        if (trains, plan.num_examples) != (accounted, units):
            raise ValueError(
                f"run {plan.run_id} must train as its privacy record says, {accounted} of {units} "
                f"units, got {trains} of {plan.num_examples}. Restore plan.json, or start a new "
                "sweep."
            )

    def _evaluations(self, plan: TrialPlan) -> int:
        """Return how often a run measures its utility, if it is not stopped early."""
        return 1 + evaluations_between(self._spec, plan.num_steps)

    def _task_observer(self, plan: TrialPlan) -> TaskObserver | None:
        """Return the observer that the task adds to a run; None if it adds none."""
        if not isinstance(self._task, ObservingTask):
            return None
        num_trained = sum(parameter.numel() for parameter in self._parameters.values())
        return self._task.observer(plan, num_trained)

    def _early_end(self, plan: TrialPlan, control: TrialControl | None) -> EarlyEnd | None:
        """Return what ends the run at its checks; None without checks."""
        stopping = self._spec.stopping
        if stopping is None or control is None:
            return None
        checks = check_steps(plan.num_steps, stopping.checks)
        return EarlyEnd(checks, control, self._utility, self.comm)

    def _utility(self) -> float | None:
        """Measure the utility loss. Return it on rank 0, None on the other ranks."""
        return self._on_rank_0(lambda loaded: self._task.utility(loaded.model))

    def _context(
        self,
        accounting: Accounting,
        control: TrialControl | None,
        early: EarlyEnd | None,
        own: TaskObserver | None,
    ) -> TrainingContext:
        """Return what the method is given to train."""
        every = self._spec.evaluate_every
        observers: list[Observer | None] = [
            own,
            None if every is None else StepEvaluation(every, self._utility),
            None if control is None else Heartbeats(control),
            early,
        ]
        cluster = self._spec.cluster
        return TrainingContext(
            model=self._loaded.model,
            parameters=self._parameters,
            microbatch_size=cluster.microbatch_size,
            budget=self._budget,
            autocast=self._autocast,
            checkpoint_seconds=cluster.checkpoint_seconds,
            accounting=accounting,
            observers=tuple(observer for observer in observers if observer is not None),
            pause_fn=(lambda: False) if control is None else control.must_pause,
            virtual_units=range(0) if own is None else own.units,
        )

    def _finished(
        self,
        result: RunResult,
        seed: int,
        trained: Trained,
        files: TrialFiles,
        attempt: str,
        observed: NDArray[np.float64] | None,
    ) -> RunResult | None:
        """Measure and save the trained model; return the result on rank 0, None on the others."""
        started = time.perf_counter()
        # Measure the model and its variants: rank 0 measures, the others help with sharded weights.
        measured = self._on_rank_0(
            lambda loaded: self._measure(replace(loaded, observed=observed), seed)
        )
        variants = self._measure_variants(trained.variants, seed)
        # Every rank takes part in gathering sharded weights, so no rank may return before.
        weights = None
        if sharding.in_parts(self._parameters):
            weights = sharding.gathered(self._loaded.model.state_dict(keep_vars=True), self.comm)
        if measured is None:
            return None
        # Save the model. The hash is of the files, as others will load them.
        own = self._task.facts().chat_template is not None
        tokenizer = self._loaded.tokenizer
        folder = files.model_folder(attempt)
        adapters.save_trained(self._loaded.model, tokenizer, folder, weights, own_tokenizer=own)
        weight_hash = models.weight_hash(folder)
        files.hand_over(attempt)
        return replace(
            result,
            status="finished",
            attempt=attempt,
            weight_hash=weight_hash,
            utility_loss=measured.utility_loss,
            scores=measured.scores,
            variants=variants,
            score_seconds=time.perf_counter() - started,
        )

    def _untrained(self, seed: int) -> dict[str, torch.Tensor] | None:
        """Return the initial weights of a seed; None for a model that has weights of its own."""
        name = self._spec.model.name
        family, added = family_of(name), self._task.facts().num_new_tokens
        return None if family is None else family.initial_weights(name, seed, added)

    def measure_base(self, seed: int) -> RunResult | None:
        """Measure the untrained base model; return the result on rank 0, None on the others."""

        def measure(loaded: models.LoadedModel) -> _Measured:
            # Without its adapter, or with the weights that it had before training.
            with loaded.base() as base:
                return self._measure(base, seed)

        if (measured := self._on_rank_0(measure)) is None:
            return None
        return RunResult(
            run_id=BASE_RUN,
            status="finished",
            utility_loss=measured.utility_loss,
            scores=measured.scores,
        )

    def _measure_variants(
        self, variants: Mapping[Statement, Callable[[], None]], seed: int
    ) -> tuple[VariantFigures, ...]:
        """Measure utility and scores at each stated ε. The weights are restored afterwards."""
        # The variants overwrite the run's own weights, which are saved afterwards.
        kept = (
            {name: p.detach().clone() for name, p in self._parameters.items()} if variants else {}
        )
        figures = []
        for stated, put in variants.items():
            put()
            measured = self._on_rank_0(lambda loaded: self._measure(loaded, seed))
            if measured is not None:
                loss, scores = measured.utility_loss, measured.scores
                figures.append(VariantFigures(stated=stated, utility_loss=loss, scores=scores))
        for name, values in kept.items():
            self._parameters[name].data.copy_(values)
        return tuple(figures)

    def _on_rank_0(self, work_fn: Callable[[models.LoadedModel], T]) -> T | None:
        if self._sharded:
            return on_rank_0(self._loaded, self.comm, work_fn)
        return work_fn(self._loaded) if self.comm.rank == 0 else None

    def _measure(self, loaded: models.LoadedModel, seed: int) -> _Measured:
        task = for_seed(self._task, seed)
        utility = task.utility(loaded.model)
        # A diverged run fails: NaN would be neither better nor worse than another loss.
        if not torch.isfinite(torch.tensor(utility)):
            raise FloatingPointError(
                f"utility_loss is {utility} after training; the learning rate is too large"
            )
        scores = {s.name: measured(s.params, loaded, task, seed=seed) for s in self._spec.scores}
        return _Measured(utility_loss=utility, scores=scores)


def _budget(spec: SweepSpec, pretrained: PretrainedModel, device: torch.device) -> TokenBudget:
    """Return the token budget of a micro-batch, as measured before for this model and device."""
    return TokenBudget.remembered(
        device,
        cache_dir() / "microbatch",
        pretrained.weight_hash,
        spec.model.model_dump(mode="json"),
        spec.cluster.gradient_checkpointing,
        spec.cluster.gpus_per_worker,
        spec.cluster.sharding,
        width=getattr(getattr(pretrained.model, "config", None), "hidden_size", None),
    )
