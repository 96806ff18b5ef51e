"""Arguments that several commands take."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydp.search_spaces import Configuration
from raydp.search_spaces.settings import Settings
from raydp.system.console_log import be_quiet, be_verbose

if TYPE_CHECKING:
    from typer._click import Parameter  # see raydp.cli.groups

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, logs on stderr.")]
Uri = Annotated[str, typer.Option(envvar="MLFLOW_TRACKING_URI", help="MLflow store or server.")]
DEFAULT_URI = "sqlite:///raydp.db"
Source = Annotated[
    str,
    typer.Argument(
        metavar="POINTS|SWEEP", help="CSV or Parquet file; or a sweep: its folder, name or spec."
    ),
]
OneSweep = Annotated[
    str, typer.Argument(metavar="SWEEP", help="Its folder, its name, or the spec that it runs.")
]
SpecOrDemo = Annotated[
    Path | None, typer.Argument(metavar="SPEC", help="Without it: the embedded default.")
]
Storage = Annotated[str, typer.Option(help="Folder that sweeps are looked up in by name.")]
By = Annotated[
    str | None,
    typer.Option("--score", help="Another of the table's scores, also one measured later."),
]
WorstCase = Annotated[
    bool, typer.Option("--worst-case", help="A model's largest value over its secrets.")
]
MaxLoss = Annotated[
    float | None, typer.Option(help="Only configurations with at most this mean utility_loss.")
]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="models:/NAME/VERSION, models:/NAME@ALIAS or models:/m-ID."
    ),
]
TrustedKey = Annotated[
    list[str] | None,
    typer.Option(
        help="Only what this key has signed: ed25519:... or a file of public keys; repeatable."
    ),
]
OLD_OPTION = "--min-utility-gain"
"""The name of `--min-gain-share` in earlier versions."""
MinGain = Annotated[
    float | None,
    typer.Option(
        *("--min-gain-share", OLD_OPTION),
        help="Only those with this share of the best utility gain, such as 0.9.",
    ),
]
Rule = Annotated[
    str | None,
    typer.Option(
        help="informed, procedure, best-utility, worst-utility, oracle, pareto-knee or file.py:NAME."
    ),
]


def _on_verbose(given: bool) -> None:
    """Log progress on stderr from now on, if --verbose is given."""
    if given:
        be_verbose()


def _on_quiet(given: bool) -> None:
    """Print results and errors only from now on, if --quiet is given."""
    if given:
        be_quiet()


@cache
def options_of_every_command() -> tuple[Parameter, ...]:
    """Return the options that every command and every group of commands has."""
    # Typer builds the parameters from a function's signature, so a stand-in has one.
    app = typer.Typer(add_completion=False)

    @app.command()
    def every_command(
        verbose: Annotated[
            bool,
            typer.Option(
                "--verbose",
                "-v",
                callback=_on_verbose,
                help="Say on stderr what is done, with times.",
            ),
        ] = False,
        quiet: Annotated[
            bool,
            typer.Option(
                "--quiet", "-q", callback=_on_quiet, help="Print results and errors only."
            ),
        ] = False,
    ) -> None:
        """Stands for a command."""

    # The callbacks do the work, so the commands need not take these values.
    options = typer.main.get_command(app).params
    for option in options:
        option.expose_value = False
    return tuple(options)


def bounds(given: list[str] | None) -> dict[str, float] | None:
    """Parse the COLUMN=VALUE arguments of the command line.

    Raises:
        ValueError: an argument has another form.
    """
    limits = {}
    for text in given or ():
        column, _, value = text.partition("=")
        try:
            limits[column] = float(value)
        except ValueError as error:
            raise ValueError(
                f"--at-most must be COLUMN=VALUE, got {text!r}. Write it as epsilon=8."
            ) from error
    return limits or None


def check_page(output: Path) -> None:
    """Check the output path of a page before the page's content is computed.

    Raises:
        ValueError: the folder does not exist, or the path is the name of a table.
    """
    if not output.absolute().parent.is_dir():
        raise ValueError(
            f"--output must lie in an existing folder, got {str(output)!r}. Create its folder."
        )
    if output.suffix in (".csv", ".parquet"):
        raise ValueError(
            f"--output must be a page, got {str(output)!r}. Name it .html: a table would be "
            "overwritten."
        )


def check_new(output: Path, *, force: bool) -> None:
    """Raise ValueError if a command would overwrite a file, unless --force or the user allows it.

    The user is asked at a terminal only.
    """
    if force or not output.is_file():
        return
    can_ask = sys.stdin.isatty() and sys.stderr.isatty()
    if not (can_ask and typer.confirm(f"{output} exists. Overwrite it?", err=True)):
        raise ValueError(
            f"--output must be a new file, got {str(output)!r}. Choose another name, or add "
            "--force."
        )


def configuration_of(text: str) -> Configuration:
    """Parse batch_size,num_steps,learning_rate[,FIELD=VALUE...], with all further fields.

    Raises:
        ValueError: the text has another form.
    """
    try:
        # Only the first three commas separate: a further field's value may hold commas of its own.
        batch_size, num_steps, learning_rate, *fields = text.split(",", 3)
        further = dict(map(_field_of, _parts(fields[0]))) if fields else {}
        return Configuration(
            batch_size=int(batch_size),
            num_steps=int(num_steps),
            learning_rate=float(learning_rate),
            settings=Settings(further),
        )
    except ValueError as error:
        raise ValueError(
            f"--configuration must be batch_size,num_steps,learning_rate, all > 0, got {text!r}. "
            "Write it as 256,60,0.005, and further fields as 256,60,0.005,method.max_grad_norm=0.5."
        ) from error


def _parts(text: str) -> list[str]:
    """Split FIELD=VALUE,FIELD=VALUE at the commas that are not inside brackets."""
    # A list or a mapping in YAML keeps its commas.
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _field_of(text: str) -> tuple[str, object]:
    """Return the path and the value of FIELD=VALUE."""
    from raydp.spec.sections.space import VARIABLE
    from raydp.system.yaml import parse_yaml

    path, sign, value = text.partition("=")
    if not sign or not path.startswith(tuple(f"{section}." for section in VARIABLE)):
        raise ValueError(f"{text!r} is no FIELD=VALUE of {' or '.join(VARIABLE)}")
    return path.strip(), parse_yaml(value, "--configuration must have YAML values")


def options_of(given: Mapping[str, object], **defaults: object) -> list[str]:
    """Return the options of a command that were given, as words of a command line.

    Args:
        given: field -> value; None, False and a default are options that were not given.
        defaults: field -> its default, for fields that have another one than None or False.
    """
    words = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False and value != defaults.get(name):
            for one in value if isinstance(value, list) else [value]:
                words += [option, str(one)]
    return words
