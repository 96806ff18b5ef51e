"""Which cases of a parametrised test are `slow`: `make test` runs the others, CI runs all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from importlib.util import find_spec
from typing import Any

import pytest

WHOLE = find_spec("raydp.extensions") is not None
"""Whether the extensions are there. `tests/test_without_extensions.py` runs the tests without them."""


def slow_after(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases, all but the first ones marked `slow`."""
    return [case if at < count else _slow(case) for at, case in enumerate(cases)]


def slow_unless(quick: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return the cases, all but those in `quick` marked `slow`."""
    found = list(cases)
    assert not WHOLE or set(quick) <= set(found), "a quick case is none of the cases"
    return [case if case in quick else _slow(case) for case in found]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
