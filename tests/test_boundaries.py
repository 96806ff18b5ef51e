"""The rooms import downward only, and heavy libraries stay in the rooms that own them (CONVENTIONS 1 to 4)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OWNERS = {
    "ray": ["raydp/sweep"],
    "mlflow": ["raydp/tracking"],
    "prv_accountant": ["raydp/privacy"],
    "dp_accounting": ["raydp/privacy"],
}
LIGHT = ["analysis", "search_spaces"]
HEAVY = {"ray", "torch", "mlflow", "transformers", "peft", "opacus"}
FLOW = [
    "spec", "privacy", "models", "tasks", "training", "methods", "selftest", "membership", "scores", "tracking",
    "sweep", "preparation", "secrets", "commands", "cli",
]  # fmt: skip
"""Data flows from left to right; a room imports only from its left."""
ANALYSIS = ["tables", "statistics", "surface", "selection", "figures", "report"]
"""The same inside `analysis`."""


def files(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


def imports(path: Path, *, lazy: bool = True) -> Iterator[str]:
    """Modules that a file imports; without lazy only those at import time, and never those for type checkers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        checking = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not lazy
        if checking or function:
            skipped |= set(ast.walk(node)) - {node}
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("library", OWNERS)
def test_a_library_is_imported_only_by_the_room_that_owns_it(library: str) -> None:
    owners = [ROOT / folder for folder in OWNERS[library]]
    for path in files("raydp", "analysis", "search_spaces"):
        if not any(owner in path.parents for owner in owners):
            assert library not in {name.split(".")[0] for name in imports(path)}, path


def test_the_light_rooms_import_nothing_heavy() -> None:
    for path in files(*LIGHT):
        assert not HEAVY & {name.split(".")[0] for name in imports(path)}, path


@pytest.mark.parametrize(
    "module",
    [
        "analysis",
        "search_spaces",
        "raydp",
        "raydp.privacy",
        "raydp.cli",
        "raydp.tracking",
        "raydp.membership.show",
        "raydp.sweep.api",
    ],
)
def test_importing_it_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert not loaded.split()


def test_only_the_privacy_room_computes_an_epsilon() -> None:
    """Nothing else uses an accounting library (opacus.accountants included)."""
    for path in files("raydp", "analysis"):
        if ROOT / "raydp/privacy" not in path.parents:
            assert not any("accountant" in name and not name.startswith("raydp") for name in imports(path)), path


@pytest.mark.parametrize(("package", "flow"), [("raydp", FLOW), ("analysis", ANALYSIS)])
def test_rooms_import_downward(package: str, flow: list[str]) -> None:
    for path in files(package):
        room = path.relative_to(ROOT / package).parts[0].removesuffix(".py")
        if room not in flow:
            continue
        for name in imports(path):
            other = name.split(".")[1] if name.startswith(f"{package}.") else None
            if other in flow and other != room:
                assert flow.index(other) < flow.index(room), f"{path}: {name}"
