"""Secrets as token ids, and the choice of a task's secrets that a score can measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from raydp.plugins import registries
from raydp.scores.score import SecretKind
from raydp.tasks.task import Secret
from raydp.tasks.text.windows import start_tokens, with_start

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from raydp.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class EncodedSecret:
    """A secret as token ids.

    Attributes:
        id: see Secret.id; the random draws depend on it.
        name: what the secret is called in records.
        prompt_ids: token ids of s1 after the tokenizer's start tokens, if any; never empty.
        continuation_ids: token ids of s2, tokenised separately from s1 and without special tokens;
            never empty.
    """

    id: str
    name: str
    prompt_ids: tuple[int, ...]
    continuation_ids: tuple[int, ...]


def encode(tokenizer: PreTrainedTokenizerBase, secrets: Sequence[Secret]) -> list[EncodedSecret]:
    """Tokenise s1 and s2 separately, so that continuations can be compared as token ids.

    Raises:
        ValueError: the prompt or the continuation of a secret has no token.
    """
    start, encoded = start_tokens(tokenizer), []
    for secret in secrets:
        # The prompt gets the start tokens, which training puts before each text.
        own_ids = tokenizer(secret.prompt, add_special_tokens=False).input_ids
        prompt_ids = tuple(with_start(own_ids, start))
        # s2 is tokenised alone, as in training: a joint encoding might merge tokens at the
        # boundary.
        continuation_ids = tuple(tokenizer(secret.continuation, add_special_tokens=False).input_ids)
        for part, ids in (("prompt", prompt_ids), ("continuation", continuation_ids)):
            if not ids:
                raise ValueError(
                    f"{secret.name}: {part} must have at least one token, got none. Move text into "
                    f"the {part}."
                )
        encoded.append(
            EncodedSecret(
                id=secret.id,
                name=secret.name,
                prompt_ids=prompt_ids,
                continuation_ids=continuation_ids,
            )
        )
    return encoded


def secrets_of_kind(task: Task, kind: SecretKind, *, score: str) -> list[Secret]:
    """Return the task's secrets that a score can measure.

    Args:
        task: any task.
        kind: the kind of secrets that the score measures.
        score: the score's registered name, for the message.

    Raises:
        ValueError: the task has no such secrets (the message says which scores fit), or a secret
            occurs twice (its values would collide in one entry).
    """
    secrets = task.secrets()
    # Secrets without a number are named by their place, so that every record has a name.
    numbered = [replace(s, number=s.number or place) for place, s in enumerate(secrets, start=1)]
    chosen = [secret for secret in numbered if secret.kind == kind]
    # If there is nothing to measure, say which scores fit the secrets that are there.
    if not chosen:
        present = Counter(secret.kind for secret in secrets)
        got = (
            ", ".join(f"{count} of kind {other!r}" for other, count in sorted(present.items()))
            or "none"
        )
        fitting = " and ".join(_scores_for(other) for other in sorted(present))
        remedy = f"Choose {fitting} for them" if fitting else "Give the task secrets"
        raise ValueError(
            f"task.secrets must contain kind {kind!r} for the score {score!r}, got {got}. {remedy}."
        )
    # Equal ids would share one entry of `per_secret`, so one value would be lost.
    by_id = {secret.id: secret for secret in chosen}
    repeated = [secret.name for secret in chosen if by_id[secret.id] is not secret]
    if repeated:
        raise ValueError(
            f"task.secrets must differ from each other, got {repeated[0]} twice. Remove one."
        )
    if len({secret.name for secret in chosen}) < len(chosen):
        raise ValueError(
            "task.secrets must have different numbers, got one twice. Number them from 1."
        )
    return chosen


def _scores_for(kind: SecretKind) -> str:
    """Name the scores that measure secrets of a kind."""
    scores = {name: registries.resolve("scores", name) for name in registries.own_names("scores")}
    names = [name for name, score in scores.items() if kind in score.secret_kinds]
    return f"{', '.join(names[:-1])} or {names[-1]}"
