"""Commands that extensions and other packages add to `raydp`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import typer

from raydp.plugins.registries import names, resolve

RUN, READ, MODELS, PRIVACY, DATA = "Run a sweep", "Read a sweep", "Models", "Privacy", "Data"
"""The sections of `raydp --help`."""
LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ExtraCommand:
    """A command of an extension. An entry point of the group `raydp.commands` names it.

    The entry's name is the command's name. Its module is imported by every `raydp`, so it imports
    what it needs inside its functions:

        COMMAND = ExtraCommand(run=mia, panel=PRIVACY)

    Attributes:
        run: a function as typer takes it, or a group of commands.
        panel: the section of `raydp --help`.
        group: name of the core's group that the command joins, "models"; None for `raydp NAME`.
        before: name of a command that follows it in the help; None for the end.
    """

    run: Callable[..., None] | typer.Typer
    panel: str
    group: str | None = None
    before: str | None = None


def extra_commands() -> Iterator[tuple[str, ExtraCommand]]:
    """Yield the added commands with their names. A command that cannot be imported is left out."""
    for name in names("commands"):
        try:
            yield name, resolve("commands", name)
        except (ImportError, AttributeError) as error:
            LOGGER.warning("the command %s is left out, because it is broken: %s", name, error)
