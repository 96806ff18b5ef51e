"""A small task of classification that every method can train on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from raydp.extensions.classification.labelled import (
    ClassificationTask,
    LabelledExamples,
    classification_task,
)
from raydp.extensions.classification.networks import NetworkName
from raydp.training.trial import TrainingContext

NUM_EXAMPLES, NUM_REFERENCE, NUM_PUBLIC, WIDTH, NUM_CLASSES = 60, 20, 40, 6, 3
NETWORK = f"linear:{WIDTH}:{NUM_CLASSES}"


def points_task(num_reference: int = NUM_REFERENCE) -> ClassificationTask:
    """Random points of three classes, with reference data and public inputs, so that every method
    can train on it."""
    rng = np.random.default_rng(0)

    def points(count: int) -> LabelledExamples:
        inputs = rng.normal(size=(count, WIDTH)).astype(np.float32)
        return LabelledExamples(inputs=inputs, labels=rng.integers(0, NUM_CLASSES, count))

    task = classification_task(
        points(NUM_EXAMPLES), points(20), num_classes=NUM_CLASSES, unit="point", measured_by="cross_entropy", notes={},
        utility_is_public=True,
    )  # fmt: skip
    facts = replace(task.task_facts, num_reference=num_reference)
    return replace(task, public=points(NUM_PUBLIC), task_facts=facts)


def network_context(name: str = "linear:1x8x8:10", **options: Any) -> TrainingContext:
    """A network of classification to train, at its start."""
    network = NetworkName.parse(name)
    assert network is not None
    model = network.build()
    return TrainingContext(
        model=model, parameters=dict(sorted(model.named_parameters())), **options
    )
