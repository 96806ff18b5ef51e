"""Faults planted into the code that the self-test checks: its source with one line changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


def rewrite(patch: pytest.MonkeyPatch, owner: Any, name: str, *changes: tuple[str, str]) -> None:
    """Replace a function of a module or class by itself with lines changed; each must be there exactly once."""
    function: Callable[..., Any] = getattr(owner, name)
    source = inspect.cleandoc("\n" + inspect.getsource(function))
    for old, new in changes:
        assert source.count(old) == 1, f"{name} no longer says {old!r}"
        source = source.replace(old, new)
    scope = dict(function.__globals__)
    exec(compile("from __future__ import annotations\n" + source, f"<faulty {name}>", "exec"), scope)
    target = owner if isinstance(owner, ModuleType | type) else type(owner)
    patch.setattr(target, name, scope[name])
