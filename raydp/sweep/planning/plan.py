"""From a spec to a sweep's runs: checked, calibrated and named before training starts."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from raydp.analysis.statistics.results import given
from raydp.analysis.tables.statements import UNPROVEN, stated_columns
from raydp.privacy import (
    AccountedEpsilon,
    Calibration,
    CalibrationRequest,
    Caution,
    ChoiceRecord,
    Event,
    Mechanism,
    PrivacyRecord,
    PrivacyTarget,
    accounted,
    privacy_record,
    remarks,
)
from raydp.privacy.accounting.infinity import json_number
from raydp.search_spaces import Configuration, Rejected, exact, load_space
from raydp.search_spaces.loader import without_duplicates
from raydp.search_spaces.settings import Settings
from raydp.spec.document import SweepSpec
from raydp.spec.sections import AdaptiveSeeds
from raydp.sweep.planning.warnings import warnings_of
from raydp.sweep.policy import SweepPolicy, policy_of
from raydp.sweep.store.state import Plan
from raydp.system.cache import cache_dir
from raydp.tasks.task import TaskFacts
from raydp.training.trial_plan import TrialPlan


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """The runs of a sweep and their facts, before anything runs.

    Attributes:
        facts: facts of the task.
        delta: δ of every run.
        trials: one run for each (configuration, seed). The largest compute comes first, which
            shortens the sweep.
        privacy: run_id -> the run's privacy record.
        rejected: configurations of a named space that the task cannot run, each with its reason.
        warnings: what makes the guarantee, the utility or the scores say little.
        selection: a sentence about the draw of the runs; None if all runs are made. Before the draw,
            `trials` has one run for each configuration. `drawn` replaces them with the drawn runs.
        configurations: one run for each configuration that could have been drawn. Empty without a
            draw and before it.
        adaptive: when further seeds end; None if all seeds are run.
    """

    facts: TaskFacts
    delta: float
    trials: tuple[TrialPlan, ...]
    privacy: dict[str, PrivacyRecord]
    rejected: tuple[Rejected, ...]
    warnings: tuple[Caution, ...]
    selection: str | None = None
    configurations: tuple[TrialPlan, ...] = ()
    adaptive: AdaptiveSeeds | None = None

    @property
    def first_pass(self) -> tuple[TrialPlan, ...]:
        """Return the runs that are certain to be made: all runs, or the runs of the first pass."""
        if self.adaptive is None:
            return self.trials
        return tuple(trial for trial in self.trials if trial.seed in self.adaptive.first_labels)

    @property
    def note(self) -> str | None:
        """Return a sentence on which runs will be made, None if all of them will."""
        return self.selection if self.adaptive is None else self.adaptive.sentence()

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each configuration: n, q, σ, ε, δ, C, U and cost in tokens.

        This is the table of `raydp plan`.
        """
        repetitions = Counter(trial.configuration.key for trial in self.first_pass)
        # Reversed, so that the first run of each configuration stands for it.
        one_each = {trial.configuration.key: trial for trial in reversed(self.first_pass)}
        paths = sorted({path for trial in self.trials for path in trial.settings})
        return [self._row(one_each[key], paths, seeds=repetitions[key]) for key in sorted(one_each)]

    def remarks(self) -> list[str]:
        """Return remarks on the guarantees, such as that there is no ε. Each sentence comes once."""
        sentences = (
            sentence for trial in self.trials for sentence in remarks(self.privacy[trial.run_id])
        )
        return list(dict.fromkeys(sentences))

    def _row(self, trial: TrialPlan, paths: Sequence[str], *, seeds: int) -> dict[str, object]:
        record = self.privacy[trial.run_id]
        compute, choice = trial.batch_size * trial.num_steps, record.choice
        return {
            "batch_size": trial.batch_size,
            "num_steps": trial.num_steps,
            "learning_rate": trial.learning_rate,
            **{path: trial.settings.get(path) for path in paths},
            "num_examples": trial.num_examples,
            "sample_rate": record.mechanism.sample_rate or trial.batch_size / trial.num_examples,
            "noise_multiplier": trial.noise_multiplier,
            "epsilon": json_number(record.accounted.epsilon),
            **given(**stated_columns(record.stated)),
            "delta": record.accounted.delta,
            "compute": compute,
            "updates": float(compute * exact(trial.learning_rate)),
            "seeds": seeds,
            # Cost in tokens: T steps of b units of mean length, for each seed.
            "cost_tokens": round(compute * self.facts.num_tokens / self.facts.num_units) * seeds,
            **given(single_run_epsilon=choice and choice.single_run_epsilon),
            **({} if record.part is None else record.part.columns()),
        }


def phase_of(spec: SweepSpec) -> str:
    """Return in words what a plan takes its time for."""
    given = spec.privacy.noise_multiplier is not None
    return "computing ε of the given noise" if given else "calibrating the noise"


def make_plan(
    spec: SweepSpec,
    facts: TaskFacts,
    weight_hash: str,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> SweepPlan:
    """Calibrate every configuration to the target and name every run.

    Args:
        weight_hash: SHA-256 of the base weights. It is part of each run's identity.
        progress: called with (calibrations done, calibrations in all).

    Raises:
        ValueError: a configuration of the user's own list or grid does not fit the data, no
            configuration is left, or the policy of `privacy.tuning` does not allow the task.
    """
    policy = policy_of(spec)
    policy.check(facts)
    # The configurations that fit the data, and the spec of each combination of further fields.
    configurations, rejected = _configurations(spec, facts.num_units)
    specs = {own: spec.of_run(own) for own in dict.fromkeys(c.settings for c in configurations)}
    # Calibrate: the smallest σ with which each configuration, or the whole choice, meets (ε, δ).
    delta = spec.privacy.delta(facts.num_units)
    solved, tuned_epsilon = _calibrations(
        policy, spec, specs, configurations, facts, delta, progress
    )
    # Name every run and make its privacy record. An import may have no model for a run.
    trials, privacy = list[TrialPlan](), dict[str, PrivacyRecord]()
    each = zip(configurations, solved, strict=True)
    for (configuration, calibration), seed in product(each, spec.seed_labels):
        own = specs[configuration.settings]
        trial = _trial(own, facts, weight_hash, configuration, seed, calibration)
        if trial is None:
            continue
        # Equal ids mean equal results: the second run would only repeat the first.
        if trial.run_id in privacy:
            raise ValueError(
                f"space must not repeat a configuration, got {configuration} twice: with other "
                "values of fields that change nothing, or with a value that the spec has anyway. "
                "Remove one of them."
            )
        trials.append(trial)
        choice = policy.choice(len(configurations), calibration.epsilon) if calibration else None
        record = _record(own, facts, trial, calibration, delta, tuned_epsilon, choice)
        privacy[trial.run_id] = record
    _check_records(spec, privacy)
    # The learning rates stay in the order of the space, whatever order the runs start in.
    rates = [trial.learning_rate for trial in trials]
    return SweepPlan(
        facts=facts,
        delta=delta,
        trials=tuple(_in_order(trials, specs, spec.seed_labels)),
        privacy=privacy,
        rejected=tuple(rejected),
        warnings=tuple(warnings_of(spec, list(specs.values()), facts, privacy.values(), rates)),
        selection=policy.sentence(len(configurations)),
        adaptive=spec.seeds if isinstance(spec.seeds, AdaptiveSeeds) else None,
    )


def drawn(plan: SweepPlan, spec: SweepSpec, weight_hash: str, key: bytes) -> SweepPlan:
    """Draw the runs under the sweep's key, in the order of the draw, if the policy draws them."""
    draws = policy_of(spec).draw(len(plan.trials), key)
    if draws is None:
        return plan
    trials, privacy = [], {}
    # A configuration may be drawn several times, so each draw has its own seed label and run id.
    for position, label in draws:
        trial = replace(plan.trials[position], seed=label)
        name = run_id(spec.of_run(trial.settings), plan.facts, weight_hash, trial)
        trials.append(replace(trial, run_id=name))
        privacy[name] = plan.privacy[trial.run_id]
    return replace(plan, trials=tuple(trials), privacy=privacy, configurations=plan.trials)


def run_id(spec: SweepSpec, facts: TaskFacts, weight_hash: str, trial: TrialPlan) -> str:
    """Return a run's identity: 16 hex digits of the SHA-256 of what defines its result.

    Where and how the run is trained is no part of it.

    Args:
        spec: the spec of the run, with the further fields of its configuration
            (`SweepSpec.of_run`).
        trial: the run, whose own id does not matter.
    """
    defines = {
        "configuration": [
            trial.batch_size,
            trial.num_steps,
            # The exact value as text, so that 0.1 and 1e-1 are one learning rate.
            str(exact(trial.learning_rate)),
        ],
        "privacy": spec.privacy.model_dump(mode="json", exclude={"budget"}),
        "seed": trial.seed,
        "task": facts.content_hash,
        "weights": weight_hash,
        # The hash of the base weights stands for the model's name, which may be a path.
        "model": spec.model.model_dump(mode="json", exclude={"name"}),
        # The method's parameters, and what else it knows to change a result.
        **spec.method.params.defines(trial, spec.method.as_dict()),
    }
    return hashlib.sha256(json.dumps(defines, sort_keys=True).encode()).hexdigest()[:16]


def _in_order(
    trials: list[TrialPlan], specs: Mapping[Settings, SweepSpec], seeds: Sequence[int]
) -> list[TrialPlan]:
    """Return the runs in the order of their start: the largest compute first.

    This order shortens the sweep.

    Runs of one model section follow each other, because a worker that changes it sets up its model
    anew.
    """
    place = {seed: position for position, seed in enumerate(seeds)}
    of_model = {settings: own.model.model_dump_json() for settings, own in specs.items()}
    compute = Counter[str]()
    for trial in trials:
        compute[of_model[trial.settings]] += trial.batch_size * trial.num_steps
    # The model with the most compute comes first, for the same reason as the largest run.
    models = {model: position for position, (model, _) in enumerate(compute.most_common())}
    return sorted(
        trials,
        key=lambda t: (
            models[of_model[t.settings]],
            -t.batch_size * t.num_steps,
            place[t.seed],
            *t.configuration.key,
        ),
    )


def _configurations(
    spec: SweepSpec, num_examples: int
) -> tuple[list[Configuration], list[Rejected]]:
    """Return the configurations of the space, and those of a named space that cannot run."""
    space = spec.space
    # Normalising settings builds a spec, so each is normalised once.
    known: dict[Settings, Settings] = {}

    def settings(fields: Mapping[str, object]) -> Settings:
        written = Settings(fields)
        if written not in known:
            known[written] = spec.settings(fields)
        return known[written]

    configurations = without_duplicates(
        replace(Configuration.from_json(point), settings=settings(fields))
        for point, own in space.listed()
        for fields in space.combinations(point, own)
    )
    # A named space leaves out what a task cannot run. A user's own space must fit.
    if space.name is not None:
        fitting = [c for c in configurations if c.batch_size <= num_examples]
        if not fitting:
            raise ValueError(
                f"space.name must have a configuration with batch_size <= {num_examples} "
                f"(num_examples), got {space.name!r} with none. Use more data or a space of your "
                "own."
            )
        return fitting, load_space(space.name).points(num_examples)[1]
    too_large = sorted({c.batch_size for c in configurations if c.batch_size > num_examples})
    if too_large:
        raise ValueError(
            f"space.batch_size must be <= num_examples {num_examples} of the task, got "
            f"{too_large}. Remove it, or use more data."
        )
    return configurations, []


def _trial(
    spec: SweepSpec,
    facts: TaskFacts,
    weight_hash: str,
    configuration: Configuration,
    seed: int,
    calibration: Calibration | None,
) -> TrialPlan | None:
    """Return the run of a configuration and a seed; None if the method does not make it."""
    trial = TrialPlan(
        run_id="",
        batch_size=configuration.batch_size,
        num_steps=configuration.num_steps,
        learning_rate=configuration.learning_rate,
        settings=configuration.settings,
        seed=seed,
        num_examples=facts.num_units,
        noise_multiplier=calibration.noise_multiplier if calibration else 0.0,
    )
    made: TrialPlan | None = spec.method.params.planned(trial, spec.privacy)
    # Name the run last, by all that the method has planned.
    return None if made is None else replace(made, run_id=run_id(spec, facts, weight_hash, made))


def _calibrations(
    policy: SweepPolicy,
    spec: SweepSpec,
    specs: Mapping[Settings, SweepSpec],
    configurations: list[Configuration],
    facts: TaskFacts,
    delta: float,
    progress: Callable[[int, int], None] | None,
) -> tuple[Sequence[Calibration | None], float | None]:
    """Return each configuration's calibration, and ε of the whole choice if it is private.

    A method without privacy has neither.

    Equal events are calibrated once: most further fields, such as the clipping norm, are no part of
    the event.
    """
    if not spec.method.params.private:
        return [None] * len(configurations), None
    methods = {settings: own.method.params for settings, own in specs.items()}
    events = [methods[c.settings].event_fn(c, facts.num_units) for c in configurations]
    # With a given σ nothing is calibrated, and ε is what it comes to.
    privacy = spec.privacy
    if (sigma := privacy.noise_multiplier) is not None:
        cache, known = cache_dir() / "guarantee", dict[Event, Calibration]()
        for event in dict.fromkeys(event.with_noise(sigma) for event in events):
            known[event] = accounted(event, delta, privacy.accountant, cache_dir=cache)
            if progress is not None:
                progress(len(known), len(set(events)))
        return [known[event.with_noise(sigma)] for event in events], None
    target = PrivacyTarget(epsilon=privacy.require_target("for a calibration"), delta=delta)
    requests = [CalibrationRequest(event=event, target=target) for event in events]
    return policy.calibrate(requests, cache=cache_dir() / "calibration", progress=progress)


def _record(
    spec: SweepSpec,
    facts: TaskFacts,
    trial: TrialPlan,
    calibration: Calibration | None,
    delta: float,
    tuned_epsilon: float | None,
    choice: ChoiceRecord | None,
) -> PrivacyRecord:
    alone = calibration.epsilon if calibration else math.inf
    event = spec.method.params.event(trial, trial.noise_multiplier)
    # ε of the released model: of this run alone, or of the whole choice.
    own = AccountedEpsilon(
        epsilon=alone if tuned_epsilon is None else tuned_epsilon,
        delta=trial.delta or delta,  # who states an ε may state a δ of its own
        target_epsilon=spec.privacy.target_epsilon if calibration else None,
        accountant=spec.privacy.accountant,
        accountant_version=calibration.accountant_version if calibration else "not used",
    )
    # What the run releases, as the accountant reads it, and the clipping that bounds it.
    mechanism = Mechanism(
        event=event,
        max_grad_norm=spec.method.params.max_grad_norm,
        clipping=spec.method.params.traits.clipping,
    )
    return privacy_record(
        accounted=own,
        mechanism=mechanism,
        unit=facts.privacy_unit,
        noise_key=spec.privacy.noise_key,
        method=spec.method.params.record_fields(trial),
        stated=trial.stated,
        part=spec.method.params.record_part(facts, event, replace(own, epsilon=alone)),
        choice=choice,
    )


def _check_records(spec: SweepSpec, privacy: Mapping[str, PrivacyRecord]) -> None:
    """Refuse a plan without runs, and a bound on the guarantee that no run can keep."""
    if not privacy:
        raise ValueError(
            f"space must have a configuration that method {spec.method.name} has a model of, got "
            f"none with the seeds {', '.join(map(str, spec.seed_labels))}. Use `raydp import`, "
            "which reads both from its table."
        )
    for column in UNPROVEN.keys() & spec.select.at_most:
        raise ValueError(
            f"select.at_most must not bound {column}, got {spec.select.at_most[column]:g}: nothing "
            "proves it. Remove it."
        )
    bound = spec.select.at_most.get("epsilon", math.inf)
    lowest = min(record.accounted.epsilon for record in privacy.values())
    if bound < lowest:
        target = spec.privacy.target_epsilon
        remedy = (
            f"Raise it to {lowest:.6g}."
            if target is None
            else f"Raise it to {target:g}, the target."
        )
        if math.isinf(lowest):
            remedy = f"Remove it: method {spec.method.name} has no guarantee."
        raise ValueError(
            f"select.at_most.epsilon must be at least {lowest:.6g}, the lowest there is, got "
            f"{bound:g}. {remedy}"
        )


def plan_to_keep(plan: SweepPlan, sweep_id: str) -> Plan:
    """Return the part of the plan that the sweep's folder keeps."""
    return Plan(
        sweep_id=sweep_id,
        facts=plan.facts,
        delta=plan.delta,
        trials=plan.trials,
        privacy=plan.privacy,
        configurations=plan.configurations,
        warnings=plan.warnings,
    )
