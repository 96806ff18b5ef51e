"""The reference of the Python API: which names are shown on which page. mkdocstrings writes them
from docstrings."""

from __future__ import annotations

from collections.abc import Iterable

import raydp
import raydp.analysis
import raydp.search_spaces

_EXTENSION_POINTS = {
    "Task": ("raydp.tasks.task",),
    "Method": ("raydp.methods.method",),
    "Score": ("raydp.scores.score",),
    "Accountant": ("raydp.privacy.accounting.accountant",),
    "Search": ("raydp.sweep.search",),
    "Selection rule": ("raydp.analysis.selection.rules",),
}
"""Kind of plug-in -> the modules that have what a plug-in of this kind inherits or returns."""


def pages() -> dict[str, str]:
    """Return the pages on the Python API: page of the site -> its Markdown."""
    top = {name: _home(raydp, name) for name in raydp.__all__}
    analysis = {
        name: _home(raydp.analysis, name) for name in sorted(raydp.analysis.__all__, key=str.lower)
    }
    spaces = {name: _home(raydp.search_spaces, name) for name in raydp.search_spaces.__all__}
    shown: set[str] = set()
    return {
        "reference/python.md": _page(
            "The package raydp",
            "What `import raydp` gives. Each name is imported when it is first used.",
            top,
            shown,
        ),
        "reference/analysis.md": _page(
            "raydp.analysis",
            "From a points table to a choice. These functions take a pandas table, so that they "
            "also work on results of other tools. They import neither Ray nor torch.",
            analysis,
            shown,
        ),
        "reference/search_spaces.md": _page(
            "raydp.search_spaces",
            "Named grids of (batch size, steps, learning rate), and their loader.",
            spaces,
            shown,
        ),
        "reference/extension_points.md": _extension_points(),
    }


def _home(package: object, name: str) -> str:
    """Return the full name of what a package exports, in the module that defines it."""
    value = getattr(package, name)
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return f"raydp.analysis.{raydp.analysis._HOMES[name]}.{name}"


def _page(title: str, about: str, names: dict[str, str], shown: set[str]) -> str:
    """A page of these names. What an earlier page shows is linked."""
    repeated = [f"[{name}][{home}]" for name, home in names.items() if home in shown]
    text = [f"# {title}", about]
    if repeated:
        text.append(f"Described with [the package raydp](python.md): {', '.join(repeated)}.")
    text += _objects(home for home in names.values() if home not in shown)
    shown |= set(names.values())
    return "\n\n".join(text) + "\n"


def _extension_points() -> str:
    text = [
        "# Extension points",
        "What a plug-in inherits, takes and returns. [Extending raydp](../extending.md) has an "
        "example of each.",
    ]
    for kind, modules in _EXTENSION_POINTS.items():
        text.append(f"## {kind}")
        text += [
            f"::: {module}\n    options: {{show_root_heading: false, show_root_toc_entry: false, "
            "heading_level: 3}"
            for module in modules
        ]
    return "\n\n".join(text) + "\n"


def _objects(names: Iterable[str]) -> list[str]:
    return [f"::: {name}" for name in names]
