"""The `raydp` command: make the app, run it, and read its errors."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from io import TextIOWrapper
from typing import Annotated

import typer

from raydp.analysis.tables.old_names import warn_of_old_name
from raydp.cli.arguments import OLD_OPTION
from raydp.cli.errors import NO_MEMORY, complain, explain, is_out_of_memory
from raydp.cli.groups import InterruptibleGroup
from raydp.system.console_log import shown_records
from raydp.system.imports import own_process
from raydp.version import __version__

app = typer.Typer(
    cls=InterruptibleGroup,
    help="Sweeps under one differential-privacy guarantee, scored for what the models leak.",
    pretty_exceptions_enable=False,
)
NAMESAKE = "raydp"
"""Another project's distribution, which has the same import name."""


def _version(asked: bool) -> None:
    """Print the version of the installed distribution and exit, if requested."""
    if asked:
        typer.echo(f"raydp {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Sweeps under one differential-privacy guarantee, scored for what the models leak."""


@cache
def _built() -> Callable[[], object]:
    """Return the command with its options, built once a process: that takes long."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command. User mistakes exit with 2 and a remedy, failures with 1 and their reason."""
    with shown_records():
        _warn_of_namesake()
        if any(argument.split("=")[0] == OLD_OPTION for argument in sys.argv[1:]):
            warn_of_old_name("the options")
        try:
            _built()()
        except Exception as error:
            # Errors that a user can act on become one line. Others are bugs, with their traceback.
            if is_out_of_memory(error):
                message, code = NO_MEMORY, 1
            elif isinstance(error, ValueError | OSError):
                message, code = explain(error)
            else:
                raise
            complain(message)
            sys.exit(code)


def _warn_of_namesake() -> None:
    """Warn if Spark's RayDP is installed too: both distributions write into the folder `raydp`."""
    # The other distribution has the same import name, so only its metadata tell the two apart.
    try:
        other = version(NAMESAKE)
    except PackageNotFoundError:
        return
    logging.getLogger("raydp").warning(
        "Spark's RayDP (%s %s) is installed in the same folder `raydp`, and each overwrites the "
        "other's files. Run `pip uninstall %s` and install raydp-tune again, or use two "
        "environments.",
        NAMESAKE,
        other,
        NAMESAKE,
    )


def command() -> None:
    """Run the command in a process of its own: `raydp`, or `python -m raydp`."""
    if isinstance(sys.stdout, TextIOWrapper):
        # As stderr: a file's name may be no UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    with own_process():
        main()


if __name__ == "__main__":
    command()
