"""Error messages and exit codes of failed commands.

A failed command prints one message on stderr, not a traceback.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from raydp.cli.arguments import options_of_every_command
from raydp.cli.interrupts import interruptible

if TYPE_CHECKING:
    from typer._click import Command, Context, Parameter  # as TyperGroup's methods take them

    from raydp.io.waiting import Phase

_PATHS: dict[type[OSError], tuple[str, str]] = {
    FileNotFoundError: ("exist", "Create its folder, or correct the path"),
    NotADirectoryError: (
        "lead through folders only",
        "Give a path in which no part before the last is a file",
    ),
    IsADirectoryError: ("be a file", "Give a file's path, not a folder's"),
    PermissionError: (
        "be accessible to you",
        "Change its permissions (`ls -l` shows them), or choose another path",
    ),
    FileExistsError: ("be free or a folder", "Move away what is there, or choose another path"),
}
"""User mistakes about a path: what the path must be, and the remedy."""

NO_MEMORY = (
    "memory must suffice for the command, got an allocation that failed. End other programs, or "
    "raise the limit of this process (`ulimit -v`, a container's or a job's limit). A sweep goes "
    "on with --resume."
)


def explain(error: ValueError | OSError, field: str = "path") -> tuple[str, int]:
    """Return the message and the exit code: 2 for mistakes that the user can correct, else 1.

    Args:
        error: the error.
        field: the option, the argument or the field of the spec that holds the path.
    """
    # ValueErrors already hold their rule and remedy.
    if isinstance(error, ValueError):
        return str(error), 2
    for kind, (rule, remedy) in _PATHS.items():
        if isinstance(error, kind):
            got = repr(str(error.filename)) if error.filename is not None else str(error)
            reason = f" ({error.strerror})" if error.filename is not None and error.strerror else ""
            return f"{field} must {rule}, got {got}{reason}. {remedy}.", 2
    # The file name is cut: it is too long for a message, too.
    if error.errno == errno.ENAMETOOLONG:
        return (
            f"{field} must be short enough for the file system, got "
            f"{str(error.filename)[:100]!r}.... Shorten it.",
            2,
        )
    return str(error) or type(error).__name__, 1


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an allocation failed here: in Python, torch, a thread or a library."""
    # Libraries report a failed allocation by text alone.
    texts = (
        "can't allocate memory",
        "can't start new thread",
        "failed to map segment",
        "Cannot allocate memory",
    )
    return isinstance(error, MemoryError) or any(text in str(error) for text in texts)


def complain(message: str) -> None:
    """Print a message on stderr as an error, also if the command is quiet."""
    from raydp.io.output import stderr

    stderr.quiet = False
    stderr.print(f"error: {message}", style="red", markup=False)


def _naming_fields(command: Command) -> Callable[..., object]:
    """Return the command's function with the field named in errors about a path."""
    function = command.callback
    assert function is not None, "a command that is no group has a function"

    @wraps(function)
    def named(**given: object) -> object:
        # Only an OSError needs the field: a path can be in any option or in the spec.
        try:
            return function(**given)
        except OSError as error:
            from raydp.sweep.planning.path_fields import field_of

            names = {str(param.name): _written(param) for param in command.params}
            field = (
                None
                if error.filename is None
                else field_of(os.fsdecode(error.filename), given, names)
            )
            message, code = explain(error, field or "path")
            # A path that nobody named, or a failure of the machine, is reported as it is.
            if field is None or code == 1:
                raise
            raise ValueError(message) from error

    return named


def _written(param: Parameter) -> str:
    """Return a parameter's name as users write it."""
    return (
        param.opts[-1]
        if param.param_type_name == "option"
        else str(param.metavar or param.name).upper()
    )


class CommandGroup(TyperGroup):
    """Group of commands that prints its help and exits with 0 if no command is given.

    Each command has the options of every command, and names the field of a path that fails.
    """

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        for command in self.commands.values():
            command.params.extend(options_of_every_command())
            # Typer keeps the line breaks of a docstring in the table of commands.
            first, *others = (command.help or "").split("\n\n")
            command.help = "\n\n".join([" ".join(first.split()), *others])
            if not isinstance(command, TyperGroup):
                command.callback = _naming_fields(command)

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Replace missing arguments by --help."""
        return super().parse_args(ctx, args or ["--help"])


class InterruptibleGroup(CommandGroup):
    """Group of commands for which Ctrl-C prints one line and exits with code 1."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        # The outermost group is no command of another one.
        self.params.extend(options_of_every_command())

    def invoke(self, ctx: Context) -> object:
        """Run the command, and handle Ctrl-C and SIGTERM.

        A pipe is told of every wait, named or not.
        """
        from raydp.io.output import begin_phase, end_phase, stderr

        begun: list[Phase] = []  # empty if the thread of the waits asks for the text at once

        # The name of the wait, for a pipe that sees no status line.
        def text() -> str:
            return (
                "working" if begun and begun[0].since > begun[0].began else "loading the libraries"
            )

        begun.append(begin_phase(stderr, text, between=True))
        try:
            with interruptible():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            # Exit code 1, not Python's traceback: an interrupted command is unfinished.
            stderr.print("interrupted")
            raise typer.Exit(1) from None
        finally:
            end_phase(begun[0])
