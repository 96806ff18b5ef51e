"""Damaged binary files: whatever byte is lost or changed, the error is one sentence that names the
file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from raydp.analysis.tables.files import read_table
from raydp.extensions.classification.array_files import read_npz
from raydp.extensions.membership.outputs import read_outputs
from raydp.extensions.membership.shadow_attack import Losses, _read, _write
from raydp.sweep.store.points import SECRETS_FILE, secrets_beside
from raydp.tasks.row_files import read_rows

TABLE = pd.DataFrame({"text": [f"row {k % 7}" for k in range(300)], "value": np.arange(300.0)})
ARRAYS = {"inputs": np.arange(40.0).reshape(20, 2), "labels": np.arange(20) % 2}


def outputs() -> dict[str, np.ndarray]:
    """The content of a file of `raydp mia`."""
    names = [
        f"{model}_{part}" for model in ("shadow", "target") for part in ("member", "nonmember")
    ]
    probs = {f"{name}_probs": np.full((20, 2), 0.5) for name in names}
    return {**probs, **{f"{name}_labels": np.arange(20) % 2 for name in names}}


def of_table(path: Path) -> None:
    TABLE.to_parquet(path, index=False, compression="snappy")


READERS: dict[str, tuple[str, Callable[[Path], object], Callable[[Path], object]]] = {
    "points": ("points.parquet", of_table, lambda path: read_table(path, as_text=())),
    "secrets": (SECRETS_FILE, of_table, lambda path: secrets_beside(path.with_name("points.csv"))),
    "rows": ("rows.parquet", of_table, lambda path: list(read_rows(path, "data.path"))),
    "arrays": (
        "arrays.npz",
        lambda path: np.savez_compressed(path, **ARRAYS),
        lambda path: read_npz(path, ("inputs", "labels")),
    ),
    "losses": (
        "mia-0.npz",
        lambda path: _write(path, Losses(examples=np.arange(50.0), population=np.arange(60.0))),
        _read,
    ),
    "outputs": ("outputs.npz", lambda path: np.savez(path, **outputs()), read_outputs),
}


def refusal(read: Callable[[Path], object], path: Path) -> tuple[str | None, bool]:
    """Return the message of a refusal, and whether the library has refused the file.

    Else a value was refused.
    """
    try:
        read(path)
    except ValueError as error:
        return str(error), error.__cause__ is not None
    return None, False


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["truncated", "changed"])
def test_a_damaged_file_is_read_or_named(reader: str, kind: str, tmp_path: Path) -> None:
    name, write, read = READERS[reader]
    path = tmp_path / name
    write(path)
    read(path)
    content, refused = path.read_bytes(), 0
    for place in np.linspace(0, len(content) - 1, 120).astype(int):
        damaged = bytearray(content)
        damaged[place:] = (
            b"" if kind == "truncated" else bytes([damaged[place] ^ 0x55]) + damaged[place + 1 :]
        )
        path.write_bytes(damaged)
        told, by_library = refusal(read, path)
        refused += told is not None
        assert told is None or " must " in told
        assert not by_library or name in str(told)
    assert refused > 20
