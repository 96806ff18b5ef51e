"""Damaged binary files: their readers raise many exceptions, most without the file's name."""

from __future__ import annotations

import errno
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NUMERIC_ARRAYS = "an .npz file of numeric arrays"
_DAMAGED = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What numpy, zipfile, pyarrow and pandas raise for damaged content."""


@contextmanager
def naming(path: Path, field: str, kind: str, remedy: str) -> Iterator[None]:
    """Name the file in an error of the block, which reads the whole file and does nothing else.

    Args:
        path: the file.
        field: the field, option or argument that names the file.
        kind: what the file must be, such as "a whole Parquet file".
        remedy: a sentence.

    Raises:
        ValueError: the content is damaged, or of another kind.
        OSError: the file cannot be opened, or the disk fails.
    """
    try:
        yield
    except _DAMAGED as error:
        # A damaged offset makes the libraries seek or read where nothing can be, which is EINVAL.
        if isinstance(error, OSError) and error.errno not in {None, errno.EINVAL}:
            raise
        raise ValueError(
            f"{field} must be {kind}, got {str(path)!r}, which cannot be read "
            f"({type(error).__name__}). {remedy}"
        ) from error
