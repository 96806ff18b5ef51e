"""Measure the size of the code: `python tools/size.py`. With --check, fail where a limit is passed.

The core is raydp/ without raydp/extensions and without raydp/testing, the suites of plug-ins, which
nothing imports. The product is the core, the extensions, and the packages analysis and
search_spaces.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRODUCT = ("raydp", "analysis", "search_spaces")
APART = ("extensions", "testing")
LONG_LINE, LONG_FUNCTION = 100, 60
LIMITS = {
    "lines of the core": 41_700,
    "lines of the core with analysis and search_spaces": 52_700,
    "lines of the core, its two packages and the extensions": 92_450,
    "folders of the core": 13,
    "modules at the top of raydp": 4,
    "modules of the largest folder": 18,
    "deepest chain of imports in the core": 14,
    "imports inside functions of the core": 71,
    "functions over 60 lines": 4,
    "uses of Any": 183,
    "lines over 100 columns, %": 1.0,
    "lines over 100 columns in tests, %": 1.0,
    "lines of raydp/testing": 1_320,
}
"""The largest value of each figure. A limit falls with what is removed, and rises only for a new feature."""
FEWEST = {"full-line comments per 100 lines of code": 5.0}
"""The smallest value of each figure. It may only rise."""


@dataclass(frozen=True)
class Module:
    """A module of the product: its dotted name, its text and its syntax tree."""

    name: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> list[str]:
        """Return the lines of the text."""
        return self.text.splitlines()


def modules_of(folder: str) -> list[Module]:
    """Return the modules of a folder. What a link leads to is not in it."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        if any(parent.is_symlink() for parent in path.relative_to(ROOT).parents):
            continue
        parts = path.relative_to(ROOT).with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        name = ".".join(parts if parts[0] in ("raydp", "tests") else ("raydp", *parts))
        found.append(Module(name.removesuffix(".__init__"), text, ast.parse(text)))
    return found


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield what a module imports when it is imported itself."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def deepest_chain(modules: list[Module]) -> list[str]:
    """Return the longest chain of modules in which each imports the next at its top."""
    known = {module.name: module for module in modules}

    @cache
    def longest(name: str) -> tuple[str, ...]:
        others = (set(imported(known[name].tree)) & set(known)) - {name}
        others = {o for o in others if not name.startswith(f"{o}.")}  # the packages that it is in
        return (name, *max((longest(other) for other in sorted(others)), key=len, default=()))

    return list(max((longest(name) for name in known), key=len))


def lazy_imports(module: Module) -> int:
    """Count the import statements inside functions."""
    functions = [n for n in ast.walk(module.tree) if isinstance(n, ast.FunctionDef | ast.Lambda)]
    inside = {
        n for f in functions for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom)
    }
    return len(inside)


def comments_and_code(module: Module) -> tuple[int, int]:
    """Count the lines that hold a comment alone, and the lines of code without docstrings."""
    comments, code = set[int](), set[int]()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        rows = range(token.start[0], token.end[0] + 1)
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.string.strip():
            code |= set(rows)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(comments - code), len(code)


def long_functions(module: Module) -> list[str]:
    """Name the functions of more than 60 lines, docstrings included."""
    functions = (n for n in ast.walk(module.tree) if isinstance(n, ast.FunctionDef))
    return [
        f"{module.name}:{f.name}"
        for f in functions
        if (f.end_lineno or f.lineno) - f.lineno >= LONG_FUNCTION
    ]


def largest_folder() -> int:
    """Return the largest number of modules that stand in one folder of the product."""
    paths = (path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))
    return max(Counter(path.parent for path in paths).values())


def wide(modules: list[Module]) -> float:
    """Return the share of lines over 100 columns, in per cent."""
    lines = [line for module in modules for line in module.lines]
    return 100 * sum(len(line) > LONG_LINE for line in lines) / len(lines)


def figures() -> dict[str, float]:
    """Return the figures by name."""
    raydp, others = modules_of("raydp"), [m for f in PRODUCT[1:] for m in modules_of(f)]
    apart = {part: [m for m in raydp if m.name.startswith(f"raydp.{part}")] for part in APART}
    core = [module for module in raydp if not any(module in part for part in apart.values())]
    product = [*(module for module in raydp if module not in apart["testing"]), *others]
    inside, size = [*core, *others], sum(len(module.lines) for module in core)
    comments, code = (sum(column) for column in zip(*map(comments_and_code, inside), strict=True))
    folders = {module.name.split(".")[1] for module in core if module.name.count(".") > 1}
    names = (node for module in product for node in ast.walk(module.tree))
    return {
        "lines of the core": size,
        "lines of the core with analysis and search_spaces": sum(len(m.lines) for m in inside),
        "lines of the core, its two packages and the extensions": sum(
            len(module.lines) for module in product
        ),
        "lines of raydp/testing": sum(len(m.lines) for m in apart["testing"]),
        "folders of the core": len(folders),
        "modules at the top of raydp": len(list((ROOT / "raydp").glob("*.py"))),
        "modules of the largest folder": largest_folder(),
        "deepest chain of imports in the core": len(deepest_chain(inside)),
        "imports inside functions of the core": sum(map(lazy_imports, inside)),
        "functions over 60 lines": sum(len(long_functions(module)) for module in product),
        "uses of Any": sum(isinstance(node, ast.Name) and node.id == "Any" for node in names),
        "lines over 100 columns, %": wide(product),
        "lines over 100 columns in tests, %": wide(modules_of("tests")),
        "full-line comments per 100 lines of code": 100 * comments / code,
    }


def main() -> None:
    """Print the figures beside their limits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="fail where a limit is passed")
    parser.add_argument("--long", action="store_true", help="name the chain and the long functions")
    asked = parser.parse_args()
    if asked.long:
        modules = [module for folder in PRODUCT for module in modules_of(folder)]
        print(*deepest_chain(modules), sep="\n")
        print(*(name for module in modules for name in long_functions(module)), sep="\n")
        return
    passed = []
    for name, value in figures().items():
        limit = LIMITS.get(name, FEWEST.get(name, 0.0))
        bad = value < limit if name in FEWEST else value > limit
        passed += [name] if bad else []
        print(f"{name:50} {value:>9.6g}   {'at least' if name in FEWEST else 'at most'} {limit:g}")
    if asked.check and passed:
        sys.exit(
            f"size must keep to its limits, which these pass: {', '.join(passed)}. Remove some."
        )


if __name__ == "__main__":
    main()
