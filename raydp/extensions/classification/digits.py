"""Handwritten digits that come with scikit-learn: the default of the classification tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from raydp.extensions.classification.labelled import (
    ClassificationSection,
    ClassificationTask,
    LabelledExamples,
    Utility,
    classification_task,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class DigitsTask(ClassificationSection):
    """The 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn (UCI, Alpaydin and
    Kaynak 1998)."""

    heldout_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of the digits that is held out, drawn by data_seed."""
    data_seed: Annotated[int, Field(ge=0)] = 0
    """Seed that decides which digits are held out."""
    utility: Utility = "error_rate"
    """`error_rate`: 1 - accuracy on the held-out digits; or `cross_entropy`, their mean loss in
    nats."""

    def build(self, tokenizer: PreTrainedTokenizerBase | None) -> ClassificationTask:
        """Scale the pixels to 0 to 1 and split the digits into training and held-out examples."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        everything = LabelledExamples(
            # The pixels are 0 to 16; [n, 1, 8, 8] has the one channel that convolutions expect.
            inputs=(digits.images[:, None] / 16).astype(np.float32),
            labels=digits.target.astype(np.int64),
        )
        # Neither training nor held-out digits depend on the sweep's seed: all runs compare on the
        # same split.
        order = np.random.default_rng(self.data_seed).permutation(len(everything))
        held = round(self.heldout_fraction * len(everything))
        return classification_task(
            everything.select(order[held:]),
            everything.select(order[:held]),
            num_classes=10,
            unit="digit",
            measured_by=self.utility,
            notes={"source": "scikit-learn's digits"},
            utility_is_public=True,
        )
