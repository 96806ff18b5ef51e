"""Output of commands: a table or a few lines for people, one strict JSON document for programs."""

from __future__ import annotations

import json
import logging
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, overload

from rich.console import Console
from rich.status import Status
from rich.text import Text

from raydp.system.notebook import in_notebook
from raydp.system.table_layout import cell_text, lay_out
from raydp.system.waiting import SILENT_SECONDS, WAITS, Phase

LOGGER = logging.getLogger(__name__)
LONG_ITEM = 40
"""Text length in characters. A list with a longer text is printed with one item per line."""
_STYLES = {"header": "bold", "marked": "bold", "remark": "dim"}


class TimedStatus(Status):
    """A status line that logs how long it was shown.

    Off a terminal, its text is printed if the block is long. Names in the text may hold brackets: a
    text is shown as it is.
    """

    def __init__(self, status: Any, **options: Any) -> None:
        super().__init__(_as_it_is(status), **options)

    def update(self, status: Any = None, **options: Any) -> None:
        """Replace the text; see `Status.update`."""
        super().update(_as_it_is(status), **options)

    def __enter__(self) -> TimedStatus:
        self._text = str(self.status)
        self._phase = begin_phase(self.console, lambda: str(self.status))
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        end_phase(self._phase, self._text)


class WordConsole(Console):
    """A console that breaks lines between words on a terminal. Files and pipes get whole lines.

    A word that is longer than a line, such as a URI, stays whole. `soft_wrap=True` leaves a line as
    it is, such as a command that a user copies.
    """

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print objects; see `Console.print`."""
        # On a terminal words must not be cut; a file gets whole lines, which programs read.
        if not soft_wrap and self.is_terminal:
            objects = tuple(
                _wrapped(part, self.width) if isinstance(part, str) else part for part in objects
            )
        # soft_wrap=True, because rich would break lines anywhere.
        super().print(*objects, soft_wrap=True, **options)
        WAITS.printed()

    def status(self, status: Any, **options: Any) -> TimedStatus:
        """Show a status line during a block; see `Console.status`."""
        return TimedStatus(status, console=self, **options)


def _as_it_is(status: Any) -> Any:
    """Return a status without markup: rich reads the brackets of a plain string as markup."""
    return Text(status) if isinstance(status, str) else status


def _wrapped(text: str, width: int) -> str:
    """Break a text's lines between words; a continued line keeps the indentation."""
    lines = []
    for line in text.split("\n"):
        indentation = line[: len(line) - len(line.lstrip())]
        parts = textwrap.wrap(
            line,
            width,
            subsequent_indent=indentation,
            break_long_words=False,
            break_on_hyphens=False,
        )
        # A line that fits keeps its inner blanks, which textwrap would collapse.
        lines += parts if len(line) > width else [line]
    return "\n".join(lines)


def _console(**options: Any) -> WordConsole:
    """Return a console.

    In a notebook it writes plain lines into the cell's streams, and no status line: rich would make
    an output of each line, and would ask for widgets.
    """
    plain: dict[str, Any] = (
        {"force_jupyter": False, "force_terminal": False} if in_notebook() else {}
    )
    return WordConsole(highlight=False, markup=False, **plain, **options)


stderr, stdout = _console(stderr=True), _console()


def print_warning(text: object) -> None:
    """Print a warning beside a result. A quiet command prints the result alone."""
    if not stderr.quiet:
        stdout.print(f"warning: {text}", markup=False)


@contextmanager
def phase(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """Show a text while the block runs, which gets a function that replaces the text.

    If the output is not a terminal, print the text once, and again if the block is long.

    Args:
        text: the text; "" for a block that prints lines of its own.
    """
    if console.is_terminal and text:
        with console.status(text) as status:
            yield status.update
        return
    if text:
        console.print(text, markup=False)
    # The text is in a list, so that the block can replace it.
    shown = [text]
    begun = begin_phase(console, lambda: shown[0], said=True)
    try:
        yield partial(shown.__setitem__, 0)
    finally:
        end_phase(begun, shown[0])


def begin_phase(
    console: Console, text: Callable[[], str], *, said: bool = False, between: bool = False
) -> Phase:
    """Begin a phase. A terminal shows it, and prints nothing."""
    # A terminal has a status line, so the phase itself is silent.
    shown = str if console.is_terminal else text
    return WAITS.begin(
        shown, lambda line: console.print(line, markup=False), said=said, between=between
    )


def end_phase(begun: Phase, text: str = "") -> None:
    """End a phase, and log under a text how long it was.

    If it was long enough to be printed, its time is, too.
    """
    seconds = WAITS.end(begun)
    if text:
        # Log what was also printed at INFO, everything else for debugging.
        long = seconds >= SILENT_SECONDS and begun.text() != ""
        LOGGER.log(logging.INFO if long else logging.DEBUG, "%s: %.2f s", text, seconds)


@overload
def strict(value: Mapping[str, object]) -> dict[str, object]: ...


@overload
def strict(value: object) -> object: ...


def strict(value: object) -> object:
    """Convert a value for JSON: infinity to "inf", NaN to null, numpy scalars to numbers."""
    if isinstance(value, Mapping):
        return {str(k): strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [strict(v) for v in value]
    # This recognises numpy's scalars without importing numpy.
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Path):
        return str(value)
    return value


def print_json(document: object) -> None:
    """Print one JSON document to stdout."""
    # allow_nan=False: NaN is no JSON, and `strict` must have replaced it.
    print(json.dumps(strict(document), indent=1, ensure_ascii=False, allow_nan=False))


def print_table(
    title: str,
    rows: Sequence[Mapping[str, object]],
    *,
    marks: Mapping[int, str] | None = None,
    keep: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """Print a table that fits the terminal, or is whole in a file or a pipe; see `table_layout`."""
    if not rows:
        stdout.print(f"{title}: none", markup=False)
        return
    if title:
        stdout.print(title, markup=False)
    width = stdout.width if stdout.file.isatty() else None
    for line in lay_out(rows, marks=marks, width=width, keep=keep, spare=spare):
        stdout.print(line.text, style=_STYLES.get(line.kind), markup=False, soft_wrap=True)


def print_document(
    document: Mapping[str, object], title: str = "", *, width: int | None = None
) -> None:
    """Print a document for people: a line for a plain value, a table for each table-like part.

    Args:
        document: the document.
        title: the title of a document that is one table.
        width: the columns of a file or a pipe, where longer lines are broken between words. None
            keeps lines whole.
    """
    # A document of equal rows is one table.
    if document and (whole := _rows(document)) is not None:
        print_table(title, whole)
    else:
        _print_parts(document, "", width)


def _say(text: str, width: int | None, style: str | None = None) -> None:
    """Print a text, broken between words if it does not fit."""
    stdout.print(
        text if width is None or stdout.is_terminal else _wrapped(text, width),
        style=style,
        markup=False,
    )


def _print_parts(document: Mapping[str, object], title: str, width: int | None) -> None:
    # Print plain values first, so that their lines stand together above the tables.
    for name, value in document.items():
        # Long texts get a line each: a list of sentences on one line is unreadable.
        if isinstance(value, list | tuple) and any(
            isinstance(v, str) and len(v) > LONG_ITEM for v in value
        ):
            _say(f"{name}:", width)
            for item in value:
                _say(f"  - {cell_text(item)}", width)
        elif _is_line(value):
            inner = (
                ", ".join(f"{k} {cell_text(v, k)}" for k, v in value.items())
                if isinstance(value, Mapping)
                else cell_text(value, name)
            )
            _say(f"{name}: {inner}", width)
    # Print the other parts under a heading, each after an empty line.
    for name, value in document.items():
        heading = f"{title} {name}".strip()
        if _is_line(value):
            continue
        stdout.print()
        rows = _rows(value)
        # Files with a width get one field per line rather than a table that is too wide.
        if rows and width is not None and not stdout.is_terminal:
            _say(heading, width)
            for line in lay_out(rows, width=width, whole=True):
                _say(line.text, width)
        elif rows is not None:
            print_table(heading, rows)
        elif isinstance(value, Mapping):
            _say(heading, width, "bold")
            _print_parts(value, heading, width)
        elif isinstance(value, list | tuple):
            for position, part in enumerate(value):
                if position:
                    stdout.print()
                _print_parts(part, heading, width)


def _is_plain(value: object) -> bool:
    return not isinstance(value, Mapping) and not (
        isinstance(value, list | tuple) and any(isinstance(v, Mapping) for v in value)
    )


def _is_line(value: object) -> bool:
    return all(map(_is_plain, value.values())) if isinstance(value, Mapping) else _is_plain(value)


def _rows(value: object) -> list[dict[str, object]] | None:
    """Return the rows of a table-like value: a list of flat mappings, or flat mappings by name."""
    if isinstance(value, Mapping):
        entries = [({"name": name}, part) for name, part in value.items()]
    elif isinstance(value, list | tuple):
        entries = [({}, part) for part in value]
    else:
        return None
    parts = [part for _, part in entries if isinstance(part, Mapping)]
    # If one part is no flat mapping, the value is no table.
    if len(parts) < len(entries) or not all(
        _is_plain(cell) for part in parts for cell in part.values()
    ):
        return None
    columns = dict.fromkeys(column for part in parts for column in part)
    return [{**name, **{c: part.get(c) for c in columns}} for name, part in entries]
