"""Secrets and the language modelling tasks around them."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from raydp.tasks.task import TaskFacts
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask, content_hash


def examples_task(
    train: Sequence[str], heldout: Sequence[str], tokenizer: PreTrainedTokenizerFast
) -> LanguageModelingTask:
    """A real task of these texts."""
    parts = [
        TokenizedExamples.from_lists(tokenizer(list(texts)).input_ids if texts else [])
        for texts in (train, heldout)
    ]
    facts = TaskFacts(
        num_examples=len(train),
        num_units=len(train),
        privacy_unit="example",
        content_hash=content_hash(*parts, []),
        num_tokens=parts[0].num_targets(),
    )
    return LanguageModelingTask(train=parts[0], heldout=parts[1], task_facts=facts)
