"""The tuning of a sweep, for its runs' records: values, data of the choice, earlier tuning."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from raydp.analysis.selection.default import WITHOUT_SCORES
from raydp.privacy.records.card_content import Searched, Strategy
from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.search_spaces.settings import value_in_words
from raydp.spec.document import SweepSpec
from raydp.spec.sections import AdaptiveSeeds
from raydp.training.trial_plan import TrialPlan


def tuning_of(spec: SweepSpec, trials: Sequence[TrialPlan]) -> Searched:
    """Return what was tuned. The keys are those of `Searched`."""
    values = {name: sorted({getattr(trial, name) for trial in trials}) for name in HYPERPARAMETERS}
    fields = _fields(trials)
    # What the choice looked at, which the ε of one run does not cover.
    chosen, on = spec.select, []
    search = spec.space.search
    measured = search is not None and search.name != "random"
    if chosen.rule != "oracle" or chosen.min_gain_share or chosen.max_loss is not None or measured:
        on.append("utility_loss of the task's held-out records")
    if chosen.rule not in WITHOUT_SCORES or chosen.max_score is not None or measured:
        on.append(f"{chosen.score} of the training data")
    on += [f"at most {bound:g} of {column}" for column, bound in chosen.at_most.items()]
    # A search and adaptive seeds also look at results to choose the next run.
    strategy: Strategy = {} if search is None else {"search": search.as_dict()}
    if isinstance(spec.seeds, AdaptiveSeeds):
        strategy["adaptive_seeds"] = spec.seeds.model_dump(mode="json")
    # A hyperparameter with one value was not tuned.
    return {
        "hyperparameters": {name: tried for name, tried in values.items() if len(tried) > 1}
        | fields,
        "configurations": len({trial.configuration for trial in trials}),
        "seeds": list(spec.seed_labels),
        "rule": chosen.rule_name,
        **strategy,
        "chosen_on": on,
        "elsewhere": [*_elsewhere(fields), "the data's preparation"],
    }


def _elsewhere(fields: Collection[str]) -> list[str]:
    """Return what may have been tuned before, beside the fields that the sweep itself tunes."""
    norm = "" if "method.max_grad_norm" in fields else "max_grad_norm and "
    rest = "the rest of " if any(path.startswith("model.adapter") for path in fields) else ""
    return [f"{norm}other parameters of the method", f"{rest}the adapter"]


def _fields(trials: Sequence[TrialPlan]) -> dict[str, list[object]]:
    """Return the further fields that were tuned, each with its values."""
    tried: dict[str, dict[str, object]] = {}
    for trial in trials:
        for path, value in trial.settings.items():
            tried.setdefault(path, {})[value_in_words(value)] = value
    return {path: list(values.values()) for path, values in tried.items() if len(values) > 1}
