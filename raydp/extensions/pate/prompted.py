"""PromptPATE's teachers: one frozen language model, prompted with each teacher's examples.

Source: Duan et al. 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.extensions.classification.label_words import read_once
from raydp.extensions.classification.labelled import ClassificationTask, LabelledExamples
from raydp.extensions.pate.teachers import keyed_words
from raydp.models.adapters import without_adapter
from raydp.training.noise.stream import KeyedStream
from raydp.training.trial import TrainingContext


@dataclass(frozen=True, kw_only=True)
class Prompting:
    """Teachers that prompt the untrained base model with demonstrations from their own examples.

    Attributes:
        num_teachers: m.
        num_demonstrations: k, the number of its examples that a teacher shows the model. The run's
            key and an example's content decide their order, and the first k are shown. A teacher
            with fewer examples shows all of them. A teacher without examples answers from the
            template alone.

    Source: Duan et al. 2023, section 4.2.
    """

    num_teachers: int
    num_demonstrations: int

    def choices(
        self,
        context: TrainingContext,
        task: ClassificationTask,
        shard: NDArray[np.int64],
        queries: LabelledExamples,
        seed: list[int],
        stream: KeyedStream,
    ) -> torch.Tensor:
        """Return the votes of one teacher; see `raydp.extensions.pate.teachers.Teachers`."""
        # The adapter is the student's: teachers see the frozen model.
        shown = self.shown(task.train.select(shard), stream)
        with torch.inference_mode(), without_adapter(context.model):
            logits = prompted_logits(context.model, task, shown, queries)
        return logits[:, : task.num_classes].argmax(dim=1)

    def shown(self, examples: LabelledExamples, stream: KeyedStream) -> LabelledExamples:
        """Return the demonstrations among a teacher's examples."""
        order = np.argsort(keyed_words(examples, stream, "demonstration"), kind="stable")
        return examples.select(order[: self.num_demonstrations])


def prompted_logits(
    model: torch.nn.Module,
    task: ClassificationTask,
    shown: LabelledExamples,
    queries: LabelledExamples,
) -> torch.Tensor:
    """Return [Q, K] logits of the label words after demonstrations.

    Keys and values of these are computed once.

    Args:
        model: a model without virtual tokens.
    """
    words = task.label_words
    assert words is not None, "checked with the spec"
    ids = words.demonstrations(shown.token_ids, shown.labels)
    if not ids:
        return task.outputs(model, queries)[0]
    # Keys and values of the demonstrations serve all queries. Models without a cache read them
    # again.
    following = words.following(queries.token_ids)
    read = read_once(model, ids)
    if read is None:
        before = np.tile(np.array(ids, np.int64), (len(following), 1))
        following = np.concatenate([before, following], axis=1)
    return task.outputs(model, replace(queries, inputs=following), read)[0]
