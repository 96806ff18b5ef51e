"""Attacks on stored outputs: against Song and Mittal's code, by hand, and through the command."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from raydp.extensions.membership.classifier import (
    Observed,
    Outputs,
    attack,
    confidence,
    correctness,
    negative_entropy,
    negative_modified_entropy,
)
from raydp.extensions.membership.neural import neural_attack
from raydp.extensions.membership.outputs import read_outputs

from .made_up import CLASSES, classifier_outputs

CONTRACT = {"accuracy", "accuracy_class_thresholds", "auc", "tpr_at_1pct_fpr"}
SONG_AND_MITTAL = {
    "gap": (0.6151428571428572, 0.6151428571428572),
    "confidence": (0.6191428571428571, 0.5774285714285714),
    "entropy": (0.5648571428571428, 0.596),
    "modified_entropy": (0.6142857142857143, 0.5807142857142857),
}
"""(accuracy at one threshold, at thresholds by class) of made_up.classifier_outputs(). From
`black_box_benchmarks` of github.com/inspire-group/membership-inference-evaluation,
membership_inference_attacks.py at commit daa4b0c8: its `_thre_setting` on the shadow's values, all
of them or by class, and the balanced accuracy as in `_mem_inf_thre` and `_mem_inf_via_corr`, whose
printed three decimals (0.615; 0.577, 0.596, 0.581) are these. Run with numpy 2.4.6."""


@pytest.fixture
def saved(tmp_path):
    """Write a FILE.npz, with changes."""

    def save(**changes: object):
        arrays = {k: v for k, v in {**classifier_outputs(), **changes}.items() if v is not None}
        np.savez(tmp_path / "outputs.npz", **arrays)
        return tmp_path / "outputs.npz"

    return save


def test_it_agrees_with_song_and_mittal_s_code(saved) -> None:
    results = attack(*read_outputs(saved()))
    assert list(results) == list(SONG_AND_MITTAL)
    for name, (overall, by_class) in SONG_AND_MITTAL.items():
        assert results[name]["accuracy"] == pytest.approx(overall, abs=1e-12)
        assert results[name]["accuracy_class_thresholds"] == pytest.approx(by_class, abs=1e-12)


def test_areas_agree_with_sklearn(saved) -> None:
    shadow, target = read_outputs(saved())
    results = attack(shadow, target)
    labels = np.repeat([1, 0], [500, 350])
    scores = {"gap": correctness, "confidence": confidence, "entropy": negative_entropy}
    for name, score_fn in {**scores, "modified_entropy": negative_modified_entropy}.items():
        values = np.concatenate([score_fn(target.members), score_fn(target.nonmembers)])
        assert results[name]["auc"] == pytest.approx(roc_auc_score(labels, values), abs=1e-12)


def test_the_four_scores_by_hand() -> None:
    """A certain right answer, a certain wrong one, and (1/2, 1/4, 1/4) of the second class."""
    outputs = Outputs(
        probs=np.array([[0, 1, 0], [1, 0, 0], [0.5, 0.25, 0.25]]), labels=np.array([1, 1, 1])
    )
    assert correctness(outputs).tolist() == [1, 0, 0]
    assert confidence(outputs).tolist() == [1, 0, 0.25]
    log = np.log
    assert negative_entropy(outputs) == pytest.approx([0, 0, -1.5 * log(2)])
    wrong = 2 * log(
        1e-30
    )  # both terms of Song and Mittal's (8): the label's own, and that of the certain class
    third = 0.75 * log(0.25) + 0.5 * log(0.5) + 0.25 * log(0.75)
    assert negative_modified_entropy(outputs) == pytest.approx([0, wrong, third])


def test_thresholds_come_from_the_shadow_alone(saved) -> None:
    """The target's outputs replaced by others: the thresholds stay."""
    shadow, _ = read_outputs(saved())
    first, second = (attack(shadow, read_outputs(saved(**_target_of(seed)))[1]) for seed in (0, 1))
    for name in ("confidence", "entropy", "modified_entropy"):
        assert first[name]["threshold"] == second[name]["threshold"]
        assert first[name]["accuracy"] != second[name]["accuracy"]


def _target_of(seed: int) -> dict[str, np.ndarray]:
    return {k: v for k, v in classifier_outputs(seed).items() if k.startswith("target")}


def test_a_class_that_the_shadow_lacks_takes_the_global_threshold(saved) -> None:
    arrays = classifier_outputs()
    kept = arrays["shadow_member_labels"] != 3
    changes = {
        f"shadow_member_{k}": arrays[f"shadow_member_{k}"][kept] for k in ("probs", "labels")
    }
    results = attack(*read_outputs(saved(**changes)))
    assert results["confidence"]["classes_without_threshold"] == 1
    of_class = {p: arrays[f"target_{p}_labels"] == 3 for p in ("member", "nonmember")}
    of_one_class = {
        f"target_{p}_{k}": arrays[f"target_{p}_{k}"][rows]
        for p, rows in of_class.items()
        for k in ("probs", "labels")
    }
    only = attack(*read_outputs(saved(**changes, **of_one_class)))["confidence"]
    assert only["accuracy_class_thresholds"] == only["accuracy"]


def test_outputs_that_do_not_depend_on_membership_are_not_told_apart() -> None:
    """Of 40 areas on null data each 95 % interval may miss 1/2; more than 8 misses have a chance of
    1e-4."""
    misses = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        parts = []
        for _ in range(4):
            labels = rng.integers(0, 4, 200)
            parts.append(Outputs(probs=rng.dirichlet(np.ones(4), 200), labels=labels))
        results = attack(_observed(*parts[:2]), _observed(*parts[2:]))
        misses += sum(
            not low <= 0.5 <= high for low, high in (r["auc_interval"] for r in results.values())
        )
    assert misses <= 8


def _observed(members: Outputs, nonmembers: Outputs) -> Observed:
    return Observed(members=members, nonmembers=nonmembers)


@pytest.mark.slow
def test_the_neural_attack_learns_a_pattern_beyond_any_threshold() -> None:
    """Members of the first classes are sure, of the others unsure; non-members the other way round:
    the confidence says nothing without the label, of which the network makes a rule of its own."""
    parts = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, CLASSES, 600)
        sure = (labels < CLASSES // 2) == (seed % 2 == 0)
        probs = np.full((600, CLASSES), 0.02)
        probs[np.arange(600), labels] = np.where(sure, 0.82, 0.4) + rng.normal(0, 0.02, 600)
        parts.append(Outputs(probs=probs / probs.sum(axis=1, keepdims=True), labels=labels))
    shadow, target = _observed(*parts[:2]), _observed(*parts[2:])
    assert abs(attack(shadow, target)["confidence"]["auc"] - 0.5) < 0.1
    learnt = neural_attack(shadow, target)
    assert learnt["accuracy"] > 0.95
    assert learnt["auc"] > 0.95
    assert learnt["accuracy_class_thresholds"] is None
    assert "reason" in learnt
    assert learnt == neural_attack(shadow, target), "the same seed gives the same attack"


def test_the_command_keeps_its_contract(raydp, saved) -> None:
    answer = raydp("mia", saved(), "--json")
    assert answer.code == 0
    document = answer.json()
    assert set(document) == {"gap", "confidence", "entropy", "modified_entropy"}
    for figures in document.values():
        assert set(figures) >= CONTRACT
        assert all(isinstance(figures[key], float) for key in CONTRACT)
        low, high = figures["accuracy_interval"]
        assert low < figures["accuracy"] < high
    assert raydp("mia", saved()).out.count("modified_entropy") == 1


def test_float32_outputs_give_the_same_accuracies(raydp, saved) -> None:
    single = {
        k: v.astype(np.float32) for k, v in classifier_outputs().items() if k.endswith("probs")
    }
    document = raydp("mia", saved(**single), "--json").json()
    assert document["confidence"]["accuracy"] == pytest.approx(
        SONG_AND_MITTAL["confidence"][0], abs=1e-12
    )


ROWS = classifier_outputs()["target_member_probs"]


def _changed(row: int, value: float) -> np.ndarray:
    probs = ROWS.copy()
    probs[row, 0] = value
    return probs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"target_member_probs": None, "target_members_probs": ROWS},
            "'target_member_probs', got 'target_members_probs'",
        ),
        ({"shadow_member_labels": None}, "'shadow_member_labels', got none of this name. Add it"),
        ({"target_member_probs": ROWS[:, :9]}, "must have the same classes K"),
        ({"target_member_probs": ROWS[0]}, r"must have the same classes K"),
        ({"target_member_probs": ROWS[:9]}, r"target_member_labels must have the shape [9]"),
        (
            {"target_member_probs": _changed(7, np.nan)},
            "target_member_probs must be finite, got NaN or infinity in row 7",
        ),
        (
            {"target_member_probs": _changed(7, -3)},
            "target_member_probs must be probabilities from 0 to 1, got another number in row 7",
        ),
        (
            {"target_member_probs": ROWS * 0.9},
            "target_member_probs must sum to 1 in every row, got another sum in row 0",
        ),
        ({"target_member_labels": np.full(500, 10)}, "target_member_labels must be from 0 to 9"),
        ({"target_member_labels": np.full(500, 0.5)}, "target_member_labels must be whole numbers"),
        (
            {"target_member_labels": np.array(["a"] * 500, object)},
            "must be an .npz file of numeric arrays",
        ),
    ],
)
def test_a_file_that_is_not_right_is_refused(raydp, saved, changes, message) -> None:
    answer = raydp("mia", saved(**changes), "--json")
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def _damaged(folder: Path) -> Iterator[tuple[str, bytes]]:
    """A single array; an archive of something else; members that are encrypted, of another
    compression, too large."""
    np.save(folder / "one.npy", ROWS)
    yield "one.npz", (folder / "one.npy").read_bytes()
    np.savez(folder / "whole.npz", target_member_probs=ROWS)
    whole = (folder / "whole.npz").read_bytes()
    entry = whole.find(b"PK\x01\x02")
    yield "encrypted.npz", whole[: entry + 8] + b"\x01" + whole[entry + 9 :]
    yield "other.npz", whole[: entry + 10] + b"\x63" + whole[entry + 11 :]
    header = (
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000, 4), }".ljust(117)
        + b"\n"
    )
    for name, content in (
        ("text.npz", b"text"),
        ("large.npz", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header),
    ):
        with zipfile.ZipFile(folder / name, "w") as archive:
            for model, part, kind in product(
                ("shadow", "target"), ("member", "nonmember"), ("probs", "labels")
            ):
                archive.writestr(
                    f"{model}_{part}_{kind}" + (".npy" if name == "large.npz" else ""), content
                )
        yield name, (folder / name).read_bytes()


def test_files_that_hold_no_outputs_are_refused(raydp, tmp_path) -> None:
    assert "must be an existing .npz file" in raydp("mia", "no.npz").err
    (tmp_path / "text.npz").write_text("text")
    assert "must be an .npz file of numeric arrays" in raydp("mia", tmp_path / "text.npz").err
    for name, damaged in _damaged(tmp_path):
        (tmp_path / name).write_bytes(damaged)
        answer = raydp("mia", tmp_path / name)
        assert (answer.code, "Traceback" in answer.err) == (2, False), name
    answer = raydp("mia", "no.npz", "--shadows", 4)
    assert (answer.code, "--shadows must go with a SPEC" in answer.err) == (2, True)


@pytest.mark.slow
def test_the_neural_attack_weighs_members_and_nonmembers_half_each() -> None:
    """Confidences of normals one standard deviation apart, six members for each non-member: at best
    an accuracy of Phi(1/2) = 0.69; without the weights the network says member nearly always,
    0.54."""
    parts = []
    for seed, (size, shift) in enumerate([(1200, 1), (200, 0), (600, 1), (600, 0)]):
        own = 1 / (1 + np.exp(-np.random.default_rng(seed).normal(shift, 1, size)))
        parts.append(
            Outputs(probs=np.stack([1 - own, own], axis=1), labels=np.ones(size, np.int64))
        )
    assert neural_attack(_observed(*parts[:2]), _observed(*parts[2:]))["accuracy"] > 0.62


@pytest.mark.slow
def test_sorted_vectors_say_nothing_of_which_class_is_which() -> None:
    """Every row's probabilities in another order: with presort the same attack, also of data too
    few to stop early."""
    rng = np.random.default_rng(0)
    parts = [
        Outputs(probs=rng.dirichlet(np.ones(4), 12), labels=rng.integers(0, 4, 12))
        for _ in range(4)
    ]
    mixed = [Outputs(probs=rng.permuted(p.probs, axis=1), labels=p.labels) for p in parts]
    first, second = ((_observed(*p[:2]), _observed(*p[2:])) for p in (parts, mixed))
    assert neural_attack(*first, presort=True) == neural_attack(*second, presort=True)
    assert neural_attack(*first)["auc"] != neural_attack(*second)["auc"]
