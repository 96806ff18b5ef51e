"""A task without the training examples that contain some of its secrets.

It is the counterfactual control.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raydp.tasks.secret import mentions
from raydp.tasks.task import Secret
from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.wrappers.derived_task import DerivedTask

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class WithoutTask(DerivedTask):
    """Another language modelling task without the training examples that contain the named secrets.

    The secrets stay and are scored, with a count of 0. Two sweeps of the same configurations, one
    on each task, show the effect of the examples on the scores (`raydp analyze counterfactual`).

    Guarantee:
        (ε, δ) holds for the remaining data. n is smaller, so q = b/n, the noise at one ε, and a δ
        that follows n (delta_exponent) differ a little from the values of the whole task. The
        choice of the left-out examples is not covered.

    Source: Zhang et al. 2023 ("Counterfactual memorization in neural language models"); Feldman and
    Zhang 2020.
    """

    secrets: Annotated[tuple[int, ...], Field(min_length=1)] | Literal["all"] = "all"
    """Numbers of the secrets whose examples are left out, as in the secrets' names; or `all`."""

    def build(self, tokenizer: PreTrainedTokenizerBase) -> LanguageModelingTask:
        """Build the task without the examples.

        Raises:
            ValueError: a secret is unknown, the examples that contain it cannot be identified, no
                example is left, or an error of DerivedTask.inner.
        """
        # Find the examples of the named secrets; a count that does not fit is an error.
        task = self.inner(tokenizer)
        named = self._named(task)
        holders = examples_with(task, tokenizer)
        left_out: set[int] = set()
        for secret in task.task_secrets:
            if secret.number in named:
                left_out.update(_checked_holders(secret, holders[secret.number]).tolist())
        # Keep the order of the examples that stay.
        kept = np.setdiff1d(np.arange(len(task.train)), sorted(left_out))
        if not len(kept):
            raise ValueError(
                "task.secrets must leave an example to train on, got none. Name fewer secrets."
            )
        # The secrets stay in the task and are scored, with the counts that are left.
        secrets = tuple(
            _recounted(secret, holders[secret.number], left_out) for secret in task.task_secrets
        )
        smaller = replace(task, task_secrets=secrets).subset(kept)
        # The plan must say that n, q and the noise are those of the smaller data.
        facts = smaller.task_facts
        caveat = (
            f"{len(left_out)} training examples are left out for what they hold: n is "
            f"{facts.num_units}, and q, noise and a delta that follows n are those of the data "
            "that are left. Epsilon does not cover the leaving out."
        )
        notes = facts.notes | {
            "left_out_secrets": [secret.name for secret in secrets if secret.number in named],
            "left_out_examples": len(left_out),
            "caveats": [*facts.notes.get("caveats", ()), caveat],
        }
        return replace(smaller, task_facts=replace(facts, notes=notes))

    def _named(self, task: LanguageModelingTask) -> set[int]:
        """Return the numbers of the secrets whose examples are left out."""
        known = {secret.number for secret in task.task_secrets}
        if not known:
            raise ValueError("task.of must be a task with secrets, got none. Give it secrets.")
        named = known if self.secrets == "all" else set(self.secrets)
        if self.secrets != "all" and len(named) < len(self.secrets):
            raise ValueError(
                f"task.secrets must name each secret once, got {list(self.secrets)}. Remove the "
                "repeated."
            )
        if unknown := sorted(named - known):
            raise ValueError(
                f"task.secrets must be numbers of the task's secrets, {min(known)} to "
                f"{max(known)}, got {unknown[0]}. Correct it."
            )
        return named


def examples_with(
    task: LanguageModelingTask, tokenizer: PreTrainedTokenizerBase
) -> dict[int, NDArray[np.int64]]:
    """Return the training examples that contain each secret, by the secret's number.

    An example contains a verbatim secret if its text contains prompt and continuation. The rule
    also applies to an attribute if the number of such examples equals the secret's count. Otherwise
    an example contains the attribute if it mentions it; if the secret has a user, only this user's
    examples count. Examples are decoded from their tokens.
    """
    train = task.train
    # Texts are not kept in a task, so they are decoded from the tokens.
    rows = [
        train.token_ids[begin:end].tolist()
        for begin, end in zip(train.offsets, train.offsets[1:], strict=False)
    ]
    # Clean-up would change blanks before punctuation, and a verbatim search would miss.
    texts = tokenizer.batch_decode(
        rows, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    folded = [text.casefold() for text in texts]
    return {secret.number: _holding(secret, texts, folded, task) for secret in task.task_secrets}


def _holding(
    secret: Secret, texts: Sequence[str], folded: Sequence[str], task: LanguageModelingTask
) -> NDArray[np.int64]:
    # Search prompt and continuation together first: this is certain wherever it fits the count.
    whole = secret.prompt + secret.continuation
    saying = np.array([i for i, text in enumerate(texts) if whole in text], np.int64)
    if secret.kind == "verbatim" or len(saying) == secret.count:
        return saying
    attribute = secret.continuation.casefold()
    # The plain search is fast and rules out most texts; `mentions` checks whole words.
    mentioning = [
        i for i, text in enumerate(folded) if attribute in text and mentions(text, attribute)
    ]
    if secret.user is not None and task.users is not None:
        mentioning = [i for i in mentioning if task.users.of_example[i] == secret.user]
    return np.array(mentioning, np.int64)


def _checked_holders(secret: Secret, holders: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the examples that contain a secret; raise ValueError if the secret's count differs."""
    if len(holders) != secret.count:
        raise ValueError(
            f"task.secrets must be secrets whose examples can be found, got {secret.name}, which "
            f"the task counts in {secret.count} examples and whose text is in {len(holders)}. "
            "Leave it out; if task.of is itself made of another task, make this task of that other "
            "task first."
        )
    return holders


def _recounted(secret: Secret, holders: NDArray[np.int64], left_out: set[int]) -> Secret:
    """Return a secret with its count after the removal, also of other secrets' examples."""
    return replace(secret, count=secret.count - len(left_out.intersection(holders.tolist())))
