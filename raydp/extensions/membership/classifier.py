"""Membership inference on a classifier's outputs: the gap attack and three by thresholds.

The thresholds are chosen on a shadow model's outputs, where membership is known, and applied to the
target's outputs. As in Song and Mittal's evaluation, members and non-members weigh one half each:
accuracy is 0.5 * (share of members detected + share of non-members not accused).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydp.extensions.membership.metrics import (
    Scores,
    accuracy,
    accuracy_at,
    best_threshold,
    curve_figures,
)

SMALLEST = 1e-30
"""Smaller probabilities are raised to this in a logarithm, as in Song and Mittal's code.

-log 0 is then about 69 nats.
"""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """A classifier's outputs on some examples.

    Attributes:
        probs: [N, K] float64, each row a distribution over the classes.
        labels: [N] int64, the examples' classes.
    """

    probs: NDArray[np.float64]
    labels: NDArray[np.int64]

    def of_label(self) -> Scores:
        """Return the probability of each example's own class, [N]."""
        return np.asarray(self.probs[np.arange(len(self.labels)), self.labels])


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A model's outputs on its members and on non-members."""

    members: Outputs
    nonmembers: Outputs


def correctness(outputs: Outputs) -> Scores:
    """Return 1 if the most likely class is the example's, else 0, [N]: the gap attack's score.

    Of equal classes the first counts.

    Source: Yeom et al. 2018; Kaplan et al. 2024, eq. (5).
    """
    return np.asarray(outputs.probs.argmax(axis=1) == outputs.labels, np.float64)


def confidence(outputs: Outputs) -> Scores:
    """Return [N] the class's probability (Yeom et al. 2018; Kaplan et al. 2024, eq. 6)."""
    return outputs.of_label()


def negative_entropy(outputs: Outputs) -> Scores:
    """Return minus the entropy (nats) of the output, [N].

    Source: Shokri et al. 2017; Song and Mittal 2021, section 4.2.
    """
    return np.asarray((outputs.probs * _log(outputs.probs)).sum(axis=1))


def negative_modified_entropy(outputs: Outputs) -> Scores:
    """Return minus the modified entropy, [N].

    It is 0 for certainty in the right class, and largest in a wrong class.

    Mentr(p, y) = -(1 - p_y) log p_y - sum over i != y of p_i log(1 - p_i), in nats, with log 0
    taken as log 1e-30.

    Source: Song and Mittal 2021, eq. (8).
    """
    terms = outputs.probs * _log(1 - outputs.probs)
    own = outputs.of_label()
    terms[np.arange(len(own)), outputs.labels] = (1 - own) * _log(own)
    return np.asarray(terms.sum(axis=1))


def _log(probs: Scores) -> Scores:
    return np.log(np.maximum(probs, SMALLEST))


THRESHOLD_ATTACKS = {
    "confidence": confidence,
    "entropy": negative_entropy,
    "modified_entropy": negative_modified_entropy,
}


def attack(shadow: Observed, target: Observed) -> dict[str, dict[str, object]]:
    """Run the four attacks.

    Args:
        shadow: outputs of a model whose members the attacker knows. Only these determine
            thresholds.
        target: outputs of the attacked model.

    Returns:
        Attack -> "accuracy" at the shadow's one threshold, "accuracy_class_thresholds" at its
        thresholds by class, "auc", "tpr_at_1pct_fpr" and "tpr_at_01pct_fpr" of the scores without a
        threshold, each with `_interval`. A class without members or without non-members in the
        shadow uses the one threshold; "classes_without_threshold" counts such classes. The gap
        attack has no threshold, so its two accuracies are equal.

    Source: Song and Mittal 2021, section 4; Kaplan et al. 2024, section 4.2.2.
    """
    results = {"gap": _gap(target)}
    for name, score_fn in THRESHOLD_ATTACKS.items():
        # Thresholds from the shadow alone, then applied to the target.
        known = (score_fn(shadow.members), score_fn(shadow.nonmembers))
        asked = (score_fn(target.members), score_fn(target.nonmembers))
        threshold, _ = best_threshold(*known)
        by_class, missing = class_thresholds(*known, shadow, fallback=threshold)
        of_class = accuracy(
            asked[0] >= by_class[target.members.labels],
            asked[1] < by_class[target.nonmembers.labels],
        )
        results[name] = {
            **accuracy_at(*asked, threshold).document("accuracy"),
            **of_class.document("accuracy_class_thresholds"),
            **curve_figures(*asked),
            "threshold": threshold,
            "classes_without_threshold": missing,
        }
    return results


def _gap(target: Observed) -> dict[str, object]:
    scores = (correctness(target.members), correctness(target.nonmembers))
    figure = accuracy_at(*scores, 1.0)
    return {
        **figure.document("accuracy"),
        **figure.document("accuracy_class_thresholds"),
        **curve_figures(*scores),
    }


def class_thresholds(
    members: Scores, nonmembers: Scores, shadow: Observed, *, fallback: float
) -> tuple[Scores, int]:
    """Choose the best threshold of each class.

    Args:
        members, nonmembers: scores of the shadow's examples.
        shadow: the shadow's outputs, whose labels are used.
        fallback: threshold of a class that has no member or no non-member.

    Returns:
        [K] thresholds, and the number of classes with the fallback.
    """
    num_classes = shadow.members.probs.shape[1]
    thresholds = np.full(num_classes, fallback)
    parts = [
        _by_class(s, o.labels, num_classes)
        for s, o in ((members, shadow.members), (nonmembers, shadow.nonmembers))
    ]
    # A class that the shadow lacks has no threshold of its own.
    missing = 0
    for label, (ins, outs) in enumerate(zip(*parts, strict=True)):
        if len(ins) and len(outs):
            thresholds[label] = best_threshold(ins, outs)[0]
        else:
            missing += 1
    return thresholds, missing


def _by_class(scores: Scores, labels: NDArray[np.int64], num_classes: int) -> list[Scores]:
    """Return the scores of each class, in the order of the data."""
    order = np.argsort(labels, kind="stable")
    return np.split(scores[order], np.bincount(labels, minlength=num_classes).cumsum()[:-1])
