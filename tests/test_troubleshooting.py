"""Every message that docs/troubleshooting.md quotes is in the source, so that a search for a
message finds it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
FOLDERS = ("raydp", "analysis", "search_spaces")
VALUE = "\0"
"""Stands for a value that a message is given, in the source's texts."""
MOST_CHARACTERS = 200
"""What stands between two quoted parts of a message, values included."""


def quoted() -> list[str]:
    """Return the messages in the first columns of the page's tables."""
    rows = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    codes = [
        re.findall(r"(?<!`)(`{1,2})(?!`)(.+?)(?<!`)\1(?!`)", row.split(" | ")[0]) for row in rows
    ]
    return [message.strip() for code in codes for _, message in code]


def texts_of(path: Path) -> Iterator[str]:
    """Yield the texts of a module.

    Texts that follow each other are one, and each value in them is `VALUE`.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """The texts of the package, docstrings too: a docstring that repeats a message is none of the
    messages."""
    return [
        text
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for text in texts_of(path)
    ]


def pattern(message: str) -> re.Pattern[str]:
    """Return what a text must begin with: `...` stands for anything with a value in it."""
    parts = [re.escape(part.strip()) for part in message.removeprefix("warning: ").split("...")]
    return re.compile(f"(?:warning: )?{f'.{{0,{MOST_CHARACTERS}}}?'.join(parts)}", re.DOTALL)


def test_the_page_quotes_messages() -> None:
    assert len(quoted()) >= 80
    assert len(set(quoted())) == len(quoted()), "a message is quoted twice"


@pytest.mark.parametrize("message", quoted())
def test_a_quoted_message_is_in_the_source(message: str, texts: list[str]) -> None:
    assert any(pattern(message).match(text) for text in texts), "correct docs/troubleshooting.md"
