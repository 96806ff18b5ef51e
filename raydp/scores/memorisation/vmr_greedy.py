"""Verbatim memorisation under greedy decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from raydp.scores.base import Measurement, OneByOne, SecretKind
from raydp.scores.language.encoding import EncodedSecret, encode, secrets_of_kind
from raydp.scores.language.teacher_forcing import over_continuations

if TYPE_CHECKING:
    from raydp.models.base_models import LoadedModel
    from raydp.tasks.base import Task


class GreedyVerbatimMemorization(OneByOne):
    """1 if greedy decoding continues a secret's prompt with exactly the secret, 0 otherwise.

    Greedy decoding gives s2 if and only if each token of s2 is the most likely one after s1 and the tokens of s2 before
    it. So one teacher-forced pass decides. If tokens tie for the most likely, the one that torch.max returns counts.

    The standard error is over secrets. Higher is worse privacy.

    Source: Hu et al. 2025, §2 (VMR as an indicator); Carlini et al. 2023, Definition 3.1.
    """

    secret_kinds: ClassVar[tuple[SecretKind, ...]] = ("verbatim",)

    def check(self, task: Task) -> None:
        """Raise ValueError if the task has no verbatim secrets."""
        secrets_of_kind(task, "verbatim", score="vmr_greedy")

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model. The seed has no effect."""
        secrets = encode(model.tokenizer, secrets_of_kind(task, "verbatim", score="vmr_greedy"))

        def matches(logits: torch.Tensor, secret: EncodedSecret) -> bool:
            largest, tokens = logits.max(dim=-1)
            if not largest.isfinite().all():
                raise ValueError(f"logits must be finite, got {largest.max()}. The model diverged in training.")
            return tokens.tolist() == list(secret.continuation_ids)

        values = over_continuations(model, secrets, matches)
        return Measurement.over_secrets(values, ids=[secret.name for secret in secrets])

    def expected_bounds(self) -> tuple[float, float]:
        """Return the bounds of an indicator."""
        return 0.0, 1.0
