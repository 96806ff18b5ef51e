"""Filter for secrets worth measuring: unknown to the base model, and memorised without privacy.

A run without privacy must have memorised them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from raydp.scores.language.encoding import encode
from raydp.scores.language.generation import Sampling, sample_continuations, stop_tokens
from raydp.scores.memorisation.air import appears
from raydp.tasks.task import Secret, TaskFacts
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask

if TYPE_CHECKING:
    from raydp.models.base_models import LoadedModel
    from raydp.scores.score import Score

ANSWER_TOKENS = 20
Models = Callable[[], Iterator["LoadedModel"]]


@dataclass(frozen=True, kw_only=True)
class Filtered:
    """The result of filtering a list of secrets.

    Attributes:
        kept: the secrets that pass, in order.
        removed: reason -> number of secrets removed. A secret counts for the first reason that
            applies, in this order.
        figures: secret name -> its measured figures ("acr", "base_acr"), as far as they were
            needed.
        base_rate: share of all secrets that the base model generates greedily. Attributes are not
            removed for it.
        kept_base_rate: the same share of the kept secrets; None if none is kept.
    """

    kept: list[Secret]
    removed: dict[str, int]
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    base_rate: float
    kept_base_rate: float | None

    def notes(self) -> dict[str, object]:
        """Return counts, for printing."""
        rates: dict[str, object] = {
            "base_rate": self.base_rate,
            "base_rate_of_kept": self.kept_base_rate,
        }
        if self.kept_base_rate is None:
            rates["reason"] = "nothing was kept, so base_rate_of_kept is of nothing"
        return {**self.removed, "kept": len(self.kept), **rates}


def said_greedily(model: LoadedModel, secrets: Sequence[Secret]) -> list[bool]:
    """Return whether greedy decoding from each prompt generates the secret.

    A verbatim secret must be generated as exactly the tokens of its continuation. An attribute must
    be mentioned in an answer of 20 tokens. Of equally likely tokens, the one with the smallest id
    is generated.
    """
    # Greedy decoding is sampling from the most likely token alone.
    encoded = encode(model.tokenizer, secrets)
    lengths = [
        len(e.continuation_ids) if s.kind == "verbatim" else ANSWER_TOKENS
        for s, e in zip(secrets, encoded, strict=True)
    ]
    answers = sample_continuations(
        model,
        [e.prompt_ids for e in encoded],
        [np.zeros((1, length)) for length in lengths],
        Sampling(top_k=1),
        stop=stop_tokens(model)
        if any(s.kind == "attribute" for s in secrets)
        else np.zeros(0, np.int64),
    )
    is_said = []
    for secret, one, (answer,) in zip(secrets, encoded, answers, strict=True):
        if secret.kind == "verbatim":
            is_said.append(tuple(answer) == one.continuation_ids)
        else:
            # `decode` is typed for batches.
            text = cast("str", model.tokenizer.decode(answer, skip_special_tokens=True))
            is_said.append(appears(secret.continuation, text))
    return is_said


def filter_secrets(
    secrets: Sequence[Secret],
    base: LoadedModel,
    models: Models,
    *,
    acr: Score | None = None,
    min_acr: float = 1.5,
    max_base_acr: float = 0.5,
    seed: int = 0,
    progress: Callable[[str], None] = lambda step: None,
) -> Filtered:
    """Keep secrets that every given model generates.

    Of verbatim secrets, keep only those unknown to the base model.

    Args:
        secrets: the secrets, with different numbers.
        base: the untrained model.
        models: returns the models of runs without privacy, one after another; called again for each
            pass over them.
        acr: a score of adversarial compression. Verbatim secrets must then also have at least
            min_acr under every model and at most max_base_acr under the base model.
        min_acr, max_base_acr: bounds on the score.
        seed: seed of the score.
        progress: called with the name of the current step.

    Source: Hu et al. 2025, App. B.6. For e-mails, they use one run and ACR. For attributes, they
    use three seeds and no condition on the base model, whose rate is reported.
    """
    removed: dict[str, int] = {}
    figures: dict[str, dict[str, float]] = {}
    # Keep what every model generates greedily.
    progress("asking the base model")
    known = _said(base, secrets)
    memorised = {s.name for s in secrets}
    for number, model in enumerate(models(), start=1):
        progress(f"asking model {number}")
        memorised &= _said(model, secrets)
    left = _kept(secrets, memorised, removed, "not_memorised")
    # Keep what every model compresses enough. Attributes have no ratio, so they pass.
    search = _Search(acr=acr, seed=seed, progress=progress)
    if least := search.least_ratios(left, models, "model {}"):
        figures |= {name: {"acr": ratio} for name, ratio in least.items()}
        passing = {s.name for s in left if least.get(s.name, min_acr) >= min_acr}
        left = _kept(left, passing, removed, "acr_too_low")
    # Remove what the base model generates, or compresses too well.
    unknown = {s.name for s in left if s.kind == "attribute" or s.name not in known}
    left = _kept(left, unknown, removed, "known_to_base")
    if ratios := search.least_ratios(left, lambda: iter([base]), "the base model"):
        for name, ratio in ratios.items():
            figures[name]["base_acr"] = ratio
        passing = {s.name for s in left if ratios.get(s.name, 0.0) <= max_base_acr}
        left = _kept(left, passing, removed, "base_acr_too_high")
    return Filtered(
        kept=left,
        removed=removed,
        figures=figures,
        base_rate=len(known) / len(secrets),
        kept_base_rate=sum(s.name in known for s in left) / len(left) if left else None,
    )


def _kept(
    secrets: Sequence[Secret], passing: set[str], removed: dict[str, int], reason: str
) -> list[Secret]:
    """Return the secrets that pass, and count the others under a reason."""
    kept = [s for s in secrets if s.name in passing]
    removed[reason] = len(secrets) - len(kept)
    return kept


@dataclass(frozen=True, kw_only=True)
class _Search:
    """A search for prompts that compress verbatim secrets. Without a score it finds none."""

    acr: Score | None
    seed: int
    progress: Callable[[str], None]

    def least_ratios(
        self, secrets: Sequence[Secret], models: Models, whose: str
    ) -> dict[str, float]:
        """Return the smallest compression ratio of all models by the name of the secret."""
        verbatim, least = [s for s in secrets if s.kind == "verbatim"], dict[str, float]()
        if self.acr is None or not verbatim:
            return least
        for number, model in enumerate(models(), start=1):
            of_model = whose.format(number)
            self.progress(f"searching for prompts of {len(verbatim)} secrets with {of_model}")
            measured = self.acr.measure(model, _task_of(verbatim, model), seed=self.seed)
            for name, ratio in measured.per_secret.items():
                least[name] = min(ratio, least.get(name, ratio))
        return least


def _said(model: LoadedModel, secrets: Sequence[Secret]) -> set[str]:
    """Return the names of the secrets that greedy decoding generates."""
    return {s.name for s, said in zip(secrets, said_greedily(model, secrets), strict=True) if said}


def _task_of(secrets: Sequence[Secret], model: LoadedModel) -> LanguageModelingTask:
    """Return the secrets as a task without other data, which a score of secrets does not need."""
    ids = [[*e.prompt_ids, *e.continuation_ids] for e in encode(model.tokenizer, secrets)]
    examples = TokenizedExamples.from_lists(ids)
    facts = TaskFacts(
        num_examples=len(ids),
        num_units=len(ids),
        privacy_unit="secret",
        content_hash="",
        num_tokens=sum(map(len, ids)),
    )
    return LanguageModelingTask(
        train=examples, heldout=examples, task_facts=facts, task_secrets=tuple(secrets)
    )
