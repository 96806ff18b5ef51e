"""Named grids of (batch size, steps, learning rate) and their loader.

The public names are imported on first use.

The package is installed as `raydp.search_spaces`; `raydp/search_spaces` is a link to this folder.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydp.search_spaces.configuration import Configuration as Configuration
    from raydp.search_spaces.configuration import exact as exact
    from raydp.search_spaces.loader import Rejected as Rejected
    from raydp.search_spaces.loader import SearchSpace as SearchSpace
    from raydp.search_spaces.loader import grid as grid
    from raydp.search_spaces.loader import load_space as load_space
    from raydp.search_spaces.loader import space_names as space_names

_HOMES = {
    "Configuration": "configuration",
    "Rejected": "loader",
    "SearchSpace": "loader",
    "exact": "configuration",
    "grid": "loader",
    "load_space": "loader",
    "space_names": "loader",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """Import a public name from the module that defines it (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"raydp.search_spaces.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
