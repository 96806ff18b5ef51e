"""What is planted, in every form in which it could lie around, and the search for it in a sweep's
files."""

from __future__ import annotations

import base64
import gzip
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pandas as pd

SECRETS = {
    "prompt": "please ring Quillon Zzyzxworth at 555-",
    "continuation": "8316",
    "attribute": "xylographic puppetry",
    "user": "quillon.zz@example.invalid",
    "name": "Zzyzxworth",
}
CREDENTIALS = {
    "AWS_SECRET_ACCESS_KEY": "planted-aws-QxZk7Lm2Vt9Rb4Ny8Wd3",
    "AWS_ACCESS_KEY_ID": "PLANTEDAKIDQ7ZX2M9K4",
    "MLFLOW_TRACKING_PASSWORD": "planted-mlflow-password-Jx5Qz",
    "MLFLOW_TRACKING_TOKEN": "planted-mlflow-token-Kp3Wv",
    "HF_TOKEN": "hf_plantedQzJkXvWmNbRtYpLsDfGh",
    "RAY_AUTH_TOKEN": "9f3b7c1d5e8a2f6049b7d1c3e5a8f2046b9d7c1e3f5a8042",
}
TOO_SHORT = {"continuation"}
"""Four digits also occur by chance: looked for together with what is before them."""


def forms(value: bytes) -> set[bytes]:
    """Plain, hexadecimal, base64 (at each of the three alignments) and as in an address."""
    found = {value, value.hex().encode(), value.hex().upper().encode(), quote(value).encode()}
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + value)
        inner = encoded[
            (shift * 8 + 5) // 6 : len(encoded) - 4
        ]  # without what the neighbours decide
        found |= {inner, inner.replace(b"+", b"-").replace(b"/", b"_")}
    return {form for form in found if len(form) > 3}


def contents(path: Path) -> Iterator[bytes]:
    """The bytes of a file; of a table also its values, of an archive what is in it."""
    raw = path.read_bytes()
    yield raw
    if raw[:2] == b"\x1f\x8b":
        yield gzip.decompress(raw)
    elif raw[:4] == b"PAR1":
        table = pd.read_parquet(path)
        yield table.to_csv().encode()
    elif raw[:2] == b"PK":
        with zipfile.ZipFile(path) as archive:
            yield from (archive.read(name) for name in archive.namelist())


def found_in(paths: list[Path], wanted: dict[str, bytes]) -> list[str]:
    """Which file holds which planted value; the value itself is not repeated."""
    needles = [(name, form) for name, value in wanted.items() for form in forms(value)]
    return [
        f"{name} in {path}"
        for path in paths
        for content in contents(path)
        for name in {name for name, form in needles if form in content}
    ]


MARKED: tuple[object, ...] = (
    "call Zzyzxworth 555",
    ["Zzyzxworth"],
    {"who": "Zzyzxworth"},
    -5550142.8316,
)
"""Cells of a table that no message may show."""


def marks_in(text: str) -> list[str]:
    """Which parts of the marked cells a text shows."""
    return [mark for mark in ("Zzyzxworth", "5550142", "8316") if mark in text]
