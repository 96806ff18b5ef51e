"""JSON files of a sweep: written whole or not at all.

Reading a damaged or foreign file is an error with a remedy.

JSON has no infinity and no NaN, which the history of a failed run has. They are written as in
MongoDB's Extended JSON, {"$numberDouble": "Infinity"}, so every parser reads the files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from raydp.system.files import write_atomically

S = TypeVar("S")
_NOT_FINITE = "$numberDouble"
"""The only key of an object that stands for a number which JSON does not have."""
_WORDS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def write_json(path: Path, document: object) -> None:
    """Write a JSON file that the owner alone may read, whole or not at all."""
    try:
        text = json.dumps(document, indent=1, allow_nan=False)
    except ValueError:  # a number is not finite
        text = json.dumps(_finite(document), indent=1, allow_nan=False)
    write_atomically(path, (text + "\n").encode(), private=True)


def read_json(path: Path, *, without: str | None = None) -> Any:
    """Return the content of a JSON file. Return None if the file does not exist.

    Args:
        path: the file.
        without: an entry whose list is not read and is empty in the answer, because it is long.

    Raises:
        ValueError: the file is not JSON.
    """
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    content = content if without is None else _emptied(content, without.encode())
    # Without a hook the parser is several times as fast, and a sweep may have thousands of files.
    hook = _number_or_object if _NOT_FINITE.encode() in content else None
    try:
        return json.loads(content.decode("utf-8"), object_hook=hook)
    except ValueError as error:
        raise ValueError(
            f"SWEEP must have whole files, got {str(path)!r} that is not JSON ({error}). If it is "
            "in trials/, delete it and continue with --resume; if in scores/, delete it and run "
            "`raydp score` again, or resume the sweep that measured it; without plan.json a sweep "
            "cannot continue."
        ) from error


def _emptied(content: bytes, name: bytes) -> bytes:
    """Empty a list of a file that `write_json` laid out.

    Return another content, such as a truncated one, as it is.
    """
    # `write_json` indents by one space, so the list's brackets are at known places.
    begin = content.find(b'\n "' + name + b'": [\n')
    end = content.find(b"\n ]", begin)
    if begin < 0 or end < 0:
        return content
    return content[:begin] + b'\n "' + name + b'": []' + content[end + len(b"\n ]") :]


def read_state(
    path: Path, from_json: Callable[[Any], S], *, without: str | None = None
) -> S | None:
    """Return the state in a JSON file. Return None if the file does not exist.

    Args:
        path: the file.
        from_json: makes the state from the file's content.
        without: see `read_json`.

    Raises:
        ValueError: the file is not JSON, or another version of raydp wrote other content.
    """
    document = read_json(path, without=without)
    if document is None:
        return None
    try:
        return from_json(document)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"SWEEP must have files that this version of raydp reads, got {str(path)!r} "
            f"({type(error).__name__}: {error}). Restore the file, or read the sweep with the "
            "version that wrote it."
        ) from error


class HasPath(Protocol):
    """A folder of files."""

    @property
    def path(self) -> Path:
        """Return where the folder is."""


@dataclass(frozen=True)
class Document(Generic[S]):
    """A JSON file of a folder with a value of one type. It is an attribute of the folder's class.

        end = Document("end.json", End.from_json, End.to_json)

    Then `folder.end()` reads the file, `folder.end.write(end)` writes it, and `folder.end.remove()`
    removes it.
    """

    name: str
    from_json: Callable[..., S]
    to_json: Callable[[S], object]

    def __get__(self, folder: HasPath, owner: type[HasPath]) -> DocumentFile[S]:
        return DocumentFile(folder.path / self.name, self)


@dataclass(frozen=True)
class DocumentFile(Generic[S]):
    """The file of a document in one folder."""

    path: Path
    document: Document[S]

    def __call__(self) -> S | None:
        """Return the value; None if there is no file. Raise as `read_state` does."""
        return read_state(self.path, self.document.from_json)

    def write(self, value: S) -> None:
        """Write the value, whole or not at all."""
        write_json(self.path, self.document.to_json(value))

    def remove(self) -> None:
        """Remove the file, if there is one."""
        self.path.unlink(missing_ok=True)


def _finite(value: object) -> object:
    """Replace the numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {
            _NOT_FINITE: "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        }
    return value


def _number_or_object(content: dict[str, Any]) -> object:
    """Return an object of a file, or the number that it stands for."""
    word = content.get(_NOT_FINITE) if len(content) == 1 else None
    return _WORDS[word] if isinstance(word, str) and word in _WORDS else content
