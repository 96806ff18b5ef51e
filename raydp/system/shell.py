"""Commands in messages, quoted so that a shell runs what is printed."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def shell_line(*words: object) -> str:
    """Return words as one line for a shell; a name with spaces, quotes or `$(...)` is one word."""
    return shlex.join(str(word) for word in words)


def command_line(*words: object) -> str:
    """Return a command of raydp that can be pasted into a shell here."""
    return f"{program('raydp')} {shell_line(*words)}"


def program(name: str) -> str:
    """Return the shell command of a program of this environment: its name, or else its path.

    The name counts only if the shell finds this very program.
    """
    own = shutil.which(name, path=str(Path(sys.executable).parent))
    if own is None:
        # Installed without scripts: the module can still be run.
        return f"{_from_here(Path(sys.executable))}{' -m raydp' if name == 'raydp' else ''}"
    in_shell = shutil.which(name)
    on_path = in_shell is not None and Path(in_shell).absolute() == Path(own).absolute()
    return name if on_path else _from_here(Path(own))


def _from_here(path: Path) -> str:
    """Quote a path for the shell, relative if it is inside the current folder."""
    path, here = path.absolute(), Path.cwd()
    return shell_line(path.relative_to(here) if path.is_relative_to(here) else path)
