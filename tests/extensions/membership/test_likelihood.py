"""LiRA and RMIA: against their released code, by hand, and on data whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from raydp.extensions.membership.likelihood import (
    average_probability,
    lira,
    logit_of_loss,
    reference_gain,
    rmia,
)
from raydp.extensions.membership.shadows import Losses, shadow_attacks

from .made_up import shadow_signals

RMIA = ([0.29, 0.06, 0.16, 0.91, 0.59], 144.25, 0.7778455904790967)
"""The first five scores, the sum of all, and the area of RMIA on made_up.shadow_signals(): model 0
attacked, 3 reference models, offline with a = 0.3. From `run_rmia` of
github.com/privacytrustlab/ml_privacy_meter, attacks.py at commit e384af8f, run with numpy 2.4.6."""
LIRA = (
    [-1.255592021527067, -9.711295852985877, -24.345645119127738, -11.93549625615842],
    0.647340046790764,
)
"""The first four scores and the area of online LiRA with each example's own variance, models 2 to 7
as shadows. From `generate_ours` of github.com/tensorflow/privacy, research/mi_lira_2021/plot.py at
commit 03035d5d, whose scores are higher for non-members and are negated here; run with numpy 2.4.6
and scipy 1.17.1."""


def test_rmia_agrees_with_privacy_meter() -> None:
    probs, population, included = shadow_signals()
    scores = rmia(
        probs[:, 0],
        average_probability(probs[:, 2:], included[:, 2:], online=False, offline_a=0.3),
        population[:, 0],
        # privacy_meter takes for the population, all of which is outside, the 3 most probable of
        # the 6 shadows
        average_probability(
            -np.sort(-population[:, 2:], axis=1)[:, :3],
            np.zeros((100, 3), bool),
            online=False,
            offline_a=0.3,
        ),
    )
    first, total, area = RMIA
    assert scores[:5] == pytest.approx(first, abs=1e-12)
    assert scores.sum() == pytest.approx(total)
    assert roc_auc_score(included[:, 0], scores) == pytest.approx(area, abs=1e-12)


def test_rmia_counts_no_ties() -> None:
    """The gain must exceed the other's: an example like all others has no sign of membership."""
    same = np.full(3, 0.5)
    assert rmia(same, same, same, same).tolist() == [0, 0, 0]
    assert rmia(
        np.array([0.5, 0.6]), same[:2], np.array([0.5, 0.6, 0.4, 0.5]), np.full(4, 0.5)
    ).tolist() == [
        0.25,
        0.75,
    ]


def test_lira_agrees_with_the_released_code() -> None:
    probs, _, included = shadow_signals()
    logits = np.log(probs) - np.log1p(-probs)
    scores = lira(logits[:, 0], logits[:, 2:], included[:, 2:])
    first, area = LIRA
    assert scores[:4] == pytest.approx(first, rel=1e-9)
    assert roc_auc_score(included[:, 0], scores) == pytest.approx(area, abs=1e-12)


def test_the_logit_of_a_loss() -> None:
    probs = np.array([[0.2, 0.5, 0.999]])
    assert logit_of_loss(-np.log(probs)) == pytest.approx(np.log(probs / (1 - probs)))
    assert np.isfinite(logit_of_loss(np.zeros((1, 1)))).all(), "also of an example that is certain"


def test_lira_by_hand() -> None:
    """Two models in, with logits 1 and 3, two out, with 0 and 2, and a target of 2: N(2; 2, 1)
    against N(2; 1, 1)."""
    shadows, included = np.array([[1.0, 0.0, 3.0, 2.0]]), np.array([[True, False, True, False]])
    target = np.array([2.0])
    assert lira(target, shadows, included) == pytest.approx([0.5])
    assert lira(target, shadows, included, online=False) == pytest.approx([norm.logcdf(1)])


def test_one_variance_for_all_is_that_within_examples() -> None:
    """Deviations of 1 around each example's mean, whatever the means: 8 of them and 4 means give 8
    / (8 - 4) = 2."""
    centres = np.array([[0.0], [100], [-50], [7]])
    shadows = centres + np.array([[1.0, -1.0]])
    included = np.zeros((4, 2), bool)
    scores = lira(centres[:, 0] + 1, shadows, included, online=False, variance="fixed")
    assert scores == pytest.approx(norm.logcdf(1 / np.sqrt(2)))


def test_they_are_stronger_than_the_loss_where_examples_differ_in_hardness() -> None:
    """Logits of hardness N(0, 1), noise 0.4 and 0.7 for membership: the loss alone sees 0.7 in a
    spread of 1.08, area 0.68; with the hardness known it is 0.7 in 0.4, area 0.89. Six shadows lie
    between."""
    probs, population, included = shadow_signals(seed=3)
    members = included[:, 0]
    loss = -np.log(probs)
    logits = logit_of_loss(loss)
    areas = {
        "loss": roc_auc_score(members, -loss[:, 0]),
        "lira": roc_auc_score(
            members, lira(logits[:, 0], logits[:, 2:], included[:, 2:], variance="fixed")
        ),
        "offline": roc_auc_score(
            members,
            lira(logits[:, 0], logits[:, 2:], included[:, 2:], online=False, variance="fixed"),
        ),
        "rmia": roc_auc_score(
            members,
            rmia(
                probs[:, 0],
                average_probability(probs[:, 2:], included[:, 2:]),
                population[:, 0],
                population[:, 2:].mean(axis=1),
            ),
        ),
        "reference": roc_auc_score(
            members, reference_gain(loss[:, 0], loss[:, 2:], included[:, 2:])
        ),
    }
    assert min(areas[k] for k in areas if k != "loss") > areas["loss"] + 0.05, areas


def test_an_example_without_a_model_to_compare_with_is_refused() -> None:
    with pytest.raises(
        ValueError, match="must have a model with each example, got none for 1 examples"
    ):
        lira(np.zeros(1), np.zeros((1, 2)), np.zeros((1, 2), bool))
    with pytest.raises(ValueError, match="must have a model without each example"):
        reference_gain(np.zeros(1), np.zeros((1, 2)), np.ones((1, 2), bool))


def test_offline_attacks_look_only_at_models_without_the_example() -> None:
    """Other losses of the models that saw the example change the online attacks alone."""
    probs, population, included = shadow_signals()
    losses = [
        Losses(examples=-np.log(p), population=-np.log(z))
        for p, z in zip(probs.T, population.T, strict=True)
    ]
    seen = included[:, 2:]
    changed = [
        Losses(examples=np.where(inside, 9.0, model.examples), population=model.population)
        for model, inside in zip(losses[2:], seen.T, strict=True)
    ]
    before, after = (shadow_attacks(losses[1], losses[0], s, seen) for s in (losses[2:], changed))
    same = {name for name in before if np.array_equal(before[name], after[name])}
    assert same == {"loss", "base_reference", "reference", "lira_offline", "rmia_offline"}
    assert all(roc_auc_score(included[:, 0], s) > 0.6 for s in before.values()), (
        "higher is a member"
    )
