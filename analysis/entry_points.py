"""What extensions and other packages add: the entry points of a group."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

OWN = "raydp-tune"
"""The name of this distribution."""
FUNCTIONS = "raydp.analysis"
"""The group whose entries are names that `raydp.analysis` and its figures have besides."""


@cache  # searching the installed packages takes about 20 ms
def entries(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name. Those of this distribution go first."""
    found: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: not is_own(entry)):
        found.setdefault(entry.name, entry)
    return found


def is_own(entry: EntryPoint) -> bool:
    """Return whether an entry point is one of this distribution."""
    return entry.dist is not None and entry.dist.name == OWN


def function(name: str, *, of: str) -> object:
    """Return an added function of the analysis.

    Raises:
        AttributeError: nothing adds the name. The message names the module `of`.
    """
    # Names with underscores are asked of every module by Python itself.
    if name.startswith("__") or name not in entries(FUNCTIONS):
        raise AttributeError(f"module {of!r} has no attribute {name!r}")
    return entries(FUNCTIONS)[name].load()
