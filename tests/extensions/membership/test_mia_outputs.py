"""Membership inference on a classifier's outputs: of training and of reference data, as an area and
as an accuracy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from raydp.extensions.classification.digits import DigitsTask
from raydp.extensions.classification.labelled import ClassificationTask, LabelledExamples
from raydp.extensions.membership.metrics import best_accuracy, split_accuracy
from raydp.extensions.membership.mia_outputs import (
    OutputMembershipInference,
    ReferenceOutputMembershipInference,
)
from raydp.models.base_models import LoadedModel
from raydp.tasks.task import TaskFacts

NUM_TRAINING, NUM_REFERENCE, NUM_HELDOUT = 60, 40, 80


class Remembers(nn.Module):
    """Confident of inputs whose first number is above 0, undecided of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([10 * inputs[:, 0].clamp(min=0), torch.zeros(len(inputs))], dim=1)


def task(known: np.ndarray) -> ClassificationTask:
    """Of the label 0 throughout; known: [training, reference, held-out] the first number of each
    input."""
    inputs = np.stack([known, np.arange(len(known))], axis=1).astype(np.float32)
    examples = LabelledExamples(inputs=inputs, labels=np.zeros(len(known), np.int64))
    first = NUM_TRAINING + NUM_REFERENCE
    facts = TaskFacts(
        num_examples=first, num_units=first, privacy_unit="row", content_hash="", num_tokens=first,
        num_reference=NUM_REFERENCE,
    )  # fmt: skip
    train, heldout = (
        examples.select(np.arange(*ends)) for ends in ((0, first), (first, len(known)))
    )
    return ClassificationTask(train=train, heldout=heldout, num_classes=2, task_facts=facts)


@pytest.mark.parametrize("figure", ["auc", "accuracy"])
@pytest.mark.parametrize("remembered", ["training", "reference"])
def test_each_score_sees_its_own_data_set(figure: str, remembered: str) -> None:
    is_reference = np.arange(NUM_TRAINING + NUM_REFERENCE) >= NUM_TRAINING
    known = np.concatenate([is_reference == (remembered == "reference"), np.zeros(NUM_HELDOUT)])
    model = LoadedModel(model=Remembers(), tokenizer=None, base_weights={})
    kinds = {"training": OutputMembershipInference, "reference": ReferenceOutputMembershipInference}
    for name, kind in kinds.items():
        measured = kind(figure=figure).measure(model, task(known), seed=0)
        assert measured.value == (1.0 if name == remembered else 0.5)
        assert measured.details["num_members"] == (
            NUM_TRAINING if name == "training" else NUM_REFERENCE
        )


def test_an_accuracy_that_is_tried_on_other_examples_is_not_above_chance_by_itself() -> None:
    """300 times 40 members and 40 non-members of one distribution: 1/2 on average, within four
    standard errors of the 300; where the threshold is tried on the examples that it was chosen on,
    5 % above."""
    rng = np.random.default_rng(0)
    found = np.array([
        (split_accuracy(*parts).value, best_accuracy(*parts).value)
        for parts in (rng.normal(size=(2, 40)) for _ in range(300))
    ])  # fmt: skip
    assert abs(found[:, 0].mean() - 0.5) < 4 * found[:, 0].std() / np.sqrt(300)
    assert found[:, 1].mean() > 0.55


def test_a_split_accuracy_is_that_of_the_halves() -> None:
    """Halves: (4, 0) against (1, 5) and (3, 2) against (0, 0).

    The first says "member" from 4 on, the second from 2.
    """
    found = split_accuracy([4, 3, 0, 2], [1, 0, 5, 0])
    assert found.value == 0.5 * (1 / 4 + 3 / 4)
    assert found.std_error == pytest.approx(0.5 * np.sqrt(2 * (3 / 16) / 4))


def test_reference_data_are_asked_for() -> None:
    digits = DigitsTask().build(None)
    OutputMembershipInference().check(digits)
    with pytest.raises(
        ValueError, match="task must have reference data for a score of their membership"
    ):
        ReferenceOutputMembershipInference().check(digits)
    with pytest.raises(ValueError, match="must be two each"):
        split_accuracy([1.0], [0.0, 1.0])
