"""One run in one worker: reset the adapter, train, measure, save. The module knows neither Ray nor MLflow."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.io.cache import cache_dir
from raydp.models import adapters
from raydp.models import base_models as models
from raydp.models.networks import untrained_weights
from raydp.models.pretrained import PretrainedModel
from raydp.models.quantization import quantise
from raydp.privacy import Event
from raydp.scores.base import Measurement, measured
from raydp.spec.document import SweepSpec
from raydp.sweep.engine.stopping import check_steps, evaluations_between
from raydp.sweep.store.folder import BASE_RUN
from raydp.sweep.store.results import ClaimedFigures, RunResult
from raydp.sweep.store.transfer import TrialFiles
from raydp.tasks.base import Task
from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.wrappers.canaries import with_gradient_canaries
from raydp.tasks.wrappers.twins import for_seed
from raydp.training import probe, sharding
from raydp.training.comm import Comm
from raydp.training.gradients.canaries import GradientCanaries
from raydp.training.gradients.memory import TokenBudget, recompute_layers, state_bytes, take_share
from raydp.training.gradients.prefix import planned_tokens, with_frozen_prefix
from raydp.training.ledger import Ledger
from raydp.training.rank0 import on_rank_0
from raydp.training.trial import Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from raydp.spec.sections import ModelSpec


def prefix_folder() -> Path:
    """Return the folder of this machine for hidden states below the first adapter."""
    return cache_dir() / "prefix"


class TrialControl(Protocol):
    """Follows a run, and decides whether it pauses or ends early."""

    def beat(self, step: int, num_steps: int, row: Mapping[str, float]) -> None:
        """Note that training has done `step` of `num_steps` steps; `row` is the newest row of the history."""

    def must_pause(self) -> bool:
        """Return whether the run must save its state and pause."""

    def check(self, name: str, utility_loss: float) -> str | None:
        """Take the utility loss at a named check. Return why the run must end here, or None if it goes on."""


T = TypeVar("T")


def with_chat_template(tokenizer: PreTrainedTokenizerBase | None, template: str | None) -> PreTrainedTokenizerBase:
    """Return a tokenizer that carries a chat template. The given one, which other runs may share, stays as it is."""
    changed = copy(tokenizer) if template is not None else tokenizer
    if template is not None and changed is not None:
        changed.chat_template = template
    return cast("PreTrainedTokenizerBase", changed)


def runs_on(model: ModelSpec, spec: SweepSpec, trials: Sequence[TrialPlan]) -> list[TrialPlan]:
    """Return the planned runs of a sweep whose section on the model is this one."""
    sections = {settings: spec.of_run(settings).model for settings in {trial.settings for trial in trials}}
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
        planned: all runs that are planned. The frozen prefix is computed if it saves more than it costs for them; if
            they are unknown, it is computed.
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
        quantise(pretrained, comm.device)
        model = adapters.attach_adapter(pretrained, adapter, copy=not self._sharded)
        full = adapter.trains_base
        if self._sharded:
            replicated = set() if full else set(adapters.trainable_parameters(model, adapter).values())
            sharding.shard(model, comm, replicated=replicated)
        else:
            needed = state_bytes(model, adapters.trainable_parameters(model, adapter), copied=full)
            take_share(comm.device, spec.cluster.gpus_per_worker, needed)
            model.to(comm.device)
        self._parameters = adapters.trainable_parameters(model, adapter)
        self._start = adapters.starting_values(model, adapter)
        self._loaded = models.LoadedModel(
            model=model,
            tokenizer=with_chat_template(pretrained.tokenizer, task.facts().chat_template),
            base_weights=self._start if full else {},  # an adapter is switched off instead
        )
        self._autocast = torch.bfloat16 if spec.model.autocasts_on(comm.device.type) else None
        self._task = task
        say("checks that examples do not depend on each other")
        context = TrainingContext(model=model, parameters=self._parameters, autocast=self._autocast)
        clipped = spec.method.params.max_grad_norm is not None
        probe.check(context, task, model=spec.model.name, clipped=clipped, sharded=self._sharded)
        if spec.cluster.gradient_checkpointing:
            recompute_layers(model)
        self._budget = _budget(spec, pretrained, comm.device)
        if isinstance(task, LanguageModelingTask) and not self._sharded:
            say("looks for the frozen prefix, which the workers compute together")
            self._task = with_frozen_prefix(
                task,
                model,
                self._parameters,
                weight_hash=pretrained.weight_hash + (spec.model.quantization or ""),
                folder=prefix_folder(),
                max_bytes=spec.cluster.prefix_cache_gib * 2**30,
                say=logging.getLogger(__name__).warning,
                progress=lambda share: say(f"computes the frozen prefix with the others, {share:.0%} of it is done"),
                planned_tokens=float("inf") if planned is None else planned_tokens(task, planned, self._evaluations),
            )
        say("waits for a run")

    def turn_to(self, spec: SweepSpec) -> bool:
        """Go on with the runs of a spec that has other further fields. Return False if they need another model."""
        if spec.model != self._spec.model:
            return False
        self._spec = spec
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
            The result to commit on rank 0, None on the other ranks. A run that ended at a check has no model.

        Raises:
            Paused: the control asked for a pause. The state is saved.
        """
        if accounted is not None:
            self._require(plan, accounted)
        start = self._untrained(plan.seed) or self._start
        adapters.initialise(self._parameters, self._spec.model.adapter, start, plan.seed)
        ledger, notes, reasons = files.ledger(), list[str](), list[str]()
        context = replace(self._context(plan, ledger, control, reasons), accounted=accounted)
        store = files.checkpoints(notes.append)
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
        if trained.ended_early:
            return replace(result, reason=reasons[-1]) if self.comm.rank == 0 else None
        canaries = context.canaries
        if canaries is not None and canaries.steps_seen != plan.num_steps:
            raise ValueError(
                f"method.name must train by raydp.training.loop for gradient canaries, got {self._spec.method.name!r}, "
                f"which showed {canaries.steps_seen} of {plan.num_steps} steps. Audit it with access to losses."
            )
        observed = None if canaries is None else canaries.log_ratios
        return self._finished(result, plan.seed, trained, files, attempt, observed)

    def _require(self, plan: TrialPlan, accounted: Event) -> None:
        """Check that training as planned is the accounted event, on as many units as there are.

        Raises:
            ValueError: it is another event, or another number of units.
        """
        trains, units = self._spec.method.params.event(plan, plan.noise_multiplier), self._task.facts().num_units
        if (trains, plan.num_examples) != (accounted, units):
            raise ValueError(
                f"run {plan.run_id} must train as its privacy record says, {accounted} of {units} units, got {trains} "
                f"of {plan.num_examples}. Restore plan.json, or start a new sweep."
            )

    def _evaluations(self, plan: TrialPlan) -> int:
        """Return how often a run measures its utility, if it is not stopped early."""
        return 1 + evaluations_between(self._spec, plan.num_steps)

    def _canaries(self, plan: TrialPlan) -> GradientCanaries | None:
        """Return the task's gradient canaries, None if it has none."""
        task = with_gradient_canaries(self._task)
        if task is None:
            return None
        return GradientCanaries(
            task.included,
            first=task.facts().num_training - int(task.included.sum()),
            seed=task.seed,
            num_coordinates=sum(parameter.numel() for parameter in self._parameters.values()),
            plan=plan,
        )

    def _context(
        self, plan: TrialPlan, ledger: Ledger, control: TrialControl | None, reasons: list[str]
    ) -> TrainingContext:
        """Return what the method is given to train.

        Args:
            reasons: gets the reason if the control ends the run at a check.
        """
        stopping = self._spec.stopping
        checks = {} if stopping is None or control is None else check_steps(plan.num_steps, stopping.checks)

        def check(done: int) -> bool:
            loss = self._on_rank_0(lambda loaded: self._task.utility(loaded.model))
            reason = control.check(checks[done], loss) if control is not None and loss is not None else None
            reasons.extend([reason] if reason else [])
            return bool(self.comm.broadcast_object(reason))

        def evaluate(done: int) -> dict[str, float]:
            every = self._spec.evaluate_every
            if every is None or done % every or done == plan.num_steps:  # the utility at the end is measured anyway
                return {}
            loss = self._on_rank_0(lambda loaded: self._task.utility(loaded.model))
            return {} if loss is None else {"heldout_loss": loss}

        return TrainingContext(
            model=self._loaded.model,
            parameters=self._parameters,
            microbatch_size=self._spec.cluster.microbatch_size,
            budget=self._budget,
            autocast=self._autocast,
            checkpoint_seconds=self._spec.cluster.checkpoint_seconds,
            progress=control.beat if control is not None else None,
            pause_fn=control.must_pause if control is not None else None,
            check_steps=frozenset(checks),
            check_fn=check,
            evaluate_fn=evaluate,
            ledger=ledger,
            canaries=self._canaries(plan),
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
        """Measure and save the trained model. Return the finished result on rank 0, None on the other ranks."""
        started = time.perf_counter()
        measured = self._on_rank_0(lambda loaded: self._measure(replace(loaded, observed=observed), seed))
        variants = self._measure_variants(trained.variants, seed)
        weights = None
        if sharding.in_parts(self._parameters):
            weights = sharding.gathered(self._loaded.model.state_dict(keep_vars=True), self.comm)
        if measured is None:
            return None
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
        """Return the initial weights of a classification network, which depend on the seed; None for other models."""
        return untrained_weights(self._spec.model.name, seed, new_classes=self._task.facts().num_new_tokens)

    def measure_base(self, seed: int) -> RunResult | None:
        """Measure the untrained base model. Return the result on rank 0, None on the other ranks."""

        def measure(loaded: models.LoadedModel) -> _Measured:
            with loaded.base() as base:
                return self._measure(base, seed)

        if (measured := self._on_rank_0(measure)) is None:
            return None
        return RunResult(run_id=BASE_RUN, status="finished", utility_loss=measured.utility_loss, scores=measured.scores)

    def _measure_variants(self, variants: Mapping[float, Callable[[], None]], seed: int) -> tuple[ClaimedFigures, ...]:
        """Measure utility and scores at each claimed ε. The weights are restored afterwards."""
        kept = {name: p.detach().clone() for name, p in self._parameters.items()} if variants else {}
        figures = []
        for epsilon, put in variants.items():
            put()
            measured = self._on_rank_0(lambda loaded: self._measure(loaded, seed))
            if measured is not None:
                loss, scores = measured.utility_loss, measured.scores
                figures.append(ClaimedFigures(claimed_epsilon=epsilon, utility_loss=loss, scores=scores))
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
        if not torch.isfinite(torch.tensor(utility)):
            raise FloatingPointError(f"utility_loss is {utility} after training; the learning rate is too large")
        scores = {s.name: measured(s.params, loaded, task, seed=seed) for s in self._spec.scores}
        return _Measured(utility_loss=utility, scores=scores)


def _budget(spec: SweepSpec, pretrained: PretrainedModel, device: torch.device) -> TokenBudget:
    """Return the budget of tokens of a micro-batch, as it was measured for this model on this device before."""
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
