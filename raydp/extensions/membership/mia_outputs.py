"""Membership inference on a classifier's outputs: training examples against held-out ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from raydp.extensions.classification.labelled import ClassificationTask, LabelledExamples
from raydp.extensions.membership.classifier import (
    THRESHOLD_ATTACKS,
    Outputs,
    correctness,
)
from raydp.extensions.membership.metrics import auc, split_accuracy
from raydp.extensions.membership.mia import SAMPLE, attack_figures, fresh, positions_of, sample
from raydp.extensions.reference_data.sets import DataSet
from raydp.scores.score import Measurement, OneByOne

if TYPE_CHECKING:
    from raydp.models.base_models import LoadedModel
    from raydp.tasks.task import Task

ATTACKS = {"gap": correctness, **THRESHOLD_ATTACKS}
Attack = Literal["gap", "confidence", "entropy", "modified_entropy"]


class OutputMembershipInference(OneByOne):
    """How well an attack tells training examples from held-out ones by a classifier's outputs.

    If the task has reference data, they do not count as members here; the score
    `mia_outputs_of_reference` measures them.

    The standard error of the area is DeLong's; the standard error of the accuracy comes from its
    two rates. The sample depends on the seed and not on the model. `details` has the figures of the
    score `mia` for every attack. Training and held-out examples are assumed to come from one
    distribution. Higher is worse privacy; 1/2 is chance.
    """

    no_leak: ClassVar[float | None] = 0.5
    in_words: ClassVar[str | None] = (
        "an attack tells a training example from another one in {percent} of pairs (guessing: 50 %)"
    )
    worded_for: ClassVar[Mapping[str, object]] = {"figure": "auc"}

    attack: Attack = "confidence"
    """The attack whose figure is the value: `confidence`, the probability of the example's class
    (Yeom et al. 2018); `entropy` (Shokri et al. 2017); `modified_entropy` (Song and Mittal 2021,
    eq. 8); `gap`, whether it is correctly classified (Yeom et al. 2018; Kaplan et al. 2024, eq.
    5)."""
    num_examples: Annotated[int, Field(ge=1, le=1_000_000)] = 5000
    """Largest number of members drawn from the training examples, and of non-members drawn from the
    held-out ones."""
    figure: Literal["auc", "accuracy"] = "auc"
    """`auc`, the area under the ROC curve; or `accuracy`, the balanced accuracy of a threshold that
    is chosen on one half of the sample and tested on the other (Kaplan et al. 2024 report
    accuracies)."""
    members: ClassVar[DataSet] = "training"

    @property
    def is_area(self) -> bool:
        """Whether the figure is the area under the ROC curve."""
        return self.figure == "auc"

    def check(self, task: Task) -> None:
        """Raise ValueError if the task has no classes, nothing held out, or no members."""
        usable = _usable(task)
        positions_of(self.members, usable)
        if not len(fresh(usable)):
            raise ValueError(
                "task must hold out examples that are not trained on for the score 'mia_outputs', "
                "got none. Hold out more, or remove the score."
            )

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model on a sample of examples."""
        # Draw members and non-members, and read the model's outputs.
        usable, rng = _usable(task), np.random.default_rng([seed, SAMPLE])
        chosen = sample(rng, positions_of(self.members, usable), self.num_examples)
        others = sample(rng, fresh(usable), self.num_examples)
        members = _outputs(model, usable, usable.train.select(chosen))
        nonmembers = _outputs(model, usable, usable.heldout.select(others))
        scores = {
            name: (score_fn(members), score_fn(nonmembers)) for name, score_fn in ATTACKS.items()
        }
        details: dict[str, float | None] = {
            "num_members": len(members.labels),
            "num_nonmembers": len(nonmembers.labels),
        }
        for name, pair in scores.items():
            details |= attack_figures(name, *pair)
        value = auc(*scores[self.attack])
        # Shuffled, because the halves are every second score.
        if self.figure == "accuracy":
            value = split_accuracy(*(rng.permutation(part) for part in scores[self.attack]))
        return Measurement(
            value=value.value, std_error=value.std_error, num_samples=1, details=details
        )

    def expected_bounds(self) -> tuple[float, float]:
        """Return the bounds of an area or an accuracy."""
        return 0.0, 1.0


class ReferenceOutputMembershipInference(OutputMembershipInference):
    """How well an attack tells reference data from held-out examples by a classifier's outputs.

    It is the score `mia_outputs` with the task's reference data as members (Kaplan et al. 2024,
    section 4.2.2).
    """

    in_words: ClassVar[str | None] = (
        "an attack tells a reference example from another one in {percent} of pairs (guessing: "
        "50 %)"
    )

    members: ClassVar[DataSet] = "reference"


def _outputs(model: LoadedModel, task: ClassificationTask, examples: LabelledExamples) -> Outputs:
    logits, labels = task.outputs(model.model, examples)
    return Outputs(probs=torch.softmax(logits.double(), dim=1).numpy(), labels=labels.numpy())


def _usable(task: Task) -> ClassificationTask:
    if not isinstance(task, ClassificationTask):
        raise ValueError(
            "task must be a classification task for the score 'mia_outputs'. Remove the score, or "
            "use mia."
        )
    return task
