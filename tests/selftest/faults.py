"""Faults planted into the code that the self-test checks: its source with one line changed."""

from __future__ import annotations

import inspect
import io
import tokenize
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

SPACE = {
    tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def rewrite(patch: pytest.MonkeyPatch, owner: Any, name: str, *changes: tuple[str, str]) -> None:
    """Replace a function of a module or class by itself with pieces of code changed.

    Each piece must be there exactly once. Line breaks and trailing commas do not count.
    """
    function: Callable[..., Any] = getattr(owner, name)
    source = inspect.cleandoc("\n" + inspect.getsource(function))
    for old, new in changes:
        found = places(source, old)
        assert len(found) == 1, f"{name} no longer says {old!r}"
        source = source[: found[0][0]] + new + source[found[0][1] :]
    scope = dict(function.__globals__)
    exec(
        compile("from __future__ import annotations\n" + source, f"<faulty {name}>", "exec"), scope
    )
    target = owner if isinstance(owner, ModuleType | type) else type(owner)
    patch.setattr(target, name, scope[name])


def places(source: str, piece: str) -> list[tuple[int, int]]:
    """Return where a piece of code stands: its first character, and the one after its last."""
    if (exact := source.count(piece)) == 1:
        start = source.index(piece)
        return [(start, start + len(piece))]
    if exact:
        return [(0, 0)] * exact
    searched, tokens = _tokens(source), [text for text, _, _ in _tokens(piece)]
    texts = [text for text, _, _ in searched]
    at = [i for i in range(len(texts)) if texts[i : i + len(tokens)] == tokens]
    return [(searched[i][1], searched[i + len(tokens) - 1][2]) for i in at]


def _tokens(code: str) -> list[tuple[str, int, int]]:
    """Return the tokens with their positions, without spaces, comments and trailing commas."""
    starts = [0]
    for line in code.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[tuple[str, int, int]] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type in SPACE or token.type == tokenize.COMMENT:
                continue
            if found and found[-1][0] == "," and token.string in tuple(")]}"):
                found.pop()
            first, last = ((starts[row - 1] + column) for row, column in (token.start, token.end))
            found.append((token.string, first, last))
    except (tokenize.TokenError, IndentationError):  # a piece need not be whole
        pass
    return found


def claiming(monkeypatch: pytest.MonkeyPatch, owner: type, **more: Any) -> None:
    """Let the method's event claim more noise, or fewer steps, than there are."""
    honest = owner.event

    def event(self: Any, plan: Any, noise_multiplier: float) -> Any:
        said = honest(self, plan, noise_multiplier)
        return replace(said, **{name: change(getattr(said, name)) for name, change in more.items()})

    monkeypatch.setattr(owner, "event", event)
