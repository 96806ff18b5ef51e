"""The code blocks of README.md and the pages fit the code: specs load, commands and options exist, calls fit functions.

docs/extending.md's blocks are run by test_extending.py, and the notebooks by test_tutorials.py and test_notebook.py. A
block after the comment `<!-- excerpt -->` is left out.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from raydp.cli.main import app
from raydp.spec.reading import DEMO, load_spec

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("deploy/**/*.md"))]
BLOCK = re.compile(r"^(<!-- excerpt -->\n+)?```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = ("sh", "bash")
FORMS = {"yaml", "json", "python", "ini", "", *SHELL}
SECTIONS = ("task", "model", "method", "privacy", "space", "seeds", "scores", "select", "evaluate_every", "cluster",
            "tracking", "stopping", "name", "storage")  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    form: str
    text: str
    excerpt: bool


def blocks(*forms: str) -> list[Any]:
    found = []
    for page in PAGES:
        text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
        for match in BLOCK.finditer(text):
            block = Block(name, match[2], match[3], match[1] is not None)
            if block.form in forms and not block.excerpt:
                line = text.count("\n", 0, match.start()) + 1
                found.append(pytest.param(block, id=f"{name}:{line}"))
    return found


def test_every_block_has_a_form_that_is_checked() -> None:
    assert {match[2] for page in PAGES for match in BLOCK.finditer(page.read_text(encoding="utf-8"))} <= FORMS


@pytest.mark.parametrize("block", blocks("yaml"))
def test_a_spec_loads(block: Block) -> None:
    """A part of a spec replaces these sections of the demo's."""
    given = yaml.safe_load(block.text)
    assert set(given) <= set(SECTIONS)
    whole = {"name", "task", "model", "method", "privacy", "space", "scores", "select"} <= set(given)
    demo = yaml.safe_load(DEMO.read_text(encoding="utf-8"))
    if "scores" in given:
        demo["select"]["score"] = given["scores"][0]["name"]
    load_spec(given if whole else {**demo, **given})


@pytest.mark.parametrize("block", blocks("json"))
def test_json_is_json(block: Block) -> None:
    for line in block.text.splitlines() if block.text.count("\n{") else [block.text]:
        json.loads(line)


def commands_in(text: str) -> list[list[str]]:
    """The words after `raydp` of each command in the lines of a shell, which may go on after a backslash."""
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    parts = [shlex.split(line, comments=True) for line in lines if re.search(r"(^|[ /])raydp ", line)]
    own = [words for words in parts if words and (words[0] == "raydp" or "--" in words)]
    return [words[words.index("raydp") + 1 :] for words in own if "raydp" in words]


@pytest.mark.parametrize("block", blocks(*SHELL))
def test_commands_and_options_exist(block: Block) -> None:
    for words in commands_in(block.text):
        command: Any = typer.main.get_command(app)
        context = command.context_class(command, info_name="raydp")
        left = list(words)
        while hasattr(command, "commands"):
            if left and left[0] not in command.commands and left[0].startswith("-"):
                break  # an option of raydp itself, such as --version
            named = left and left[0] in command.commands
            assert named or command.name == "audit", f"raydp {' '.join(words)}: no such command"
            name = left.pop(0) if named else "run"
            command = command.commands[name]
            context = command.context_class(command, info_name=name, parent=context)
        command.make_parser(context).parse_args(left)


@pytest.mark.parametrize("block", [b for b in blocks("python") if "extending.md" not in b.id])
def test_python_fits_the_package(block: Block) -> None:
    """Imports resolve, attributes of raydp exist, and the arguments of calls fit their functions."""
    tree = ast.parse(block.text)
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: importlib.import_module(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            names |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            getattr(names[node.value.id], node.attr)
        if isinstance(node, ast.Call):
            function = _resolved(node.func, names)
            if inspect.isfunction(function) or inspect.isclass(function):
                inspect.signature(function).bind(*node.args, **{word.arg: word for word in node.keywords if word.arg})


def _resolved(node: ast.expr, names: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_resolved(node.value, names), node.attr, None)
    return None
