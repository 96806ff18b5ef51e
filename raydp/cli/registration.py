"""The commands of `raydp`: those of the core, of extensions and of other packages."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict, cast

import typer

from raydp.plugins.registries import BUILTIN, description, names, resolve

RUN, READ, MODELS, PRIVACY, DATA = "Run a sweep", "Read a sweep", "Models", "Privacy", "Data"
"""The sections of `raydp --help`."""
LOGGER = logging.getLogger(__name__)


class HelpLine(TypedDict):
    """What the help of a group tells of a command, and the command's place."""

    panel: str
    group: str | None
    before: str | None
    help: str


@dataclass(frozen=True, kw_only=True)
class ExtraCommand:
    """A command. An entry point of the group `raydp.commands` names it, or the core's registry.

    The entry's name is the command's name:

        COMMAND = ExtraCommand(run=mia, panel=PRIVACY)

    `python -m raydp.plugins.parameters PACKAGE` writes the command's line of help into a file, so
    that the module is imported only when the command runs. Without the file every `raydp` imports
    the module, which then imports what takes time inside its functions.

    Attributes:
        run: a function as typer takes it, or a group of commands.
        panel: the section of `raydp --help`.
        group: name of the group that the command joins, such as "models"; None for `raydp NAME`.
        before: name of a command that follows it in the help; None for the end.
    """

    run: Callable[..., None] | typer.Typer
    panel: str
    group: str | None = None
    before: str | None = None

    def described(self) -> HelpLine:
        """Return the first paragraph of the help, as one line, with the command's place."""
        run = self.run
        text = run.info.help if isinstance(run, typer.Typer) else inspect.getdoc(run)
        first = " ".join((text or "").partition("\n\n")[0].split())
        return {"panel": self.panel, "group": self.group, "before": self.before, "help": first}


def commands_of(group: str | None) -> dict[str, HelpLine]:
    """Return the commands of a group, or of `raydp` itself, that can be imported, by name."""
    lines = dict[str, HelpLine]()
    for name in dict.fromkeys([*BUILTIN["commands"], *names("commands")]):
        try:
            line = description("commands", name) or resolve("commands", name).described()
        except (ImportError, AttributeError) as error:
            LOGGER.warning("the command %s is left out, because it is broken: %s", name, error)
            continue
        if line["group"] == group:
            lines[name] = cast("HelpLine", line)
    return lines
