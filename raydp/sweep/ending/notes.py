"""The notes of a report: the guarantee, what it does not cover, and how the data were prepared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Required, TypedDict

from raydp.analysis.selection.verdict import Verdict
from raydp.analysis.statistics.results import Warned
from raydp.plugins.registries import names
from raydp.privacy import PrivacyRecord, bound_in_words, cautions_together, guarantee, stated
from raydp.privacy.records.record import ADJACENCY
from raydp.search_spaces import Configuration
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.measurements import measured_later, scores_of, words_of
from raydp.sweep.store.state import Plan
from raydp.sweep.store.summary import ReleasedModels
from raydp.system.cache import cache_dir

if TYPE_CHECKING:
    from raydp.analysis import Selection
    from raydp.analysis.figures.curves import Curve
    from raydp.scores.words import ScoreWords

_MOST_CAUTIONS = 4
_MOST_CURVES = 200
"""The largest number of runs whose training is read for a report."""


class ReportTexts(TypedDict, total=False):
    """Arguments of `raydp.analysis.write_report` that its points table does not contain."""

    title: Required[str]
    base_score: float | None
    score_name: str | None
    words: ScoreWords
    card_rows: Mapping[str, str]
    warnings: Sequence[str]
    notes: Sequence[str]
    curves: Sequence[Curve]
    advantage_fn: Callable[[Configuration], float | None]


def about(
    folder: SweepFolder, *, score: str | None = None, worst_case: bool = False
) -> ReportTexts:
    """Return the texts and the base score of a sweep's report.

    Args:
        folder: the sweep's folder.
        score: the score that the report shows; by default the score that the sweep selects by.
        worst_case: whether the report shows the largest value over the secrets.
    """
    plan = folder.plan()
    # Reading the whole spec would import the training code.
    written, selected_by = folder.names(), folder.select().score
    named, private = score or selected_by, folder.disclosure().note
    # The score of the untrained model, which the report compares the others with.
    measured = None
    if named is not None:
        later = measured_later(folder)
        measured = scores_of(folder.result(BASE_RUN), BASE_RUN, later).get(named)
    base = None if measured is None else measured.value
    if measured is not None and worst_case:
        base = max(measured.per_secret.values())
    # The title names the score if it is not the sweep's own.
    label = None if named is None else f"{'worst case of ' if worst_case else ''}{named}"
    by = f", by {'the ' if worst_case else ''}{label}" if score is not None or worst_case else ""
    return {
        "title": f"{written['sweep']}{by}",
        "base_score": base,
        "score_name": label,
        "words": words_of(folder, named),
        "card_rows": {
            **card_of(plan),
            **_joint(folder.released()),
            "Base model": str(written["model"]),
            "Task": str(written["task"]),
            "Method": str(written["method"]),
        },
        "warnings": [
            *([] if private is None else [f"This page shows {private}."]),
            *_searched(folder, written["search"]),
        ],
        "notes": [*_seeds(folder), *notes_of(plan), *together_notes(folder.released())],
        "curves": [] if named is None else _curves(folder, plan, named),
        "advantage_fn": partial(_advantage, plan),
    }


def _advantage(plan: Plan, configuration: Configuration) -> float | None:
    """Return the largest advantage of a test of membership against a configuration's models.

    The end of a run has computed it, so it is read from the cache of this machine.
    """
    of = next((t.run_id for t in plan.trials if t.configuration.key == configuration.key), None)
    record = None if of is None else plan.privacy[of]
    # The event of a run that was chosen among others is not what its ε bounds.
    if record is None or record.choice is not None or math.isinf(record.accounted.epsilon):
        return None
    name, event = record.accounted.accountant, record.mechanism.event
    if name not in names("accountants"):  # it was a plug-in's, which is not installed here
        return None
    attack = guarantee(event, name, cache_dir=cache_dir() / "guarantee")["attack"]
    return None if "reason" in attack else attack["advantage"]


def _curves(folder: SweepFolder, plan: Plan, score: str) -> list[Curve]:
    """Return the training of the first 200 finished runs that have a history of steps."""
    from raydp.analysis.figures.curves import Curve

    # Read one result at a time: a history is long, and a sweep may have thousands of runs.
    results = ((trial, folder.result(trial.run_id)) for trial in plan.trials)
    finished = (
        (trial, result) for trial, result in results if result is not None and result.finished
    )
    later = measured_later(folder)
    curves = []
    for trial, result in islice(finished, _MOST_CURVES):
        measured = scores_of(result, trial.run_id, later).get(score)
        if not result.history or measured is None:
            continue
        # A step without a finite loss, as after a divergence, has no place in a curve.
        rows = [
            row
            for row in result.history
            if row.get("loss") is not None and math.isfinite(row["loss"])
        ]
        curves.append(
            Curve(
                name=str(trial),
                score=measured.value,
                steps=[int(row["step"]) for row in rows],
                losses=[row["loss"] for row in rows],
                heldout=[
                    # Steps count from 0, and the held-out loss is measured after the step.
                    (int(row["step"]) + 1, row["heldout_loss"])
                    for row in result.history
                    if "heldout_loss" in row
                ],
            )
        )
    return curves


def _seeds(folder: SweepFolder) -> list[str]:
    """Return how adaptive seeds ended, if there were any."""
    ended = folder.seeds_end()
    return [] if ended is None else [ended.sentence()]


def _searched(folder: SweepFolder, strategy: str | None) -> list[str]:
    """Return a warning if a search chose which configurations were run."""
    search = folder.search_end()
    if search is None or strategy is None:
        return []
    return [
        f"The search {strategy} chose which configurations were run and left out "
        f"{len(search.skipped)}. Accuracies, regressions, spreads and risks describe only the "
        "configurations that were run."
    ]


def card_of(plan: Plan) -> dict[str, str]:
    """Return the rows of the report's card about the guarantee."""
    record, caveats = plan.record, plan.facts.notes.get("caveats", [])
    accounted, procedure = record.accounted, record.procedure
    # Beside ε stand its unit, its adjacency, its sampler, and why it is not certified.
    return {
        **_stated(plan),
        "Unit of privacy": record.unit,
        "Certified": record.certified_in_words,
        "Adjacency": ADJACENCY.replace("-", " "),
        **({"Caveats": f"{len(caveats)}, among the notes at the end"} if caveats else {}),
        "Sampler": str(procedure.sampler),
        "Accountant": f"{accounted.accountant} ({accounted.accountant_version})",
    }


def _stated(plan: Plan) -> dict[str, str]:
    """Return the row of an ε that is only stated: its range, and how many models it is of."""
    stated = [one.stated for one in plan.privacy.values() if one.stated is not None]
    if not stated:
        return {}
    ends = (extreme(one.epsilon for one in stated) for extreme in (min, max))
    words = " to ".join(dict.fromkeys(f"{end:g}" for end in ends))
    if len(stated) < len(plan.privacy):
        words += f", for {len(stated)} of {len(plan.privacy)} models"
    return {f"{stated[0].level.capitalize()} ε": f"{words}, not certified"}


def notes_of(plan: Plan) -> list[str]:
    """Return sentences on the guarantee and on the preparation of the data."""
    record = plan.record
    certified = [f"Not certified: {reason}." for reason in record.not_certified_because]
    covered = [f"Not covered: {item}." for item in record.not_covered]
    return [promise_of(record), *certified, *covered, *plan.facts.sentences()]


def promise_of(record: PrivacyRecord) -> str:
    """Return the guarantee of a sweep's models in a sentence."""
    accounted = record.accounted
    model = "Each model" if record.choice is None else "The released model"
    target = f"{accounted.target_epsilon or math.inf:g}"
    # With a given σ, ε is what it comes to.
    if accounted.target_epsilon is None and math.isfinite(accounted.epsilon):
        target = stated(accounted.epsilon)
    return (
        f"{model}: ε at most {target} at δ = {accounted.delta:.3g} "
        f"for one {record.unit} added or removed, by accountant {accounted.accountant} "
        f"({accounted.accountant_version})."
    )


def _joint(released: ReleasedModels | None) -> dict[str, str]:
    """Return the row of the joint ε of all registered models, if several have a guarantee."""
    if released is None or released.num_models == 1 or released.epsilon in (None, math.inf):
        return {}
    return {
        "All models together": f"ε ≤ {stated(released.epsilon)} for {released.num_models} models"
    }


def cautions_about(folder: SweepFolder) -> list[Warned]:
    """Return the cautions of the plan and of the joint cost, said wherever a decision is shown."""
    released = folder.released()
    together = (
        []
        if released is None
        else cautions_together(released.epsilon, released.num_models, released.accountant)
    )
    found = (*folder.plan().warnings, *together)
    return [Warned(str(caution), short=caution.short) for caution in found]


def limits_of(folder: SweepFolder, cautions: Sequence[str]) -> list[str]:
    """Return what limits a choice of a sweep: its guarantee, the choice itself, and the plan."""
    plan, released, found = folder.plan(), folder.released(), list[str]()
    reasons = plan.record.not_certified_because
    # Without an ε the reason is the whole answer; `--explain` has what stands behind it.
    if math.isinf(plan.record.accounted.epsilon):
        found.append("no guarantee: ε is infinite, so privacy-preferred is not set")
        reasons = ()
    found += [f"not certified, do not release: {reason}" for reason in reasons]
    if released is not None and released.epsilon is not None and released.num_models > 1:
        joint = f"all {released.num_models} models together: ε ≤ {stated(released.epsilon)}"
        # What is not certified is not for release.
        advice = "" if plan.record.not_certified_because else "; publish the selected one alone"
        found += [f"{joint}{advice}"] if math.isfinite(released.epsilon) else []
    # The plan's warnings come last; the reason why it is not certified names the key already.
    of_sweep = [caution.short for caution in cautions_about(folder)]
    found += [caution for caution in cautions if caution not in of_sweep]
    known = "privacy.noise_key" if plan.record.not_certified_because else None
    return [*found, *(c.short for c in plan.warnings if known is None or known not in c.rule)]


def together_notes(released: ReleasedModels | None) -> list[str]:
    """Return the joint cost of all registered models, if several have a guarantee."""
    # One model's own card already states its ε.
    if released is None or released.epsilon == math.inf or released.num_models == 1:
        return []
    if released.epsilon is None:
        return [
            f"The joint cost of all {released.num_models} models of this sweep is not known: "
            f"{released.reason}"
        ]
    return [
        f"All {released.num_models} models of this sweep together: ε at most "
        f"{stated(released.epsilon)} at δ = {released.delta:.3g}, by accountant "
        f"{released.accountant}. That is the guarantee if all are used."
    ]


def choice_of(selection: Selection, best: Selection, folder: SweepFolder) -> str:
    """Return a sweep's decision as Markdown: the choice, how sure it is, and its cautions."""
    bound = bound_in_words(selection.epsilon, selection.delta)
    verdict = Verdict.of(selection, best, words_of(folder, selection.score_name), bound)
    limits = limits_of(folder, verdict.cautions)
    said = {
        "Leakage": verdict.leak,
        "How sure": verdict.certainty,
        "Best utility": verdict.best_utility,
        "Runner-up": verdict.runner_up,
        **{f"Caution {n}": text for n, text in enumerate(limits[:_MOST_CAUTIONS], 1)},
    }
    head = f"Selected: {verdict.configuration}, {', '.join(verdict.figures)}"
    lines = [f"- {name}: {text}" for name, text in said.items() if text is not None]
    return "\n".join([head, "", *lines])
