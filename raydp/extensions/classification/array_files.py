"""Readers of labelled arrays in the published file layouts. They never unpickle."""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from raydp.extensions.classification.labelled import LabelledExamples
from raydp.search_spaces.names import columns_in_words, is_number
from raydp.system.damaged_files import NUMERIC_ARRAYS, naming

MOST_CLASSES = 100_000
IDX_BYTES = 0x08
"""Code of unsigned bytes in IDX."""


def read_idx(folder: Path, name: str) -> NDArray[np.uint8]:
    """Read an array in IDX, the layout of MNIST (LeCun), from NAME or the gzipped NAME.gz.

    Raises:
        ValueError: the file is missing or is not an IDX file of bytes.
    """
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
    if path is None:
        raise ValueError(
            f"task.path must hold {name} or {name}.gz, got {str(folder)!r} without it. Put it there."
        )
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise ValueError(
            f"task.path must hold whole files, got a damaged {path.name!r}. Get it again."
        ) from error
    dimensions = content[3] if len(content) >= 4 else 0
    head = 4 + 4 * dimensions
    # IDX begins with two zero bytes, the type, the number of dimensions, and each size as uint32.
    shape = tuple(np.frombuffer(content[4:head], ">u4").tolist()) if len(content) >= head else ()
    # The sizes must explain every byte: a truncated download would otherwise fail much later.
    if (
        content[:3] != bytes([0, 0, IDX_BYTES])
        or not shape
        or len(content) - head != math.prod(shape)
    ):
        raise ValueError(
            f"task.path must hold IDX files of bytes, got {path.name!r} in another form. Get it "
            "again."
        )
    return np.frombuffer(content[head:], np.uint8).reshape(shape)


def read_cifar(paths: Sequence[Path], label_bytes: int, label_at: int) -> LabelledExamples:
    """Read images in the binary version of CIFAR (Krizhevsky 2009): labels, then 3 x 32 x 32 bytes.

    Pixels become numbers from 0 to 1.

    Args:
        label_bytes: number of label bytes before each image; 1 in CIFAR-10, 2 in CIFAR-100.
        label_at: position of the label byte that is the class.

    Raises:
        ValueError: a file is missing or is not a CIFAR file.
    """
    rows = []
    for path in paths:
        if not path.is_file():
            raise ValueError(
                f"task.path must hold {path.name}, got {str(path.parent)!r} without it. Unpack the "
                "binary version there."
            )
        content = np.frombuffer(path.read_bytes(), np.uint8)
        # A row of CIFAR is its label bytes and 3 x 32 x 32 = 3072 bytes of pixels.
        if not len(content) or len(content) % (label_bytes + 3072):
            raise ValueError(
                f"task.path must hold CIFAR's binary files, got another {path.name!r}. Get it again."
            )
        rows.append(content.reshape(-1, label_bytes + 3072))
    content_rows = np.concatenate(rows)
    # Pixels go to [0, 1] by a public constant: a scale computed from the data would not be covered.
    pixels = content_rows[:, label_bytes:].reshape(-1, 3, 32, 32).astype(np.float32)
    images = cast(NDArray[np.float32], pixels / 255)  # numpy 2 keeps the type
    return LabelledExamples(inputs=images, labels=content_rows[:, label_at].astype(np.int64))


def read_matrix(path: Path) -> NDArray[np.float32]:
    """Read [rows, columns] numbers separated by commas, without a header.

    Raises:
        ValueError: the file is missing, or a cell is not a number; the message names the line.
    """
    if not path.is_file():
        raise ValueError(f"task.path must be an existing file, got {str(path)!r}. Check the path.")
    import pandas as pd

    try:
        table = pd.read_csv(path.absolute(), header=None, dtype=np.float32, engine="c")
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(
            f"task.path must hold numbers separated by commas, equally many in each row, got "
            f"something else in {path.name!r}{_first_other(path)}. Correct the file."
        ) from error
    values = table.to_numpy()
    if not np.isfinite(values).all():
        raise ValueError(
            f"task.path must hold a number in every cell, got none in "
            f"{path.name!r}{_first_other(path)}. Fill it."
        )
    return values


def _first_other(path: Path) -> str:
    """Return in words where the first cell is that is not a finite number."""
    with suppress(UnicodeDecodeError), path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip() and not all(map(is_number, line.split(","))):
                return f" in line {number}"
    return ""


def read_npz(path: Path, names: tuple[str, str]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read inputs [n, ...] and labels [n] from a .npz file.

    Args:
        names: names of the two arrays.

    Raises:
        ValueError: the file is missing, or its arrays are missing or of another type or shape.
    """
    if not path.is_file():
        raise ValueError(f"task.path must be an existing file, got {str(path)!r}. Check the path.")
    # A pickled array could run code.
    with (
        naming(path, "task.path", NUMERIC_ARRAYS, "Save numbers with numpy.savez."),
        np.load(path, allow_pickle=False) as stored,
    ):
        present = list(stored)
        arrays = {name: np.asarray(stored[name]) for name in names if name in present}
    missing = [name for name in names if name not in present]
    if missing:
        words = columns_in_words(present).replace("column", "array")
        raise ValueError(
            f"task.path must hold the array {missing[0]!r}, got {words} in {path.name!r}. Save it by "
            "this name."
        )
    inputs, labels = (arrays[name] for name in names)
    return _numbers(inputs, names[0]), _classes(labels, names[1])


def _numbers(inputs: NDArray[np.generic], name: str) -> NDArray[np.float32]:
    # Booleans and text are no numbers of a network; complex numbers would lose their imaginary
    # part.
    real = np.issubdtype(inputs.dtype, np.number) and not np.issubdtype(
        inputs.dtype, np.complexfloating
    )
    if inputs.ndim < 2 or not inputs.size or not real:
        raise ValueError(
            f"task.path must have real numbers [n, ...] in {name!r}, got {inputs.dtype} "
            f"{inputs.shape}. Correct it."
        )
    # A double beyond single precision becomes infinite, which the check below reports.
    with np.errstate(over="ignore"):
        numbers = inputs.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError(
            f"task.path must have finite single precision numbers in {name!r}, got others. Scale "
            "them."
        )
    return numbers


def _classes(labels: NDArray[np.generic], name: str) -> NDArray[np.int64]:
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or not len(labels):
        raise ValueError(
            f"task.path must have whole numbers [n] in {name!r}, got {labels.dtype} {labels.shape}."
        )
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or not 0 < highest < MOST_CLASSES:
        raise ValueError(
            f"task.path must have classes from 0 to at most {MOST_CLASSES - 1} in {name!r}, two at "
            f"least, got {lowest} to {highest}. Number them from 0."
        )
    return labels.astype(np.int64)
