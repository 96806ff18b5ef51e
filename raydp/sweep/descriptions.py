"""The description of a model for the pages of MLflow, as Markdown."""

from __future__ import annotations

import math

from raydp.privacy import PrivacyRecord, bound_in_words
from raydp.scores.words import ScoreWords
from raydp.search_spaces.settings import settings_in_words
from raydp.spec.document import SweepSpec
from raydp.tracking.records import TrialRecord, name_of


def adapter_in_words(spec: SweepSpec) -> str:
    """Return the trained weights, such as "lora, r = 4, alpha = 32"."""
    fields = spec.model.adapter.model_dump(mode="json", exclude_none=True)
    if (kind := fields.pop("type")) == "none":
        return "all weights"
    return ", ".join([kind, *([settings_in_words(fields)] if fields else [])])


def describe_model(
    trial: TrialRecord, record: PrivacyRecord, spec: SweepSpec, words: ScoreWords
) -> str:
    """Describe a model: its figures, how sure they are, its guarantee, and what it is made from."""
    score, label, accounted = trial.metrics.get("score"), spec.select.score, record.accounted
    error = trial.metrics.get(f"score.{label}.std_error")
    bound = bound_in_words(accounted.epsilon, accounted.delta)
    figures, said = [f"loss {trial.metrics['utility_loss']:.4g}"], dict[str, str | None]()
    if score is not None and math.isfinite(score):
        figures.append(f"score {score:.3g}")
        said["Leakage"] = words.say(score)
        sure = "" if error is None else f", standard error over secrets {error:.2g}"
        said["Score"] = f"{label}{sure}"
    # A guarantee is named with its unit and its accountant.
    if bound is not None:
        figures.append(bound)
        said["Guarantee"] = f"{bound} for one {record.unit}, by accountant {accounted.accountant}"
    said |= {
        "Certified": record.certified_in_words,
        "Run": f"{name_of(trial.configuration())}, {spec.method.name}, sweep {spec.name}",
        "Base model": f"{trial.base['name']}; adapter: {adapter_in_words(spec)}",
        "Data": f"{spec.task.name}, digest {trial.params['task_hash']}",
    }
    lines = [f"- {name}: {text}" for name, text in said.items() if text is not None]
    return "\n".join([", ".join(figures), "", *lines])
