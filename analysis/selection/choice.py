"""Select one configuration from a points table and record the reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.selection.by_threshold import Narrowing, threshold_changes, without_threshold
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
    worse_than_untrained,
)
from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.selection.contenders import contenders
from raydp.analysis.selection.decision import decide, what_would_decide
from raydp.analysis.selection.default import DEFAULT_RULE, WITHOUT_SCORES
from raydp.analysis.selection.equivalents import CONFIDENCE, TOLERANCE, Precision
from raydp.analysis.selection.evidence import Evidence
from raydp.analysis.selection.own_rules import GivenRule, named_rule
from raydp.analysis.selection.rules import (
    LEAKAGE_CHECK,
    UTILITY_CHECK,
    Layout,
    Rule,
    aims_at_scores,
    choose,
    constrained_rule,
    dominates,
    rule_steps,
)
from raydp.analysis.selection.selected import LEAKAGE_NOT_CHECKED, Selection, SelectionStep, Warned
from raydp.analysis.tables.columns import KEY, known
from raydp.analysis.tables.old_names import reads_old_name
from raydp.analysis.tables.per_secret import highest, own_score, score_names, score_values
from raydp.analysis.tables.points import (
    configuration_means,
    configurations,
    largest,
    require_hyperparameters,
)
from raydp.search_spaces.configuration import Configuration


@reads_old_name
def select(
    points: pd.DataFrame,
    *,
    rule: GivenRule = DEFAULT_RULE,
    max_loss: float | None = None,
    min_gain_share: float | None = None,
    base_utility_loss: float | None = None,
    max_score: float | None = None,
    at_most: Mapping[str, float] | None = None,
    by_secret: tuple[pd.DataFrame, str] | None = None,
    log_base: float | None = None,
    no_leak: float | None = 0.0,
    confidence: float = CONFIDENCE,
    tolerance: float = TOLERANCE,
) -> Selection:
    """Select one configuration by its means over seeds, and say how far the data support it.

    Args:
        points: a points table (see `load_points`); the order of its rows never matters for what is
            selected. Without scores, the selection has no probability and no decision.
        rule: a name in `RULES`: "informed" (the most useful of equivalent scores, else the lowest
            expected score), "procedure" (Algorithm 1: needs no score of its own), "best-utility",
            ...; or one with a constraint of its own (`rules.ConstrainedRule`); or a function, or
            a tuple of steps (`own_rules.own_rule`).
        max_loss, min_gain_share, base_utility_loss, max_score, at_most: see `Constraints`.
        by_secret: the content of the sweep's secrets.parquet and the score's name. With it, the
            uncertainty includes the choice of secrets, and "informed" can test whether anything
            leaks. Without it, the uncertainty is over seeds alone.
        log_base: the base of the logarithm that the score is, so that ratios of it say nothing.
            None: none, or the base of a built-in score of that name.
        no_leak: the score of a model that leaks nothing; None if it is not known.
        confidence, tolerance: the probability that a decision needs, and the relative difference of
            what two equivalent scores exceed `no_leak` by. Without `no_leak` there is no tolerance.

    Returns:
        The selection. If a rule leaves several configurations, the first in the order (T, b, η) is
        selected.

    Raises:
        ValueError: an unknown rule, a rule that needs scores where the table has none, a table that
            `configuration_means` refuses, a constraint that no configuration keeps to (the message
            gives the lowest figure), or no configuration that keeps to all constraints together.

    Example:
        points = load_points("points.parquet")
        selected = select(points, max_loss=2.5)
        print(selected.configuration, selected.warnings)

    Source: Hu et al. 2025, Algorithm 1, §4.2 and §4.3.
    """
    rule = rule if isinstance(rule, str) else named_rule(rule)
    constrained = constrained_rule(rule)
    steps = rule_steps(rule) if constrained is None else constrained.steps
    precision = Precision(confidence=confidence, tolerance=tolerance)
    points = require_hyperparameters(points, scored=False)
    means = configuration_means(points, scored=False)
    scored = bool(means["score"].notna().all())
    if not scored and rule not in WITHOUT_SCORES:
        raise ValueError(
            f"rule must need no score if none was measured, got {rule!r}. Use "
            f"{', '.join(WITHOUT_SCORES)}, or measure a score by `raydp score`."
        )
    constraints = Constraints(
        max_loss=max_loss,
        min_gain_share=min_gain_share,
        base_utility_loss=base_utility_loss,
        max_score=max_score,
        at_most=at_most or {},
    )
    listed = np.array(configurations(means), dtype=object)
    narrowings = constraints.narrowings(points, means, by_secret)
    narrowings += [] if constrained is None else [constrained.narrowing(points)]
    passed, record = _narrowed(listed, narrowings)
    if not scored:
        return _without_scores(rule, points, means, constraints, narrowings, passed, record)
    evidence = Evidence.of(
        points, means, constraints, passed, by_secret, log_base, no_leak, precision
    )
    judged = _Judged.of(evidence, passed, steps, listed)
    scores, certainty = evidence.layout.models.scores, evidence.layout.certainty
    score_name = by_secret[1] if by_secret is not None else own_score(points)
    decision = decide(
        means,
        judged.compared,
        judged.selected,
        scores,
        log_base=evidence.log_base,
        certainty=certainty,
        precision=precision,
        needs_utility=not judged.quiet and any(step.name == UTILITY_CHECK for step in steps),
        highest=highest(score_name, means["score"]),
    )
    rivals = contenders(
        means,
        judged.compared,
        judged.selected,
        by_secret=evidence.of_secrets,
        draws=scores.draws,
        confidence=confidence,
    )
    # The default rule has weighed the errors: once it is settled, a warning would only repeat them.
    settled = rule == DEFAULT_RULE and decision.state != "undecided"
    by_scores = aims_at_scores(steps) and not judged.quiet and not settled
    rest = without_threshold(means, narrowings) & ~judged.compared
    doubtful = "" if certainty is None else may_pass(means, rest, certainty)
    cautions = [
        *few_pass(means, judged.compared, decision, doubtful),
        *_of_the_table(rule, points, means, passed, constraints, judged.selected),
        *improbable(decision, doubtful),
    ]
    if rule == DEFAULT_RULE and certainty is not None:
        cautions += not_trusted(means, passed, judged.compared, certainty)
    if by_scores:
        cautions += unsupported(rivals, int(judged.compared.sum()))
    cautions += beaten(means, passed, judged.selected, rule=rule)
    would_decide = partial(
        what_would_decide,
        decision,
        points,
        judged.compared,
        by_secret=by_secret,
        log_base=evidence.log_base,
        no_leak=no_leak,
    )
    # `threshold_changes` knows the constraints of the user alone.
    changes = None
    if constrained is None:
        changes = threshold_changes(
            rule, evidence.layout, means, narrowings, passed, judged.selected
        )
    return Selection(
        **_facts(points, means, constraints, judged.selected),
        rule=rule,
        steps=(*record, *judged.steps),
        explanation=_explanation(rule, judged.quiet, evidence, passed, listed),
        cautions=tuple(cautions),
        undecided=undecided(rivals, int(judged.compared.sum())) if by_scores else None,
        outlook_fn=would_decide,
        contenders=rivals,
        score_name=score_name,
        decision=decision,
        changes=changes,
    )


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """What a rule's steps leave of the configurations that keep to the constraints.

    Attributes:
        selected: position of the selected configuration.
        compared: [m] the configurations whose scores were compared.
        quiet: whether nothing was seen to leak, so that the utility decided.
        steps: the record of each step.
    """

    selected: int
    compared: NDArray[np.bool_]
    quiet: bool
    steps: tuple[SelectionStep, ...]

    @classmethod
    def of(
        cls, evidence: Evidence, passed: NDArray[np.bool_], steps: Rule, listed: NDArray[np.object_]
    ) -> _Judged:
        """Apply the steps. The first survivor is selected."""
        pool, quiet, compared, record = passed, False, passed, list[SelectionStep]()
        for step in steps:
            kept = step.keep(evidence.layout, pool)
            # A check without its data keeps everything, and must not be recorded as a passed test.
            text, leakage = step.text, evidence.leakage
            if step.name == LEAKAGE_CHECK:
                found = None if leakage is None else leakage.finding(pool, listed)
                text = LEAKAGE_NOT_CHECKED if found is None else f"{text}; {found}"
            record.append(_step(step.name, text, listed, pool, kept))
            quiet |= step.name == LEAKAGE_CHECK and bool((pool & ~kept).any())
            pool = kept
            # Scores are compared among the surely useful, unless the utility has decided already.
            if step.name == UTILITY_CHECK and not quiet:
                compared = kept
        return cls(selected=int(pool.argmax()), compared=compared, quiet=quiet, steps=tuple(record))


def _of_the_table(
    rule: str,
    points: pd.DataFrame,
    means: pd.DataFrame,
    passed: NDArray[np.bool_],
    constraints: Constraints,
    selected: int,
) -> list[Warned]:
    """Return the cautions that the table causes, whatever its scores are."""
    corner = at_the_corner(means, passed, constraints) if rule == "procedure" else []
    return [
        *without_guarantee(points, means.iloc[selected]),
        *worse_than_untrained(means, selected),
        *left_out(points),
        *entered_twice(points),
        *corner,
    ]


def _without_scores(
    rule: str,
    points: pd.DataFrame,
    means: pd.DataFrame,
    constraints: Constraints,
    narrowings: list[Narrowing],
    passed: NDArray[np.bool_],
    record: list[SelectionStep],
) -> Selection:
    """Select by a rule that needs no score. Nothing is known of leakage, so nothing is decided."""
    # A layout has scores. The rules that need none never read them.
    layout = Layout.of(means.assign(score=0.0))
    listed = np.array(configurations(means), dtype=object)
    pool, steps = passed, list(record)
    for step in rule_steps(rule):
        kept = step.keep(layout, pool)
        steps.append(_step(step.name, step.text, listed, pool, kept))
        pool = kept
    selected = int(pool.argmax())
    return Selection(
        **_facts(points, means, constraints, selected),
        rule=rule,
        steps=tuple(steps),
        cautions=tuple(_of_the_table(rule, points, means, passed, constraints, selected)),
        changes=threshold_changes(rule, layout, means, narrowings, passed, selected),
    )


class _Facts(TypedDict):
    """The fields of a selection that the points table holds."""

    configuration: Configuration
    utility_loss: float
    score: float | None
    model_uri: str | None
    own_score: float | None
    num_seeds: int
    base_utility_loss: float | None
    max_loss: float | None
    constraints: Constraints
    epsilon: float | None
    delta: float | None
    scores: dict[str, float]


def _facts(
    points: pd.DataFrame, means: pd.DataFrame, constraints: Constraints, selected: int
) -> _Facts:
    """Return the figures of the selected configuration."""
    own = means.iloc[selected]
    runs = points[np.all([points[name] == own[name] for name in KEY], axis=0)]
    threshold = constraints.thresholds(means)
    loaded = runs[runs["model_uri"] == own["model_uri"]] if "model_uri" in runs else runs[:0]
    return {
        "configuration": configurations(means.iloc[[selected]])[0],
        "utility_loss": float(own["utility_loss"]),
        "score": known(own["score"]),
        "model_uri": own["model_uri"],
        # One seed is loaded, and the seeds' mean is another figure.
        "own_score": known(loaded["score"].iloc[0]) if len(loaded) == 1 < len(runs) else None,
        "num_seeds": len(runs),
        "base_utility_loss": largest(runs, "base_utility_loss"),
        # A share of the gain may give each configuration its own threshold: record the loosest.
        "max_loss": None if threshold is None else float(threshold.max()),
        "constraints": constraints,
        "epsilon": largest(runs, "epsilon"),
        "delta": largest(runs, "delta"),
        "scores": {
            name: mean
            for name in score_names(runs)
            if not math.isnan(mean := score_values(runs, name).mean())
        },
    }


def _narrowed(
    listed: NDArray[np.object_], narrowings: list[tuple[str, str, NDArray[np.bool_]]]
) -> tuple[NDArray[np.bool_], list[SelectionStep]]:
    """Return the configurations that keep to all constraints, [m], and each constraint's record.

    Raises:
        ValueError: no configuration keeps to all of them.
    """
    pool = np.ones(len(listed), dtype=np.bool_)
    record: list[SelectionStep] = []
    for name, text, kept in narrowings:
        # Each constraint alone leaves some configurations, but together they may leave none.
        if not (pool & kept).any():
            raise ValueError(
                "constraints must leave a configuration, got none that keeps to the constraint "
                f"{name} and the earlier constraints. Relax one of them."
            )
        record.append(_step(name, text, listed, pool, pool & kept))
        pool = pool & kept
    return pool, record


def _explanation(
    rule: str,
    quiet: bool,
    evidence: Evidence,
    passed: NDArray[np.bool_],
    listed: NDArray[np.object_],
) -> str | None:
    """Explain a selection by utility, or how the scores contradict Algorithm 1; else None."""
    if quiet and evidence.leakage is not None:
        return evidence.leakage.sentence(passed)
    if rule != DEFAULT_RULE:
        return None
    # Algorithm 1 reads no scores, so the scores can contradict it.
    position = choose("procedure", evidence.layout, passed)
    better = int((passed & dominates(evidence.layout, position[..., None])).sum())
    if not better:
        return None
    others = f"{better} configurations have" if better > 1 else "one configuration has"
    return (
        f"The scores contradict the rule procedure, which would select {listed[int(position)]}: "
        f"{others} neither more loss nor a higher score. `--rule procedure` selects by (b, T, η) "
        "alone."
    )


def _step(
    name: str,
    text: str,
    listed: NDArray[np.object_],
    before: NDArray[np.bool_],
    after: NDArray[np.bool_],
) -> SelectionStep:
    """Return the record of a step that narrowed the pool from `before` to `after`."""
    return SelectionStep(
        name=name, rule=text, survivors=tuple(listed[after]), dropped=tuple(listed[before & ~after])
    )
