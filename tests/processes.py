"""Processes of tests, forked from a server that has imported what they need: a fresh start takes
seconds each time."""

from __future__ import annotations

import multiprocessing
from importlib.util import find_spec
from multiprocessing.context import ForkServerContext

import psutil

PRELOADED = ["tests.builders.toys"]


def forked() -> ForkServerContext:
    """Return the context whose processes start with `PRELOADED` imported.

    Its server has no threads.
    """
    assert all(find_spec(name) for name in PRELOADED), (
        "the server skips silently what it does not find"
    )
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def below(pid: int, name: str) -> list[psutil.Process]:
    """Return the processes below a process whose command lines contain a name.

    A process that ends meanwhile is not among them: the command line of a zombie cannot be read.
    """
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if name in " ".join(process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found
