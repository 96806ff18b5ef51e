"""Names of plug-ins and their locations: those of the core, and those of entry points.

An entry is `name -> "module:attribute"`, imported only when the name is used. The extensions of
this distribution and third parties add one with an entry point in the group `raydp.<kind>`, for
example `[project.entry-points."raydp.scores"]`.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Mapping
from functools import cache, reduce
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from raydp.analysis.entry_points import entries, is_own
from raydp.search_spaces.names import unknown_name as unknown_name
from raydp.system.imports import imported

Kind = Literal[
    "tasks", "methods", "scores", "accountants", "rules", "searches",
    "models", "policies", "record_parts", "commands", "services", "selftest",
]  # fmt: skip

DEFAULT_ACCOUNTANT = "pld"
FILE = Path(__file__).parents[1] / "data" / "plugin_parameters.json"
"""What is known of the core's plug-ins without importing them; see `raydp.plugins.parameters`."""
Description = dict[str, Any]
_used: set[str] = set()

BUILTIN: dict[Kind, dict[str, str]] = {
    "tasks": {
        "builtin": "raydp.tasks.text.builtin:BuiltinTask",
        "planted": "raydp.tasks.wrappers.planted_task:PlantedTask",
        "text": "raydp.tasks.text.any_text:TextTask",
    },
    "methods": {
        "dp_adam": "raydp.methods.dp:DPAdam",
        "dp_sgd": "raydp.methods.dp:DPSGD",
        "nonprivate": "raydp.methods.nonprivate:NonPrivate",
    },
    "scores": {
        "air": "raydp.scores.memorisation.air:AttributeInference",
        "logprob": "raydp.scores.memorisation.logprob:LogProbability",
        "vmr": "raydp.scores.memorisation.vmr:VerbatimMemorization",
        "vmr_exact": "raydp.scores.memorisation.vmr:ExactVerbatimMemorization",
    },
    "searches": {},
    "rules": {
        "best-utility": "raydp.analysis.selection.rules:BEST_UTILITY",
        "informed": "raydp.analysis.selection.rules:INFORMED",
        "oracle": "raydp.analysis.selection.rules:ORACLE",
        "procedure": "raydp.analysis.selection.rules:PROCEDURE",
        "worst-utility": "raydp.analysis.selection.rules:WORST_UTILITY",
    },
    "accountants": {
        "pld": "raydp.privacy.accounting.pld:PLDAccountant",
        "prv": "raydp.privacy.accounting.prv:PRVAccountant",
        "rdp": "raydp.privacy.accounting.rdp:RDPAccountant",
    },
    "models": {},
    "policies": {"ignored": "raydp.sweep.policy:OrdinarySweep"},
    "record_parts": {},
    "commands": {  # in the order of the help
        "sweep": "raydp.cli.commands.sweep:COMMAND",
        "status": "raydp.cli.commands.status:COMMAND",
        "points": "raydp.cli.commands.points:COMMAND",
        "select": "raydp.cli.commands.select:COMMAND",
        "selftest": "raydp.cli.commands.selftest:COMMAND",
        "schema": "raydp.cli.commands.schema:COMMAND",
        "plan": "raydp.cli.commands.plan:COMMAND",
        "report": "raydp.cli.commands.report:COMMAND",
        "spaces": "raydp.cli.commands.spaces:COMMAND",
        "analyze": "raydp.cli.commands.analyze:COMMAND",
        "models": "raydp.cli.commands.models:COMMAND",
    },
    "services": {},
    "selftest": {},
}


def names(kind: Kind) -> list[str]:
    """Return the known names of a kind, sorted."""
    return sorted({*BUILTIN[kind], *_entries(kind)})


def own_names(kind: Kind) -> list[str]:
    """Return the names of a kind that this distribution provides, in the core and in extensions."""
    return sorted({*BUILTIN[kind], *(n for n, e in _entries(kind).items() if is_own(e))})


def target(kind: Kind, name: str) -> str | None:
    """Return where a plug-in is, "module:attribute", without importing it; None if it is unknown.

    An extension may stand in for a plug-in of the core, by a subclass that has further fields. No
    other package can take the place of a method that has a guarantee.
    """
    entry, of_core = _entries(kind).get(name), BUILTIN[kind].get(name)
    return entry.value if entry and (is_own(entry) or of_core is None) else of_core


def _entries(kind: Kind) -> Mapping[str, EntryPoint]:
    """Return the entry points of a kind by name. Those of this distribution go first."""
    return entries(f"raydp.{kind}")


def summary(kind: Kind, name: str) -> str:
    """Return the first paragraph of a plug-in's docstring, as one line.

    A module of this distribution is parsed, not imported: it may load torch.
    """
    if name not in own_names(kind):
        return _first_paragraph(inspect.getdoc(resolve(kind, name)))
    place = target(kind, name)
    assert place is not None, name
    # find_spec locates the file without running it.
    module, attribute = place.split(":")
    source = find_spec(module)
    assert source is not None, module
    assert source.origin is not None, module
    tree = ast.parse(Path(source.origin).read_text(encoding="utf-8"))
    classes = (
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == attribute
    )
    return _first_paragraph(next((ast.get_docstring(node) for node in classes), None))


def file_of(kind: Kind, name: str, place: str | None = None) -> Path | None:
    """Return the file that may describe a plug-in, at its place; None if the plug-in is unknown."""
    place = place or target(kind, name) or ""
    if place == BUILTIN[kind].get(name):
        return FILE
    module = place.partition(":")[0]
    package = find_spec(module.rpartition(".")[0]) if "." in module else None
    if package is None or package.origin is None:
        return None
    return Path(package.origin).with_name(FILE.name)


def description(kind: Kind, name: str) -> Description | None:
    """Return what a file holds of a plug-in, or None if no file describes it."""
    path = file_of(kind, name)
    return None if path is None else _content(path).get(kind, {}).get(name)


@cache
def _content(path: Path) -> dict[str, dict[str, Description]]:
    text = path.read_text("utf-8") if path.is_file() else "{}"
    content: dict[str, dict[str, Description]] = json.loads(text)
    return content


def service(name: str, *, needed_by: str | None) -> Any:
    """Return a function of an extension that the core calls by name.

    Args:
        name: of the entry point in the group `raydp.services`.
        needed_by: the option that needs it, for the message. None if the core can do without: it
            then gets None where no extension provides the function.

    Raises:
        ValueError: no extension provides it, and an option needs it.
    """
    if name not in names("services"):
        if needed_by is None:
            return None
        raise ValueError(
            f"{needed_by} must be left out without the extension that provides {name!r}, which is "
            "not installed. Install raydp-tune whole."
        )
    return resolve("services", name)


def used_packages() -> tuple[str, ...]:
    """Return the packages of this distribution whose plug-ins this process has imported."""
    return tuple(f"{package}." for package in sorted(_used))


def _first_paragraph(docstring: str | None) -> str:
    return " ".join((docstring or "").partition("\n\n")[0].split())


def resolve(kind: Kind, name: str, *, field: str | None = None) -> Any:
    """Import the plug-in that a name stands for.

    Args:
        kind: kind of the plug-in.
        name: name as written in the spec.
        field: the field that holds the name, for the message; by default derived from the kind.

    Raises:
        ValueError: the name is unknown. The message names the nearest name.
    """
    if (place := target(kind, name)) is None:
        raise ValueError(unknown_name(field or f"{kind.removesuffix('s')}.name", name, names(kind)))
    if kind in ("tasks", "methods", "scores", "models") and name in own_names(kind):
        _used.add(place.partition(":")[0].rpartition(".")[0])
    return at(place)


def at(place: str) -> object:
    """Import the object at a place, "module:attribute"."""
    module, _, attribute = place.partition(":")
    return reduce(getattr, attribute.split("."), imported(module))
