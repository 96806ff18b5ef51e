"""A task without the examples that hold some of its secrets: the counterfactual control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raydp.tasks.base import Secret
from raydp.tasks.secret import mentions
from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.wrappers.derived import DerivedTask

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class WithoutTask(DerivedTask):
    """Another language modelling task without the training examples that hold the named secrets.

    The secrets stay and are scored, with a count of 0, so that two sweeps of the same configurations, one with and one
    without, tell what the examples did to the scores (`raydp analyze counterfactual`).

    Guarantee:
        (ε, δ) holds for the data that are left. n is smaller: q = b/n, the noise at one ε, and a δ that follows n
        (delta_exponent) differ a little from those of the whole task. That examples were left out, and which, is not
        covered.

    Source: Zhang et al. 2023 ("Counterfactual memorization in neural language models"); Feldman and Zhang 2020.
    """

    secrets: Annotated[tuple[int, ...], Field(min_length=1)] | Literal["all"] = "all"
    """Numbers of the secrets whose examples are left out, as in the secrets' names; or `all`."""

    def build(self, tokenizer: PreTrainedTokenizerBase) -> LanguageModelingTask:
        """Leave the examples out.

        Raises:
            ValueError: a secret is unknown, the examples that hold it cannot be told, nothing is left, or what
                DerivedTask.inner raises.
        """
        task = self.inner(tokenizer)
        named = self._named(task)
        holders = examples_with(task, tokenizer)
        left_out: set[int] = set()
        for secret in task.task_secrets:
            if secret.number in named:
                left_out.update(_told(secret, holders[secret.number]).tolist())
        kept = np.setdiff1d(np.arange(len(task.train)), sorted(left_out))
        if not len(kept):
            raise ValueError("task.secrets must leave an example to train on, got none. Name fewer secrets.")
        secrets = tuple(_recounted(secret, holders[secret.number], left_out) for secret in task.task_secrets)
        smaller = replace(task, task_secrets=secrets).subset(kept)
        facts = smaller.task_facts
        caveat = (
            f"{len(left_out)} training examples are left out for what they hold: n is {facts.num_units}, and q, noise "
            "and a delta that follows n are those of the data that are left. Epsilon does not cover the leaving out."
        )
        notes = facts.notes | {
            "left_out_secrets": [secret.name for secret in secrets if secret.number in named],
            "left_out_examples": len(left_out),
            "caveats": [*facts.notes.get("caveats", ()), caveat],
        }
        return replace(smaller, task_facts=replace(facts, notes=notes))

    def _named(self, task: LanguageModelingTask) -> set[int]:
        """Numbers of the secrets to leave out."""
        known = {secret.number for secret in task.task_secrets}
        if not known:
            raise ValueError("task.of must be a task with secrets, got none. Give it secrets.")
        named = known if self.secrets == "all" else set(self.secrets)
        if self.secrets != "all" and len(named) < len(self.secrets):
            raise ValueError(f"task.secrets must name each secret once, got {list(self.secrets)}. Remove the repeated.")
        if unknown := sorted(named - known):
            raise ValueError(
                f"task.secrets must be numbers of the task's secrets, {min(known)} to {max(known)}, got {unknown[0]}. "
                "Correct it."
            )
        return named


def examples_with(task: LanguageModelingTask, tokenizer: PreTrainedTokenizerBase) -> dict[int, NDArray[np.int64]]:
    """Training examples that hold each secret, by the secret's number.

    A verbatim secret is held by an example that says prompt and continuation. So is an attribute where as many say both
    as the secret counts; otherwise an example that mentions it holds it, of its user's alone where the secret has one.
    Examples are decoded from their tokens.
    """
    train = task.train
    rows = [train.token_ids[begin:end].tolist() for begin, end in zip(train.offsets, train.offsets[1:], strict=False)]
    texts = tokenizer.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    folded = [text.casefold() for text in texts]
    return {secret.number: _holding(secret, texts, folded, task) for secret in task.task_secrets}


def _holding(
    secret: Secret, texts: Sequence[str], folded: Sequence[str], task: LanguageModelingTask
) -> NDArray[np.int64]:
    whole = secret.prompt + secret.continuation
    saying = np.array([i for i, text in enumerate(texts) if whole in text], np.int64)
    if secret.kind == "verbatim" or len(saying) == secret.count:
        return saying
    attribute = secret.continuation.casefold()
    mentioning = [i for i, text in enumerate(folded) if attribute in text and mentions(text, attribute)]
    if secret.user is not None and task.users is not None:
        mentioning = [i for i in mentioning if task.users.of_example[i] == secret.user]
    return np.array(mentioning, np.int64)


def _told(secret: Secret, found: NDArray[np.int64]) -> NDArray[np.int64]:
    """What was found, if it is what the task counted."""
    if len(found) != secret.count:
        raise ValueError(
            f"task.secrets must be such that the examples with them can be told, got {secret.name}, which the task "
            f"counts in {secret.count} examples and whose text is in {len(found)}. Leave it out; if task.of is itself "
            "made of another task, make this one of that other task first."
        )
    return found


def _recounted(secret: Secret, found: NDArray[np.int64], left_out: set[int]) -> Secret:
    """With the count that is left: examples may hold several secrets."""
    return replace(secret, count=secret.count - len(left_out.intersection(found.tolist())))
