"""Select one configuration from a points table and record the reasons."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.selection.by_threshold import Narrowing, ThresholdChange, threshold_changes, without_threshold
from raydp.analysis.selection.cautions import (
    at_the_corner,
    beaten,
    entered_twice,
    few_pass,
    improbable,
    left_out,
    may_pass,
    not_trusted,
    undecided,
    unsupported,
    without_guarantee,
)
from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.selection.contenders import Contenders, contenders
from raydp.analysis.selection.decision import Decision, decide, what_would_decide
from raydp.analysis.selection.default import DEFAULT_RULE, WITHOUT_SCORES
from raydp.analysis.selection.equivalents import CONFIDENCE, TOLERANCE, Precision
from raydp.analysis.selection.evidence import Evidence
from raydp.analysis.selection.reference import REFERENCE_RULES
from raydp.analysis.selection.rules import (
    BEST_UTILITY,
    LEAKAGE_CHECK,
    UTILITY_CHECK,
    Layout,
    Rule,
    choose,
    dominates,
    rule_names,
    rule_steps,
)
from raydp.analysis.statistics.results import because
from raydp.analysis.surface.outlook import Outlook
from raydp.analysis.tables.per_secret import highest, own_score, score_names, score_values
from raydp.analysis.tables.points import (
    KEY,
    configuration_means,
    configurations,
    known,
    largest,
    require_hyperparameters,
)
from raydp.analysis.tables.shown import html_table
from raydp.search_spaces.configuration import Configuration
from raydp.search_spaces.names import unknown_name

_UNMINDFUL = {"best-utility", "worst-utility", *REFERENCE_RULES}
"""Rules that do not aim at a low score. For them, an undecided lowest score causes no warning."""

LEAKAGE_NOT_CHECKED = (
    "not made: it needs the values by secret (secrets.parquet) of at least 8 secrets, the untrained model's among them"
)
"""The rule of the step `leakage check` if the data do not allow the check."""


@dataclass(frozen=True, kw_only=True)
class SelectionStep:
    """The effect of one step of a rule.

    Attributes:
        name: name of the step.
        rule: the step's rule in words.
        survivors: configurations that remain, sorted by (T, b, η).
        dropped: configurations that this step removed.
    """

    name: str
    rule: str
    survivors: tuple[Configuration, ...]
    dropped: tuple[Configuration, ...]

    def to_dict(self) -> dict[str, object]:
        """Return the step as data for JSON."""
        return {
            "name": self.name,
            "rule": self.rule,
            "survivors": [c.to_json() for c in self.survivors],
            "dropped": [c.to_json() for c in self.dropped],
        }


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The selected configuration and the reasons for it.

    Attributes:
        configuration: the selected configuration.
        utility_loss: the configuration's mean loss over seeds; lower is better.
        score: the configuration's mean score over seeds; higher is more leakage. None if none was measured.
        rule: the name of the rule.
        steps: what each step kept, the utility threshold first if there is one.
        model_uri: models:/name/version of its first listed seed that finished, None if the table has none.
        max_loss: the utility threshold that was applied, None without one.
        explanation: why the rule "informed" did not follow the scores, or how the scores contradict Algorithm 1. None
            if there is nothing to explain.
        decision: how sure the choice is, None if the selection was not made by a rule.
        changes: the nearest stricter and the nearest looser utility threshold at which the rule selects another
            configuration. None if that is not known.
        cautions: the warnings that need no model of further seeds.
        undecided: the warning that the scores do not decide, None if there is no such warning.
        outlook_fn: computes `outlook`, None if the selection was not made by a rule.
        contenders: which configurations may have the lowest score, None if that was not computed.
        constraints: the constraints that were applied, None if the selection was not made by a rule.
        epsilon, delta: the guarantee of the configuration's models, the largest of its seeds. None if it is not known.
        score_name: the name of the score, None if it is not known.
        scores: name -> mean over seeds of every named score of the configuration.
        sweep: the name of the sweep, None for a points table.
        tracking_uri: the store of the selected model, None if it is not known.
        load_fn: loads the selected model, None if the selection has no model.
    """

    configuration: Configuration
    utility_loss: float
    score: float | None
    rule: str
    steps: tuple[SelectionStep, ...]
    model_uri: str | None
    max_loss: float | None = None
    explanation: str | None = None
    cautions: tuple[str, ...] = ()
    undecided: str | None = None
    outlook_fn: Callable[[], Outlook] | None = field(default=None, repr=False, compare=False)
    contenders: Contenders | None = None
    constraints: Constraints | None = None
    decision: Decision | None = None
    changes: tuple[ThresholdChange, ...] | None = None
    epsilon: float | None = None
    delta: float | None = None
    score_name: str | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    sweep: str | None = None
    tracking_uri: str | None = None
    load_fn: Callable[[], object] | None = field(default=None, repr=False, compare=False)

    @property
    def load_call(self) -> str | None:
        """Return the Python call that loads the model; None without a model.

        A store with an absolute path or with credentials is written as "...", because reports leave the machine.
        """
        if self.model_uri is None:
            return None
        if self.tracking_uri is None:
            return f"raydp.load_model({self.model_uri!r})"
        store = self.tracking_uri
        private = "@" in store or store.startswith(("/", "file:", "sqlite:////"))
        shown = "..." if private else repr(store)
        return f"raydp.load_model({self.model_uri!r}, tracking_uri={shown})"

    def load(self) -> Any:
        """Load the selected model from the sweep's own tracking store, as `raydp.load_model` does.

        Raises:
            ValueError: the selection was made from a points table, which names no tracking store, or has no model.
        """
        if self.load_fn is None:
            raise ValueError(
                f"Selection.load must be called on the selection of a sweep with a registered model, got model_uri "
                f"{self.model_uri!r} of sweep {self.sweep!r}. Use raydp.load_model(model_uri, tracking_uri=...)."
            )
        return self.load_fn()

    @cached_property
    def outlook(self) -> Outlook | None:
        """Return what would decide which configuration has the lowest score. It is computed on first use."""
        return None if self.outlook_fn is None else self.outlook_fn()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what the user should know before relying on the selection."""
        if self.undecided is None:
            return self.cautions
        said = self.undecided if self.outlook is None else f"{self.undecided} {self.outlook.sentence}"
        return (*self.cautions, said)

    def to_dict(self) -> dict[str, object]:
        """Return the document that `raydp select --json` prints."""
        return {
            **self.configuration.to_json(),
            "sweep": self.sweep,
            "epsilon": "inf" if self.epsilon == math.inf else self.epsilon,
            "delta": self.delta,
            "utility_loss": self.utility_loss,
            "score": self.score,
            "score_name": self.score_name,
            "scores": dict(self.scores),
            "rule": self.rule,
            "max_loss": self.max_loss,
            "explanation": self.explanation,
            "steps": [step.to_dict() for step in self.steps],
            "model_uri": self.model_uri,
            "warnings": list(self.warnings),
            **({} if self.contenders is None else {"uncertainty": self._uncertainty(self.contenders)}),
            **({} if self.decision is None else {"decision": self.decision.to_dict()}),
            **({} if self.changes is None else {"threshold_changes": [each.to_dict() for each in self.changes]}),
        }

    def _uncertainty(self, rivals: Contenders) -> dict[str, object]:
        """Return what the scores leave open as data for JSON."""
        further = () if self.outlook is None else self.outlook.further_seeds
        open_still = self.decision is not None and self.decision.state == "undecided" and not further
        reason = self.outlook.sentence if self.outlook is not None and open_still else None
        return {**rivals.to_dict(), "further_seeds": list(further), **because(rivals.reason or reason)}

    def __repr__(self) -> str:
        return f"Selection({', '.join(f'{name}={value}' for name, value in self._summary().items())})"

    def _repr_html_(self) -> str:
        """Return a table for a notebook."""
        explained = {} if self.explanation is None else {"explanation": self.explanation}
        return html_table({**self._summary(), **explained}, "Selection")

    def _summary(self) -> dict[str, object]:
        """Return the fields that a reader looks for first."""
        score = "not measured" if self.score is None else f"{self.score:.4g}"
        figures = {"utility_loss": f"{self.utility_loss:.4g}", "score": score, "rule": self.rule}
        decided = {} if self.decision is None else {"state": self.decision.state}
        num_warnings = len(self.cautions) + (self.undecided is not None)
        warned = {"warnings": num_warnings} if num_warnings else {}
        return {"configuration": self.configuration, **figures, **decided, "model_uri": self.model_uri, **warned}


def select(
    points: pd.DataFrame,
    *,
    rule: str = DEFAULT_RULE,
    max_loss: float | None = None,
    min_utility_gain: float | None = None,
    base_utility_loss: float | None = None,
    max_score: float | None = None,
    at_most: Mapping[str, float] | None = None,
    by_secret: tuple[pd.DataFrame, str] | None = None,
    logarithmic: bool | None = None,
    confidence: float = CONFIDENCE,
    tolerance: float = TOLERANCE,
) -> Selection:
    """Select one configuration by its means over seeds, and say how far the data support the choice.

    Args:
        points: a points table (see `load_points`); the order of its rows never matters for what is selected. Without
            scores, the selection has no probability and no decision.
        rule: a name in `RULES`: "informed" (the most useful of equivalent scores, else the lowest expected score),
            "procedure" (Algorithm 1: needs no score of its own), "best-utility", ...; or in `REFERENCE_RULES`, of
            training and reference data: "public-reference", ...
        max_loss, min_utility_gain, base_utility_loss, max_score, at_most: see `Constraints`.
        by_secret: the content of the sweep's secrets.parquet and the score's name. With it, the uncertainty includes
            the choice of secrets, and "informed" can test whether anything leaks. Without it, the uncertainty
            is over seeds alone.
        logarithmic: whether that score is a logarithm, so that ratios of it say nothing. None: its name decides, if it
            is a built-in score.
        confidence, tolerance: the probability that a decision needs, and the relative difference of two scores that are
            equivalent.

    Returns:
        The selection. If a rule leaves several configurations, the first in the order (T, b, η) is selected.

    Raises:
        ValueError: an unknown rule, a rule that needs scores where the table has none, a table that
            `configuration_means` refuses, a constraint that no configuration keeps to (the message gives the lowest
            figure), or no configuration that keeps to all constraints together.

    Source: Hu et al. 2025, Algorithm 1, §4.2 and §4.3.
    """
    # Gather the means, the models of the figures and the configurations that keep to the constraints.
    steps = steps_of(rule)
    precision = Precision(confidence=confidence, tolerance=tolerance)
    points = require_hyperparameters(points, scored=False)
    means = configuration_means(points, scored=False)
    scored = bool(means["score"].notna().all())
    if not scored and rule not in WITHOUT_SCORES:
        raise ValueError(
            f"rule must need no score if none was measured, got {rule!r}. Use {', '.join(WITHOUT_SCORES)}, or measure "
            "a score by `raydp score`."
        )
    constraints = Constraints(
        max_loss=max_loss,
        min_utility_gain=min_utility_gain,
        base_utility_loss=base_utility_loss,
        max_score=max_score,
        at_most=at_most or {},
    )
    listed = np.array(configurations(means), dtype=object)
    narrowings = constraints.narrowings(points, means, by_secret)
    narrowings += [REFERENCE_RULES[rule].narrowing(points)] if rule in REFERENCE_RULES else []
    passed, record = _narrowed(listed, narrowings)
    if not scored:
        return _without_scores(rule, points, means, constraints, narrowings, passed, record)
    evidence = Evidence.of(
        points, means, constraints, passed, by_secret=by_secret, logarithmic=logarithmic, precision=precision
    )
    # Apply the rule's steps to the configurations that keep to the constraints.
    pool, quiet, compared = passed, False, passed
    for step in steps:
        kept = step.keep(evidence.layout, pool)
        untested = step.name == LEAKAGE_CHECK and evidence.leakage is None
        record.append(_step(step.name, LEAKAGE_NOT_CHECKED if untested else step.text, listed, pool, kept))
        quiet |= step.name == LEAKAGE_CHECK and bool((pool & ~kept).any())
        pool = kept
        if step.name == UTILITY_CHECK and not quiet:
            compared = kept
    # Take the first survivor, and judge how far the data support it.
    selected = int(pool.argmax())
    scores, certainty = evidence.layout.models.scores, evidence.layout.certainty
    score_name = by_secret[1] if by_secret is not None else own_score(points)
    decision = decide(
        means,
        compared,
        selected,
        scores,
        logarithmic=evidence.logarithmic,
        certainty=certainty,
        precision=precision,
        needs_utility=not quiet and any(step.name == UTILITY_CHECK for step in steps),
        highest=highest(score_name, means["score"]),
    )
    rivals = contenders(
        means, compared, selected, by_secret=evidence.of_secrets, draws=scores.draws, confidence=confidence
    )
    settled = rule == DEFAULT_RULE and decision.state != "undecided"
    by_scores = rule not in _UNMINDFUL and not quiet and not settled
    doubtful = ""
    if certainty is not None:
        doubtful = may_pass(means, without_threshold(means, narrowings) & ~compared, certainty)
    cautions = [
        *few_pass(means, compared, decision, doubtful),
        *without_guarantee(points, listed[selected]),
        *left_out(points),
        *entered_twice(points),
        *(at_the_corner(means, passed, constraints) if rule == "procedure" else []),
        *improbable(decision, doubtful),
        *(not_trusted(means, passed, compared, certainty) if rule == DEFAULT_RULE and certainty is not None else []),
        *(unsupported(rivals, int(compared.sum())) if by_scores else []),
        *beaten(means, passed, selected, rule=rule),
    ]
    return Selection(
        **_facts(points, means, constraints, selected),
        rule=rule,
        steps=tuple(record),
        explanation=_explanation(rule, quiet, evidence, passed, listed),
        cautions=tuple(cautions),
        undecided=undecided(rivals, int(compared.sum())) if by_scores else None,
        outlook_fn=partial(
            what_would_decide, decision, points, compared, by_secret=by_secret, logarithmic=evidence.logarithmic
        ),
        contenders=rivals,
        score_name=score_name,
        decision=decision,
        changes=None
        if rule in REFERENCE_RULES
        else threshold_changes(rule, evidence.layout, means, narrowings, passed, selected),
    )


def _without_scores(
    rule: str,
    points: pd.DataFrame,
    means: pd.DataFrame,
    constraints: Constraints,
    narrowings: list[Narrowing],
    passed: NDArray[np.bool_],
    record: list[SelectionStep],
) -> Selection:
    """Select by a rule that needs no score. Nothing is known of leakage, so there is no decision."""
    layout, listed = Layout.of(means.assign(score=0.0)), np.array(configurations(means), dtype=object)
    pool, steps = passed, list(record)
    for step in rule_steps(rule):
        kept = step.keep(layout, pool)
        steps.append(_step(step.name, step.text, listed, pool, kept))
        pool = kept
    selected = int(pool.argmax())
    corner = at_the_corner(means, passed, constraints) if rule == "procedure" else []
    return Selection(
        **_facts(points, means, constraints, selected),
        rule=rule,
        steps=tuple(steps),
        cautions=(*without_guarantee(points, listed[selected]), *left_out(points), *entered_twice(points), *corner),
        changes=threshold_changes(rule, layout, means, narrowings, passed, selected),
    )


class _Facts(TypedDict):
    """The fields of a selection that the points table holds."""

    configuration: Configuration
    utility_loss: float
    score: float | None
    model_uri: str | None
    max_loss: float | None
    constraints: Constraints
    epsilon: float | None
    delta: float | None
    scores: dict[str, float]


def _facts(points: pd.DataFrame, means: pd.DataFrame, constraints: Constraints, selected: int) -> _Facts:
    """Return the figures of the selected configuration."""
    own = means.iloc[selected]
    runs = points[np.all([points[name] == own[name] for name in KEY], axis=0)]
    threshold = constraints.threshold(means)
    return {
        "configuration": configurations(means.iloc[[selected]])[0],
        "utility_loss": float(own["utility_loss"]),
        "score": known(own["score"]),
        "model_uri": own["model_uri"],
        "max_loss": None if threshold is None else float(threshold.max()),
        "constraints": constraints,
        "epsilon": largest(runs, "epsilon"),
        "delta": largest(runs, "delta"),
        "scores": {name: mean for name in score_names(runs) if not math.isnan(mean := score_values(runs, name).mean())},
    }


def _narrowed(
    listed: NDArray[np.object_], narrowings: list[tuple[str, str, NDArray[np.bool_]]]
) -> tuple[NDArray[np.bool_], list[SelectionStep]]:
    """Return the configurations that keep to all constraints, [m], and the record of each constraint.

    Raises:
        ValueError: no configuration keeps to all of them.
    """
    pool = np.ones(len(listed), dtype=np.bool_)
    record: list[SelectionStep] = []
    for name, text, kept in narrowings:
        if not (pool & kept).any():
            raise ValueError(
                f"constraints must leave a configuration, got none that keeps to the constraint {name} and the earlier "
                "constraints. Relax one of them."
            )
        record.append(_step(name, text, listed, pool, pool & kept))
        pool = pool & kept
    return pool, record


def _explanation(
    rule: str, quiet: bool, evidence: Evidence, passed: NDArray[np.bool_], listed: NDArray[np.object_]
) -> str | None:
    """Explain why the selection is by utility, or how the scores contradict Algorithm 1. Return None otherwise."""
    if quiet and evidence.leakage is not None:
        return evidence.leakage.sentence(passed)
    if rule != DEFAULT_RULE:
        return None
    position = choose("procedure", evidence.layout, passed)
    better = int((passed & dominates(evidence.layout, position[..., None])).sum())
    if not better:
        return None
    others = f"{better} configurations have" if better > 1 else "one configuration has"
    return (
        f"The scores contradict the rule procedure, which would select {listed[int(position)]}: {others} neither more "
        "loss nor a higher score. `--rule procedure` selects by (b, T, η) alone."
    )


def steps_of(rule: str) -> Rule:
    """Return the steps that a rule applies to the configurations that keep to the constraints."""
    if rule not in REFERENCE_RULES and rule not in rule_names():
        raise ValueError(unknown_name("rule", rule, [*rule_names(), *REFERENCE_RULES]))
    return BEST_UTILITY if rule in REFERENCE_RULES else rule_steps(rule)


def _step(
    name: str, text: str, listed: NDArray[np.object_], before: NDArray[np.bool_], after: NDArray[np.bool_]
) -> SelectionStep:
    """Return the record of a step that narrowed the pool from `before` to `after`."""
    return SelectionStep(name=name, rule=text, survivors=tuple(listed[after]), dropped=tuple(listed[before & ~after]))
