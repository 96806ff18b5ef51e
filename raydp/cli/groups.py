"""Groups of commands. A command's module is imported when the command runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from raydp.cli.arguments import options_of_every_command
from raydp.cli.errors import explain
from raydp.cli.interrupts import interruptible
from raydp.cli.registration import commands_of
from raydp.plugins.registries import resolve
from raydp.system.output import begin_phase, end_phase, stderr

if TYPE_CHECKING:
    from typer._click import Command, Context, Parameter  # as TyperGroup's methods take them

    from raydp.system.waiting import Phase


class HelpCommand(TyperCommand):
    """The line of a command in the help. The command itself is imported when it runs."""


class CommandGroup(TyperGroup):
    """Group of commands that prints its help and exits with 0 if no command is given.

    Each command has the options of every command, and names the field of a path that fails. The
    commands that are registered for the group stand beside its own.
    """

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        for command in self.commands.values():
            _complete(command)
        # Only the outermost group has no name.
        order = list(self.commands)
        for name, line in commands_of(self.name or None).items():
            self.commands[name] = HelpCommand(
                name, help=line["help"], rich_help_panel=line["panel"] if not self.name else None
            )
            before = line["before"]
            order.insert(order.index(before) if before in order else len(order), name)
        self.commands = {name: self.commands[name] for name in order}

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """Find the command that the arguments name, and import it."""
        name, command, others = super().resolve_command(ctx, args)
        if name is not None and isinstance(command, HelpCommand):
            command = self.commands[name] = _imported(name, command.rich_help_panel)
        return name, command, others

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Replace missing arguments by --help."""
        return super().parse_args(ctx, args or ["--help"])


def _imported(name: str, panel: str | None) -> Command:
    """Import a registered command."""
    run = resolve("commands", name).run
    app = typer.Typer()
    if isinstance(run, typer.Typer):
        app.add_typer(run, name=name, rich_help_panel=panel)
    else:
        app.command(name, rich_help_panel=panel)(run)
    command = typer.main.get_group(app).commands[name]
    _complete(command)
    return command


def _complete(command: Command) -> None:
    """Give a command the options of every command, and errors that name a path's field."""
    command.params.extend(options_of_every_command())
    # Typer keeps the line breaks of a docstring in the table of commands.
    first, *others = (command.help or "").split("\n\n")
    command.help = "\n\n".join([" ".join(first.split()), *others])
    if not isinstance(command, TyperGroup):
        command.callback = _naming_fields(command)


class InterruptibleGroup(CommandGroup):
    """Group of commands for which Ctrl-C prints one line and exits with code 1."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        # The outermost group is no command of another one.
        self.params.extend(options_of_every_command())

    def invoke(self, ctx: Context) -> object:
        """Run the command, handle Ctrl-C and SIGTERM, and tell a pipe of every wait."""
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
