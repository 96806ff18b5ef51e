"""All attacks on a model that use shadow models: from losses to scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydp.extensions.membership import likelihood
from raydp.extensions.membership.metrics import Scores

MANY_SHADOWS = 64
"""From this number of shadows on, each example has its own variance.

Source: Carlini et al. 2022, section VI-B.
"""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Mean losses per target token (nats) of one model.

    Attributes:
        examples: [N] losses of the pool's training examples.
        population: [Z] losses of the pool's held-out examples.
    """

    examples: Scores
    population: Scores


def shadow_attacks(
    base: Losses, target: Losses, shadows: Sequence[Losses], included: NDArray[np.bool_]
) -> dict[str, Scores]:
    """Return the scores of every attack, each [N].

    Args:
        base: losses of the untrained base model.
        target: losses of the attacked model.
        shadows: losses of each shadow.
        included: [N, S] which examples each shadow was trained on.

    Returns:
        loss: minus the target's loss; base_reference: the base model's loss minus the target's;
        reference: the mean loss of the shadows without the example minus the target's. LiRA and
        RMIA are online, with all shadows, and offline, with the shadows without the example.
    """
    of_shadows = np.stack([s.examples for s in shadows], axis=1)
    population = np.stack([np.exp(-s.population) for s in shadows], axis=1)
    # No model was trained on the population, so all of them count as without.
    none_included = np.zeros(population.shape, np.bool_)
    logits = (likelihood.logit_of_loss(target.examples), likelihood.logit_of_loss(of_shadows))
    variance: likelihood.Variance = "per_example" if len(shadows) >= MANY_SHADOWS else "fixed"

    # RMIA compares an example's gain with the gains of the population.
    def rmia(*, online: bool) -> Scores:
        return likelihood.rmia(
            np.exp(-target.examples),
            likelihood.average_probability(np.exp(-of_shadows), included, online=online),
            np.exp(-target.population),
            population.mean(axis=1)
            if online
            else likelihood.average_probability(population, none_included, online=False),
        )

    return {
        "loss": -target.examples,
        "base_reference": base.examples - target.examples,
        "reference": likelihood.reference_gain(target.examples, of_shadows, included),
        "lira_offline": likelihood.lira(*logits, included, online=False, variance=variance),
        "lira_online": likelihood.lira(*logits, included, variance=variance),
        "rmia_offline": rmia(online=False),
        "rmia_online": rmia(online=True),
    }
