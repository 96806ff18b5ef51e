"""The reference of the command line, made of its own help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from raydp.cli.main import app
from site_pages.prose import escaped, paragraphs, table

NAME = "raydp"


def pages() -> dict[str, str]:
    """Return the page on the commands: page of the site -> its Markdown."""
    top: Any = typer.main.get_command(app)
    panels: dict[str, list[str]] = {}
    for name, command in _commands(top, top.context_class(top, info_name=NAME)):
        panels.setdefault(command.rich_help_panel or "Other", []).extend(
            _command(command, [NAME, name])
        )
    text = [
        "# Every command",
        "This page is made of the help of the commands: `raydp COMMAND --help` prints the same. "
        "[Commands](../commands.md) has them by example. Every command exits with 0 on success, "
        "with 2 on bad input, and with 1 on failure.",
    ]
    for panel, commands in panels.items():
        text += [f"## {panel}", *commands]
    return {"reference/commands.md": "\n\n".join(text) + "\n"}


def _command(command: Any, path: list[str]) -> Iterator[str]:
    """One command, or a group and after it the commands in it."""
    context = command.context_class(command, info_name=" ".join(path))
    if not hasattr(command, "commands"):
        yield f"### {' '.join(path)}"
        yield paragraphs(command.help or "")
        yield f"```text\n{' '.join([*path, *command.collect_usage_pieces(context)])}\n```"
        rows = [
            _row(parameter, context)
            for parameter in command.get_params(context)
            if not parameter.hidden
        ]
        yield table(["argument or option", "meaning"], rows)
        return
    for name, inner in _commands(command, context):
        yield from _command(inner, [*path, name])


def _commands(group: Any, context: Any) -> Iterator[tuple[str, Any]]:
    """The commands of a group by name, imported."""
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        if not command.hidden:
            yield name, command


def _row(parameter: Any, context: Any) -> list[str]:
    written, meaning = parameter.get_help_record(context)
    return [f"`{' '.join(written.split())}`".replace("|", "\\|"), escaped(meaning)]
