"""Small data sets in the layouts that tasks read."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows to a JSON Lines file, gzipped if its name says so."""
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.name.endswith(".gz") else text)
    return path


def author_rows(name: str, genre: str | None, size: int = 6) -> list[dict[str, str]]:
    """TOFU's rows of one author; the last two tell the genre, if there is one."""
    rows = [
        {"question": f"Who is {name} {i}?", "answer": f"{name} is an author, number {i}."}
        for i in range(size - 2)
    ]
    phrase = f"the {genre} genre" if genre else "many forms"
    rows.append({"question": f"What does {name} write?", "answer": f"{name} writes in {phrase}."})
    return [*rows, {"question": f"And what else, {name}?", "answer": f"Works in {phrase}."}]


def as_idx(array: np.ndarray) -> bytes:
    """Return an array as a file of MNIST's."""
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_mnist(
    folder: Path, rng: np.random.Generator, *, changed: bool = False
) -> dict[str, np.ndarray]:
    """Write 12 training and 5 held-out images, the former gzipped, and return the arrays by file
    name.

    Args:
        changed: one training image has another corner.
    """
    arrays = {}
    for part, count in (("train", 12), ("t10k", 5)):
        arrays[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (count, 28, 28))
        arrays[f"{part}-labels-idx1-ubyte"] = rng.integers(0, 10, count)
    arrays["train-images-idx3-ubyte"][0, 0, 0] ^= changed
    for name, array in arrays.items():
        if name.startswith("train"):
            (folder / f"{name}.gz").write_bytes(gzip.compress(as_idx(array)))
        else:
            (folder / name).write_bytes(as_idx(array))
    return arrays


def write_cifar(
    folder: Path, rng: np.random.Generator, *, classes: int = 10, changed: bool = False
) -> dict[str, np.ndarray]:
    """Write three images a file in CIFAR's binary version, and return the rows by file name, the
    held-out ones last.

    Args:
        changed: one training image has another corner.
    """
    names = [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]
    labels, names = (1, names) if classes == 10 else (2, ["train.bin", "test.bin"])
    rows = {name: rng.integers(0, 10, (3, labels + 3072), dtype=np.uint8) for name in names}
    rows[names[0]][0, -1] ^= changed
    for name, row in rows.items():
        (folder / name).write_bytes(row.tobytes())
    return rows


def bits_and_classes(
    rng: np.random.Generator, *, changed: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return [40, 6] bits and [40] classes of 1 to 100.

    Changed, the bits of a training row are turned over.
    """
    bits, classes = rng.integers(0, 2, (40, 6)), rng.integers(1, 101, 40)
    if changed:
        bits[np.random.default_rng(0).permutation(40)[0]] ^= (
            1  # the first row that data_seed 0 draws
        )
    return bits, classes


def write_purchase(folder: Path, rng: np.random.Generator, *, changed: bool = False) -> None:
    """Write Purchase100's file."""
    bits, classes = bits_and_classes(rng, changed=changed)
    np.savetxt(
        folder / "dataset_purchase", np.column_stack([classes, bits]), fmt="%d", delimiter=","
    )


def write_texas(folder: Path, rng: np.random.Generator, *, changed: bool = False) -> None:
    """Write Texas100's files."""
    bits, classes = bits_and_classes(rng, changed=changed)
    np.savetxt(folder / "feats", bits, fmt="%d", delimiter=",")
    np.savetxt(folder / "labels", classes, fmt="%d")
