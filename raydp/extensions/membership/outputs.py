"""The file of a classifier's stored outputs: reading and checking."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raydp.extensions.membership.classifier import Observed, Outputs
from raydp.system.damaged_files import NUMERIC_ARRAYS, naming

MODELS, PARTS = ("shadow", "target"), ("member", "nonmember")
_OF_THE_FORMAT = frozenset(
    [
        "shadow",
        "target",
        "member",
        "members",
        "nonmember",
        "nonmembers",
        "non",
        "train",
        "test",
        "prob",
        "probs",
        "probabilities",
        "label",
        "labels",
    ]
)
SUM_TOLERANCE = 0.01
"""Tolerance of a row's sum.

float16 outputs, or 100 probabilities rounded to 4 decimals, err by half of it.
"""


def read_outputs(path: Path) -> tuple[Observed, Observed]:
    """Read the outputs of a shadow and a target model.

    Args:
        path: .npz with {shadow,target}_{member,nonmember}_{probs,labels}: probs [N, K]
            distributions over the same K classes, labels [N] the classes 0 .. K - 1 of the
            examples. N may differ between them.

    Returns:
        The shadow's outputs and the target's.

    Raises:
        ValueError: the file is not of this form. The message names the array to change, and how.
    """
    arrays = _arrays(path)
    # All missing arrays in one message.
    wanted = [f"{m}_{p}_{kind}" for m in MODELS for p in PARTS for kind in ("probs", "labels")]
    problems = [
        _missing(name, [a for a in arrays if a not in wanted])
        for name in wanted
        if name not in arrays
    ]
    if problems:
        raise ValueError("\n".join(problems))
    widths = {name: arrays[name].shape[1:] for name in wanted if name.endswith("probs")}
    if len(set(widths.values())) > 1:
        shown = ", ".join(f"{name} {['N', *width]}" for name, width in widths.items())
        raise ValueError(
            f"FILE must have the same classes K in every [N, K] array of probs, got {shown}. "
            "Correct them."
        )
    shadow, target = (
        Observed(
            **{
                f"{part}s": _outputs(
                    f"{model}_{part}",
                    arrays[f"{model}_{part}_probs"],
                    arrays[f"{model}_{part}_labels"],
                )
                for part in PARTS
            }
        )
        for model in MODELS
    )
    return shadow, target


def _arrays(path: Path) -> Mapping[str, NDArray[np.generic]]:
    if not path.is_file():
        raise ValueError(f"FILE must be an existing .npz file, got {str(path)!r}. Check the path.")
    with naming(path, "FILE", NUMERIC_ARRAYS, "Write it with numpy.savez."):
        stored = np.load(path, allow_pickle=False)
        if isinstance(stored, np.ndarray):
            raise ValueError("one array")
        with stored:
            arrays = {name: stored[name] for name in stored.files}
    # numpy returns members that are not arrays as bytes
    return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}


def _missing(name: str, others: Sequence[str]) -> str:
    """Return the message on a missing array; another's name shows only if made of known words."""
    # A name of somebody else's array may tell of private data.
    ours = [
        other for other in others if _OF_THE_FORMAT.issuperset(re.split(r"[\W_]+", other.lower()))
    ]
    near = difflib.get_close_matches(name, ours, n=1)
    got = f"{near[0]!r} instead. Rename it" if near else "none of this name. Add it"
    return f"FILE must hold the array {name!r}, got {got}."


def _outputs(name: str, probs: NDArray[np.generic], labels: NDArray[np.generic]) -> Outputs:
    """Return the checked arrays as float64 and int64."""
    problem, remedy = _problem_of_probs(probs), "Store the softmax outputs, one row per example."
    kind = "probs"
    if not problem:
        problem, kind = _problem_of_labels(labels, *probs.shape), "labels"
        remedy = "Store the class of each row of the probabilities."
    if problem:
        raise ValueError(f"{name}_{kind} must {problem}. {remedy}")
    return Outputs(probs=probs.astype(np.float64).clip(0, 1), labels=labels.astype(np.int64))


def _problem_of_probs(probs: NDArray[np.generic]) -> str | None:
    if probs.ndim != 2 or not len(probs) or probs.shape[1] < 2:
        return f"have the shape [N, K] with N >= 1 examples and K >= 2 classes, got {list(probs.shape)}"
    if not np.issubdtype(probs.dtype, np.floating) and not np.issubdtype(probs.dtype, np.integer):
        return f"hold real numbers, got {probs.dtype}"
    # float64, so that sums of many float16 values are exact enough.
    values = probs.astype(np.float64)
    if not np.isfinite(values).all():
        return f"be finite, got NaN or infinity in row {_first(~np.isfinite(values).all(axis=1))}"
    outside = ((values < -SUM_TOLERANCE) | (values > 1 + SUM_TOLERANCE)).any(axis=1)
    if outside.any():
        return f"be probabilities from 0 to 1, got another number in row {_first(outside)}"
    sums = values.sum(axis=1)
    if (off := np.abs(sums - 1) > SUM_TOLERANCE).any():
        return f"sum to 1 in every row, got another sum in row {_first(off)}"
    return None


def _problem_of_labels(
    labels: NDArray[np.generic], num_examples: int, num_classes: int
) -> str | None:
    if labels.shape != (num_examples,):
        return f"have the shape [{num_examples}], as many as its probs have rows, got {list(labels.shape)}"
    numeric = np.issubdtype(labels.dtype, np.integer) or np.issubdtype(labels.dtype, np.floating)
    values = labels.astype(np.float64) if numeric else np.array([np.nan])
    if not (values == np.round(values)).all():
        return f"be whole numbers, got {labels.dtype}"
    outside = (values < 0) | (values >= num_classes)
    if outside.any():
        return f"be from 0 to {num_classes - 1}, as probs have {num_classes} classes, got another in row {_first(outside)}"
    return None


def _first(flags: NDArray[np.bool_] | np.bool_) -> int:
    """Return the position of the first true flag."""
    return int(np.argmax(flags))
