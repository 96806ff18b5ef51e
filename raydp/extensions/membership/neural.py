"""The neural attack on a classifier's outputs: a network reads confidence vector and label."""

from __future__ import annotations

import warnings

import numpy as np

from raydp.extensions.membership.classifier import Observed, Outputs
from raydp.extensions.membership.metrics import Scores, accuracy_at, curve_figures

HIDDEN = (512, 256, 128, 64)
"""Hidden layers: as in the part of Nasr et al.'s network that combines its inputs."""
ENOUGH_TO_STOP_EARLY = 20
"""Members and non-members needed for early stopping: a tenth of fewer is too small."""


def neural_attack(
    shadow: Observed, target: Observed, *, seed: int = 0, presort: bool = False
) -> dict[str, object]:
    """Train on the shadow's outputs, whose membership is known, and attack the target's.

    An attacker who knows some members of the target passes as `shadow` the target's outputs on
    these members and on as many known non-members. Nasr et al. 2018 and Kaplan et al. 2024 evaluate
    in this way: they train the attack on one part of the data and test it on the rest.

    The features are the confidence vector and the one-hot label, as in Nasr et al. 2018, section 5
    (their released code reads no raw features either). Their network has a separate branch for each
    of the two. This network has a single stack of ReLU layers, trained with Adam at 1e-3 in batches
    of 128 and stopped early on a tenth of the data. Members and non-members weigh one half each.

    Args:
        shadow: outputs with known membership, to train on.
        target: outputs to attack.
        seed: seed of initialisation, shuffling and the held-out tenth.
        presort: whether to sort each confidence vector, which removes the identity of the classes.

    Returns:
        The four figures of every attack (see classifier.attack). Its threshold is a membership
        probability of 1/2; "accuracy_class_thresholds" is null, as the network reads the class
        itself.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    # Train the network.
    inputs = [_features(o, presort=presort) for o in (shadow.members, shadow.nonmembers)]
    answers = np.repeat([1, 0], [len(i) for i in inputs])
    weights = np.repeat([0.5 * len(answers) / len(i) for i in inputs], [len(i) for i in inputs])
    network = MLPClassifier(
        HIDDEN,
        batch_size=min(128, len(answers)),
        early_stopping=min(map(len, inputs)) >= ENOUGH_TO_STOP_EARLY,
        max_iter=100,
        random_state=seed,
    )
    with warnings.catch_warnings():
        # Training ends after max_iter epochs in any case.
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(np.concatenate(inputs), answers, sample_weight=weights)
    # Attack the target.
    members, nonmembers = (
        np.asarray(network.predict_proba(_features(o, presort=presort))[:, 1], np.float64)
        for o in (target.members, target.nonmembers)
    )
    scores = (members, nonmembers)
    figures = curve_figures(*scores)
    no_classes = "accuracy_class_thresholds: the network reads the class, and has one threshold"
    reasons = [no_classes, *([str(figures.pop("reason"))] if "reason" in figures else [])]
    return {
        **accuracy_at(*scores, 0.5).document("accuracy"),
        "accuracy_class_thresholds": None,
        "accuracy_class_thresholds_interval": None,
        **figures,
        "threshold": 0.5,
        "reason": "; ".join(reasons),
    }


def _features(outputs: Outputs, *, presort: bool) -> Scores:
    """Return the confidence vectors and the one-hot labels, [N, 2 K]."""
    # Sorted by falling confidence.
    probs = -np.sort(-outputs.probs, axis=1) if presort else outputs.probs
    return np.concatenate([probs, np.eye(probs.shape[1])[outputs.labels]], axis=1)
