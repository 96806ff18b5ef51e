"""Made-up outputs of models, from seeds; nothing of them comes from training."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

CLASSES = 10


def classifier_outputs(
    seed: int = 0, sizes: tuple[int, int, int, int] = (400, 300, 500, 350)
) -> dict[str, Any]:
    """The arrays of a FILE.npz: members' right class gets a larger logit.

    Some rows are certain, right or wrong.
    """
    rng = np.random.default_rng(seed)
    arrays = {}
    for (model, part), size in zip(
        [(m, p) for m in ("shadow", "target") for p in ("member", "nonmember")], sizes, strict=True
    ):
        labels = rng.integers(0, CLASSES, size)
        logits = rng.normal(size=(size, CLASSES))
        logits[np.arange(size), labels] += rng.normal(
            2.5 if part == "member" else 1.5, 1 + labels / 10
        )
        probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        probs[:8] = np.eye(CLASSES)[[*labels[:6], *((labels[6:8] + 1) % CLASSES)]]
        arrays |= {f"{model}_{part}_probs": probs, f"{model}_{part}_labels": labels}
    return arrays


def shadow_signals(
    seed: int = 0,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """[N, 8] probabilities that 8 models give N = 200 examples, [100, 8] of a population that none
    was trained on, and [N, 8] membership. Models 2j and 2j + 1 were trained on complementary
    halves."""
    rng = np.random.default_rng(seed)
    first = rng.random((200, 4)) < 0.5
    included = np.stack([first, ~first], axis=2).reshape(200, 8)
    hardness = rng.normal(size=(300, 1))
    logits = hardness + 0.4 * rng.normal(size=(300, 8))
    logits[:200] += 0.7 * included
    probs = 1 / (1 + np.exp(-logits))
    return probs[:200], probs[200:], included
