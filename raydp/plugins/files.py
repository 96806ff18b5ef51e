"""Plug-ins in a file of the user's, which a spec names by `file.py:Class`.

The file is imported as the module `raydp.plugins.files.x<its path in hexadecimal digits>`. Other
processes get objects of its classes pickled, and find the file by this name.

A name in a stored document must not run code: whoever copies a sweep's folder may not have written
it. So a file is imported only if this user has named it before, in a spec or a command of their
own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from raydp.system.cache import cache_dir
from raydp.system.yaml import texts_in

PLACE = re.compile(r"(?P<file>.+\.py):(?P<attribute>[^\W\d]\w*)", re.DOTALL)
__path__: list[str] = []
"""Marks this module as a package, in which Python looks for modules."""


class _Files(MetaPathFinder):
    """Finds the module of a user's file by the file's path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module of this package is; None for other modules."""
        package, _, name = fullname.rpartition(".")
        if package != __name__:
            return None
        file = Path(bytes.fromhex(name[1:]).decode())
        # A node without this path may have a copy of its folder as working directory.
        copies = (Path(*file.parts[start:]) for start in range(1, len(file.parts)))
        found = next((copy for copy in (file, *copies) if copy.is_file()), None)
        return None if found is None else spec_from_file_location(fullname, found)


sys.meta_path.append(_Files())


def place_of(name: object) -> tuple[Path, str] | None:
    """Return the file and the attribute that a name stands for; None if it names no file."""
    match = PLACE.fullmatch(name) if isinstance(name, str) else None
    return match and (Path(match["file"]).expanduser().absolute(), match["attribute"])


def trust(written: object) -> None:
    """Remember the files of code that a user's own spec or command names, at any depth."""
    for _, text in texts_in(written):
        if (place := place_of(text)) is not None:
            mark = _mark(place[0])
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def checked_file(file: Path, *, field: str) -> Path:
    """Return a file of code that exists and that this user has named before.

    Args:
        file: its absolute path.
        field: the field that names the file, for the message.

    Raises:
        ValueError: it does not exist, or only a stored document names it.
    """
    if not file.is_file():
        raise ValueError(
            f"{field} must be in a file that exists, got {str(file)!r}. Correct the path; a "
            "relative path starts at the current folder."
        )
    if not _mark(file).exists():
        raise ValueError(
            f"{field} must be in a file that you have named yourself, got {str(file)!r} from a "
            "stored sweep, and reading it would run that file. If you trust the file, run `raydp "
            "plan` on a spec that names it."
        )
    return file


def attribute_of(file: Path, attribute: str, *, field: str) -> object:
    """Import a file and return a class or an object that it defines.

    Raises:
        ValueError: the file must not be imported (see `checked_file`), or has no such attribute.
    """
    checked_file(file, field=field)
    module = import_module(f"{__name__}.x{str(file).encode().hex()}")
    if not hasattr(module, attribute):
        raise ValueError(
            f"{field} must be defined in {str(file)!r}, got {attribute!r}, which is not. Correct "
            "the name after the colon."
        )
    return getattr(module, attribute)


def _mark(file: Path) -> Path:
    """Return the empty file that stands for a file of code which this user has named."""
    return cache_dir() / "code" / sha256(str(file).encode()).hexdigest()
