"""Verbatim memorisation ratio on decoded text."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raydp.scores.base import Measurement, SecretKind
from raydp.scores.language.encoding import encode, secrets_of_kind
from raydp.scores.language.generation import sample_secrets
from raydp.scores.memorisation.vmr import VerbatimMemorization

if TYPE_CHECKING:
    from raydp.models.base_models import LoadedModel
    from raydp.tasks.base import Task


class TextVerbatimMemorization(VerbatimMemorization):
    """Like `vmr`, but a generation counts if its text equals the text of s2, even if the tokens differ.

    Both texts are decoded from token ids, without special tokens. A generation ends at the model's end token or after
    |s2| tokens. The uniform numbers are those of `vmr`, so a secret's value is at least its `vmr`, unless s2 itself
    contains an end token.

    Source: Hu et al. 2025, App. B.7, which compares texts.
    """

    secret_kinds: ClassVar[tuple[SecretKind, ...]] = ("verbatim",)

    def check(self, task: Task) -> None:
        """Raise ValueError if the task has no verbatim secrets."""
        secrets_of_kind(task, "verbatim", score="vmr_text")

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model; deterministic in its seed."""
        secrets = encode(model.tokenizer, secrets_of_kind(task, "verbatim", score="vmr_text"))
        samples = sample_secrets(model, secrets, self, self.num_samples, seed=seed)
        texts = [model.tokenizer.batch_decode(generated, skip_special_tokens=True) for generated in samples]
        targets = [model.tokenizer.decode(list(s.continuation_ids), skip_special_tokens=True) for s in secrets]
        hits = [np.mean([text == target for text in said]) for said, target in zip(texts, targets, strict=True)]
        return Measurement.over_secrets(hits, ids=[secret.name for secret in secrets], num_samples=self.num_samples)
