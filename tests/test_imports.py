"""The search for garbage: off during imports, on afterwards, and without an effect on a user's objects."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from raydp.io import imports
from raydp.io.imports import imported, own_process, without_collection
from raydp.plugins.registries import resolve


class Node:
    """An object that refers to itself, so that only a search for garbage frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def owned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process as one of our own, until the end of the test."""
    monkeypatch.setattr(imports, "_owned", True)
    yield
    gc.unfreeze()


def test_it_is_off_in_the_block_and_on_after_it_also_after_an_error() -> None:
    with without_collection():
        with without_collection():
            pass
        assert not gc.isenabled(), "the inner block ends, the outer one does not"
    assert gc.isenabled()
    with pytest.raises(ModuleNotFoundError):
        imported("no_such_module")
    assert gc.isenabled()


def test_what_a_user_has_made_is_still_freed() -> None:
    made = weakref.ref(Node())
    with without_collection():
        pass
    gc.collect()
    assert made() is None


@pytest.mark.usefixtures("owned")
def test_in_a_process_of_our_own_libraries_are_not_searched_again() -> None:
    frozen = gc.get_freeze_count()
    with without_collection():
        kept = [Node() for _ in range(1000)]
    assert gc.get_freeze_count() >= frozen + len(kept)


@pytest.mark.usefixtures("owned")
def test_a_second_import_freezes_nothing() -> None:
    """A worker resolves names in every run, when the tensors of the run before may wait to be freed."""
    resolve("accountants", "rdp")
    made = weakref.ref(Node())
    resolve("accountants", "rdp")
    gc.collect()
    assert made() is None


def test_a_command_is_a_process_of_our_own_and_ends_as_it_did() -> None:
    code = "import atexit, gc, sys; atexit.register(lambda: print(gc.get_freeze_count() > 10_000)); sys.argv[1:] = {}; "
    code += "from raydp.cli.main import command; command()"
    ends = [
        subprocess.run(
            [sys.executable, "-c", code.format(arguments)], capture_output=True, text=True, timeout=60, check=False
        )
        for arguments in (["--version"], ["plan", "no.yaml"])
    ]
    assert [end.returncode for end in ends] == [0, 2]
    assert all(end.stdout.splitlines()[-1] == "True" for end in ends), "frozen before Python searches for the last time"


def test_own_process_freezes_after_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "_owned", False)
    before = gc.get_freeze_count()
    try:
        with pytest.raises(KeyboardInterrupt), own_process():
            raise KeyboardInterrupt
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
