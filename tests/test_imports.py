"""The search for garbage: off during imports, on afterwards, and without an effect on a user's
objects.

A command's process ends as any other, but takes no object apart.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydp.plugins.registries import resolve
from raydp.system import imports
from raydp.system.imports import imported


class Node:
    """An object that refers to itself, so that only a search for garbage frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that nobody has imported. It records whether the search was on."""
    (tmp_path / "some_library.py").write_text(
        "import gc\nwas_on = gc.isenabled()\nimport some_part\n"
    )
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


@pytest.mark.slow
def test_objects_of_the_user_are_still_freed(library: str) -> None:
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
    """A worker resolves names in every run, when the tensors of the run before may wait to be
    freed."""
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


@pytest.mark.parametrize(
    ("arguments", "code"), [("--version", 0), ("plan no.yaml", 2), ("calibrate", 2)]
)
def test_a_command_ends_with_its_code_and_takes_no_object_apart(arguments: str, code: int) -> None:
    """Threads that are no daemons and exit functions run to their end, as at the end of any
    process."""
    program = f"""
import atexit, sys, threading
class Kept:
    def __del__(self): print("taken apart", flush=True)
kept = Kept()
atexit.register(lambda: print("exit function"))
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
sys.argv[1:] = {arguments.split()}
from raydp.cli.main import command
command()
"""
    end = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert end.returncode == code, end.stderr
    assert end.stdout.split("\n")[-3:] == ["thread", "exit function", ""]


def test_help_imports_the_module_of_no_command() -> None:
    program = """
import sys
from raydp.cli.main import main
sys.argv[1:] = ["--help"]
try:
    main()
except SystemExit:
    print(*(name for name in sys.modules if ".commands." in name or name.endswith(".command")))
"""
    end = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "Read a sweep" in end.stdout
    assert end.stdout.splitlines()[-1] == ""


@pytest.mark.parametrize(
    "command",
    [
        *("list --help", "points --help", "select --help", "status --help"),
        "models find --uri sqlite:///of_nobody.db",
    ],
)
def test_help_and_the_refusal_of_a_missing_store_import_no_large_library(command: str) -> None:
    program = f"""
import sys
from raydp.cli.main import main
sys.argv[1:] = {command.split()}
try:
    main()
except SystemExit:
    print(any(library in sys.modules for library in ("pandas", "mlflow", "torch")))
"""
    end = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert end.stdout.splitlines()[-1] == "False"


def test_a_command_ends_where_its_output_is_closed() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as closed:
        code = "from raydp.system.imports import own_process\nwith own_process(): print('lost')"
        end = subprocess.run(
            [sys.executable, "-E", "-c", code], stdout=closed, stderr=subprocess.PIPE, check=False
        )
    assert (end.returncode, b"BrokenPipeError" in end.stderr) == (120, True)
