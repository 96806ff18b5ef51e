"""The search for garbage: off during imports, on afterwards, and without an effect on a user's objects."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydp.io import imports
from raydp.io.imports import imported, own_process
from raydp.plugins.registries import resolve


class Node:
    """An object that refers to itself, so that only a search for garbage frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that nobody has imported. It records whether the search was on."""
    (tmp_path / "some_library.py").write_text("import gc\nwas_on = gc.isenabled()\nimport some_part\n")
    (tmp_path / "some_part.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "some_library"
    sys.modules.pop("some_library", None)
    sys.modules.pop("some_part", None)
    gc.unfreeze()


def test_it_is_off_during_an_import_and_on_after_it(library: str) -> None:
    assert imported(library).was_on is False
    assert gc.isenabled()
    with pytest.raises(ModuleNotFoundError):
        imported("no_such_library")
    assert gc.isenabled()


def test_where_it_is_off_already_it_stays_off(library: str) -> None:
    gc.disable()
    try:
        imported(library)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_a_user_has_made_is_still_freed(library: str) -> None:
    kept = Node()
    made = weakref.ref(kept)
    imported(library)
    del kept
    gc.collect()
    assert made() is None


@pytest.mark.parametrize("in_a_command", [True, False], ids=["in a command", "first in a worker"])
def test_in_a_process_of_our_own_libraries_are_not_searched_again(
    library: str, monkeypatch: pytest.MonkeyPatch, in_a_command: bool
) -> None:
    monkeypatch.setattr(imports, "_owned", in_a_command)
    before = gc.get_freeze_count()
    imported(library, first=not in_a_command)
    assert gc.get_freeze_count() > before


def test_a_later_import_freezes_nothing(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker resolves names in every run, when the tensors of the run before may wait to be freed."""
    imported(library, first=True)
    resolve("accountants", "rdp")
    monkeypatch.setattr(imports, "_owned", True)
    kept = Node()
    made = weakref.ref(kept)
    imported(library)
    resolve("accountants", "rdp")
    del kept
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


def test_it_freezes_after_an_interruption_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "_owned", False)
    before = gc.get_freeze_count()
    try:
        with pytest.raises(KeyboardInterrupt), own_process():
            raise KeyboardInterrupt
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
