"""Selection rules for three settings of training and reference data (Kaplan et al. 2024, §4.4).

Each rule keeps the models that meet a bound on the membership inference accuracy of one or both
sets, and selects the best utility among them. The rules need two scores and may validly leave no
model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.selection.rules import BEST_UTILITY, Rule
from raydp.analysis.tables.points import column_means

Array = NDArray[np.float64]
Pool = NDArray[np.bool_]

HARDLY_FOUND = 0.51
"""Highest inference accuracy that counts as protected (§4.4.2 and §4.4.4). Chance is 1/2."""
ALIKE = 0.04
"""Largest difference of the two accuracies that counts as equal (section 4.4.3)."""
SLACK = 1e-9
"""The rounding error allowed in a difference of accuracies."""
SUFFIX = "_of_reference"


@dataclass(frozen=True, kw_only=True)
class ReferenceSetting:
    """One setting: which of the two data sets must be protected.

    See `raydp.analysis.selection.rules.ConstrainedRule`.

    Attributes:
        text: the bound, in words.
        keeps: (scores of the training data, scores of the reference data) -> whether each model
            meets the bound.
    """

    steps: ClassVar[Rule] = BEST_UTILITY
    of_accuracies: ClassVar[bool] = True

    text: str
    keeps: Callable[[Array, Array], Pool]

    def narrowing(self, points: pd.DataFrame) -> tuple[str, str, Pool]:
        """Return (name, rule in words, whether each configuration's means meet the bound).

        Raises:
            ValueError: the table lacks the two scores, or no configuration meets the bound.
        """
        training, reference = (column_means(points, column) for column in score_columns(points))
        kept = self.keeps(training, reference)
        if not kept.any():
            raise ValueError(
                f"rule must leave a configuration, got none to {self.text}: the lowest score of "
                f"the training data is {training.min():.4g}, that of the reference data "
                f"{reference.min():.4g}, the smallest difference "
                f"{np.abs(training - reference).min():.4g}. Train with another weight of the "
                "reference data."
            )
        return "reference setting", self.text, kept


# The settings of sections 4.4.2, 4.4.3 and 4.4.4, in this order.
PUBLIC_REFERENCE = ReferenceSetting(
    text=f"keep a score of the training data of at most {HARDLY_FOUND:g}",
    keeps=lambda training, reference: training <= HARDLY_FOUND + SLACK,
)
EQUAL_PRIVACY = ReferenceSetting(
    text=f"keep scores of the two sets that differ by at most {ALIKE:g}",
    keeps=lambda training, reference: np.abs(training - reference) <= ALIKE + SLACK,
)
PRIVATE_REFERENCE = ReferenceSetting(
    text=f"keep a score of the reference data of at most {HARDLY_FOUND:g}",
    keeps=lambda training, reference: reference <= HARDLY_FOUND + SLACK,
)


def score_columns(points: pd.DataFrame) -> tuple[str, str]:
    """Return the names of the columns with the scores of training and of reference data.

    Raises:
        ValueError: there is no such pair, there are several, or a score is missing in a row.
    """
    pairs = [
        (column.removesuffix(SUFFIX), column)
        for column in map(str, points)
        if column.endswith(SUFFIX) and column.removesuffix(SUFFIX) in points
    ]
    # Of two pairs, nobody has said which one the rule is about.
    if len(pairs) != 1:
        raise ValueError(
            "points must have one score of training and of reference data for this rule, got "
            f"{len(pairs)} pairs. Measure mia_outputs and mia_outputs_of_reference, or mia and "
            "mia_of_reference."
        )
    if missing := int(points[list(pairs[0])].isna().any(axis=1).sum()):
        raise ValueError(
            f"{pairs[0][0]} and {pairs[0][1]} must be given in every finished row, got {missing} "
            "rows without. Run `raydp score` for them."
        )
    return pairs[0]
