"""Readers of rows from files: JSON Lines, CSV and plain text, gzipped or not.

A malformed row is an error.

Error messages give the file, the line and what is expected, never the content, because the rows are
private text. They show names of columns and keys only if these are usual names: a file without a
header begins with a private row.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from raydp.search_spaces.names import Unusable, columns_in_words, kind_of
from raydp.system.damaged_files import naming
from raydp.system.locations import local_copy
from raydp.tasks.users import check_named

if TYPE_CHECKING:
    import pyarrow

FILE_SUFFIXES = (".jsonl", ".json", ".csv", ".txt", ".gz", ".parquet")
"""Endings of the files that `read_rows` reads."""
MAX_CSV_FIELD_BYTES = 1 << 26
MAX_LINE = 1 << 22
"""Largest number of characters of a JSON line. Tokenisers take minutes for ten million."""
_CSV_LIMIT = threading.Lock()


def is_file_of_rows(local: str) -> bool:
    """Return whether a path on this machine is a file, or ends like one: not a data set."""
    return not Path(local).is_dir() and (Path(local).is_file() or local.endswith(FILE_SUFFIXES))


def existing_file(location: str | Path, field: str) -> Path:
    """Return the path if it is a file; for a URI, return the path of its copy on this machine.

    Raises:
        ValueError: there is no file; the message names the field.
    """
    path = local_copy(location, field)
    if not path.is_file():
        raise ValueError(
            f"{field} must be an existing file, got {str(location)!r}. Check the path."
        )
    return path


def read_rows(path: str | Path, field: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Yield the rows of a file with their line numbers, from 1.

    A CSV row over several lines has the last number.

    Args:
        path: `.jsonl` or `.json` (one object per line; `.json` also one list of objects), `.csv`
            (with a header) or `.txt` (one row per non-blank line, in the column `text`), each also
            with `.gz`. A `.parquet` file is read too; its rows are numbered from 1.
        field: the option that holds the path, for messages.

    Raises:
        ValueError: the file is missing, of another kind, or malformed; the message names field,
            file and line.
    """
    path = existing_file(path, field)
    # The ending before .gz names the kind.
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if path.suffix.lower() == ".parquet":
        yield from _parquet_rows(path, field)
        return
    readers: dict[
        str, Callable[[io.TextIOBase, str, str], Iterable[tuple[int, Mapping[str, object]]]]
    ]
    readers = {
        ".jsonl": _json_rows,
        ".json": _json_file_rows,
        ".csv": _csv_rows,
        ".txt": _text_rows,
    }
    if suffix not in readers:
        known = ", ".join(readers)
        raise ValueError(
            f"{field} must end in one of {known} (or those with .gz) or .parquet, got "
            f"{path.name!r}. Rename the file."
        )
    with _open_text(path, field) as file:
        yield from readers[suffix](file, path.name, field)


def read_json_rows(path: str | Path, field: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the rows of a JSON Lines file of any name, with their line numbers.

    Raises ValueError as `read_rows`.
    """
    path = existing_file(path, field)
    with _open_text(path, field) as file:
        yield from _json_rows(file, path.name, field)


def read_csv_rows(path: str | Path, field: str) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a CSV file of any name, with their line numbers.

    Raises ValueError as `read_rows`.
    """
    path = existing_file(path, field)
    with _open_text(path, field) as file:
        return _csv_rows(file, path.name, field)


def read_column(
    path: str | Path,
    column: str,
    field: str,
    *,
    column_field: str | None = None,
    users: bool = False,
) -> list[str]:
    """Return one column of a file as strings.

    Args:
        users: the column holds names of users: also whole numbers, which become strings, but
            nothing blank.
        column_field: the option that holds the column's name, for the message if no row has the
            column.

    Raises:
        ValueError: as `read_rows`, or a row has no such column; the message lists the columns of
            the file.
    """
    texts: list[str] = []
    rows = read_rows(path, field)
    for line, row in rows:
        # Look for the column in other rows too: JSON rows may omit keys.
        if column_field is not None and not texts and column not in row:
            _require_column(column, row, rows, column_field)
        place = f"{Path(path).name}, line {line}"
        texts.append(string_of(row, column, field, place, numbers=users))
        if users:
            check_named(texts[-1], place)
    return texts


def check_column(path: str | Path, column: str, field: str, *, column_field: str) -> None:
    """Check that a file has a column. Only the first row is read if it has the column.

    Raises:
        ValueError: as `read_rows`, or no row has the column.
    """
    rows = read_rows(path, field)
    for _, row in rows:
        if column not in row:
            _require_column(column, row, rows, column_field)
        return


def _require_column(
    column: str,
    first: Mapping[str, object],
    others: Iterator[tuple[int, Mapping[str, object]]],
    field: str,
) -> None:
    """Raise ValueError if neither the first row nor another has the column."""
    known = dict.fromkeys(first)
    for _, row in others:
        known |= dict.fromkeys(row)
        if column in known:
            return
    raise ValueError(
        f"{field} must be a column of the file, got {column!r}. The file has "
        f"{columns_in_words(known, near=column)}. Choose one."
    )


def string_of(
    row: Mapping[str, object],
    column: str,
    field: str,
    place: str,
    *,
    numbers: bool = False,
    remedy: str = "Correct the row.",
) -> str:
    """Return row[column]; raise ValueError, which ends with the remedy, if it is not a string.

    Args:
        numbers: accept a whole number too, and return it as a string.
    """
    value = row.get(column)
    # `type(...) is int` excludes bool, which is a subclass of int.
    if numbers and type(value) is int:
        return str(value)
    if not isinstance(value, str):
        got = f"only {columns_in_words(row)}" if column not in row else kind_of(value)
        raise ValueError(
            f"{field} must have a string {column!r} in every row, got {got} in {place}. {remedy}"
        )
    return value


@contextmanager
def _open_text(path: Path, field: str) -> Iterator[io.TextIOBase]:
    """Open a file as UTF-8 text. A decoding error becomes a ValueError that names the file."""
    opener = gzip.open if path.name.endswith(".gz") else open
    try:
        # utf-8-sig drops the byte-order mark that Excel writes; newline="" leaves line ends to the
        # csv module.
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        with path.open("rb") as raw:
            if raw.read(2) == b"\x1f\x8b":
                raise ValueError(
                    f"{field} must be UTF-8 text, got gzip in {path.name}. Add .gz to the file's "
                    "name."
                ) from error
        raise ValueError(
            f"{field} must be UTF-8 text, got other bytes in {path.name}. Convert the file."
        ) from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        # Not str(error): it may show the file's first bytes.
        raise ValueError(
            f"{field} must be a whole gzip file, got {path.name}, which is damaged or not gzipped. "
            "Copy it again."
        ) from error


def _json_rows(
    file: io.TextIOBase, name: str, field: str
) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the objects of a JSON Lines file with their line numbers. Blank lines are skipped."""
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        # Refuse long lines before parsing: the limit protects from the minutes that they take.
        if len(line) > MAX_LINE:
            raise ValueError(
                f"{field} must hold lines of at most {MAX_LINE} characters, got a longer one in "
                f"{name}, line {number}. Split the row."
            )
        # Parse the line. Errors say where, and never quote it.
        try:
            row = json.loads(line, object_pairs_hook=_of_pairs)
        except json.JSONDecodeError as error:
            # An object without its end is most often a pretty-printed file.
            if error.msg.startswith("Unterminated") or error.pos >= len(line.rstrip()):
                raise ValueError(
                    f"{field} must hold one JSON object per line, got an object without its end in "
                    f"{name}, line {number}. Complete the line."
                ) from error
            reason = error.msg.removesuffix(" at")
            raise ValueError(
                f"{field} must hold one JSON object per line, got {reason} in {name}, line "
                f"{number}, column {error.colno}. Correct the line."
            ) from error
        except _RepeatedKeyError as error:
            raise ValueError(
                f"{field} must name each key once in an object, got {error} twice in {name}, line "
                f"{number}. Remove one."
            ) from error
        except (ValueError, RecursionError) as error:
            # json refuses integers of over 4,300 digits (ValueError) and nesting beyond the stack.
            got = (
                "a number of too many digits"
                if isinstance(error, ValueError)
                else "too deep a nesting"
            )
            raise ValueError(
                f"{field} must hold one JSON object per line, got {got} in {name}, line {number}. "
                "Correct the line."
            ) from error
        # Only a line with an escaped surrogate can decode to text that UTF-8 cannot hold; the check
        # encodes the whole row, so it is skipped for all others.
        if "\\ud" in line.lower() and not _is_text(row):
            raise ValueError(
                f"{field} must hold Unicode text, got half a surrogate pair (\\ud...) in {name}, "
                f"line {number}. Correct the line."
            )
        if not isinstance(row, dict):
            got = kind_of(row)
            raise ValueError(
                f"{field} must hold one JSON object per line, got {got} in {name}, line {number}. "
                "Correct the line."
            )
        yield number, row


class _RepeatedKeyError(ValueError):
    """A key stands twice in an object; the text names the key if it is a usual one."""


def _of_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the object of pairs: Python's own reader keeps the last value of a repeated key."""
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _RepeatedKeyError(
            columns_in_words([next(key for key in keys if keys.count(key) > 1)])
        )
    return made


def _json_file_rows(
    file: io.TextIOBase, name: str, field: str
) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the objects of a file, one list of objects or JSON Lines, with their numbers."""
    # The first character decides: "[" begins one list, everything else is JSON Lines.
    while (first := file.read(1)).isspace():
        pass
    file.seek(0)
    if first != "[":
        yield from _json_rows(file, name, field)
        return
    # A list is read whole: the json module cannot stream it.
    try:
        rows = json.load(file, object_pairs_hook=_of_pairs)
    except _RepeatedKeyError as error:
        raise ValueError(
            f"{field} must name each key once in an object, got {error} twice in {name}. Remove "
            "one."
        ) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{field} must hold one list of JSON objects, or one object per line, got a list that "
            f"is damaged in {name}. Correct the file."
        ) from error
    # A list may hold anything, so each entry is checked as a line would be.
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not _is_text(row):
            got = "half a surrogate pair (\\ud...)" if isinstance(row, dict) else kind_of(row)
            raise ValueError(
                f"{field} must hold one list of JSON objects in Unicode, got {got} in {name}, "
                f"entry {number}. Correct the entry."
            )
        yield number, row


def _is_text(row: object) -> bool:
    """Return whether UTF-8 can encode a row: JSON may escape half of a surrogate pair."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _csv_rows(file: io.TextIOBase, name: str, field: str) -> list[tuple[int, dict[str, str]]]:
    """Return all rows: a generator would leave csv's global limit raised between two rows."""
    rows, begin = list[tuple[int, dict[str, str]]](), 1
    with _long_csv_fields():
        reader = csv.reader(file, strict=True)
        try:
            # A repeated column name would silently overwrite a value in the dict of a row.
            names = next(reader, [])
            if repeated := [
                at for at, column in enumerate(names, start=1) if names.index(column) < at - 1
            ]:
                raise ValueError(
                    f"{field} must name each column once, got a repeated name in column "
                    f"{repeated[0]} of the header of {name}. Rename the column."
                )
            begin = reader.line_num + 1
            # A wrong number of values is mostly an unquoted comma or line end.
            for row in reader:
                if row and len(row) != len(names):
                    raise ValueError(
                        f"{field} must have as many values in a row as the header, got another "
                        f"number in {name}, {_lines(begin, reader.line_num)}. Quote values that "
                        "hold commas or line ends."
                    )
                if row:  # others are blank lines
                    rows.append((reader.line_num, dict(zip(names, row, strict=True))))
                begin = reader.line_num + 1
        except csv.Error as error:
            # A quote that never closes swallows the rest of the file, so the row's first line helps
            # most.
            if str(error) == "unexpected end of data":
                raise ValueError(
                    f"{field} must be valid CSV, got a quote that is never closed in {name}, in "
                    f"the row that begins in line {begin}. Close the quote, or double it inside a "
                    "quoted value."
                ) from error
            raise ValueError(
                f"{field} must be valid CSV, got {error} in {name}, "
                f"{_lines(begin, reader.line_num)}. Correct the row."
            ) from error
    return rows


def _lines(first: int, last: int) -> str:
    """Name the lines of a CSV row. A quote may have opened in any of them."""
    return f"line {last}" if first == last else f"a row from line {first} to line {last}"


def _text_rows(file: io.TextIOBase, name: str, field: str) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield number, {"text": line.rstrip("\r\n")}


def _parquet_rows(path: Path, field: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    from pyarrow import parquet

    def damaged() -> AbstractContextManager[None]:
        return naming(path, field, "a whole Parquet file", "Copy it again.")

    number = 0
    with path.open("rb") as stream:  # pyarrow opens no path that is not UTF-8
        with damaged():
            batches = parquet.ParquetFile(stream).iter_batches()
        # A Parquet file may be larger than memory, so it is read batch by batch.
        while True:
            with damaged():
                batch = next(batches, None)
            if batch is None:
                return
            columns = _parquet_columns(batch)
            for values in zip(*columns.values(), strict=True):
                number += 1
                yield number, dict(zip(columns, values, strict=True))


def _parquet_columns(batch: pyarrow.RecordBatch) -> dict[str, list[object]]:
    """Return each column's values; repeated names, and what Python cannot hold, are `Unusable`."""
    columns: dict[str, list[object]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            values = column.to_pylist()
        except (ValueError, ArithmeticError, LookupError, TypeError, NotImplementedError):
            # pyarrow raises these for dates beyond Python's range and for types without a Python
            # value.
            values = [Unusable("a value that Python cannot hold")] * len(column)
        columns[name] = (
            [Unusable("two columns of this name")] * len(column) if name in columns else values
        )
    return columns


@contextmanager
def _long_csv_fields() -> Iterator[None]:
    """Raise the csv module's limit of 128 kB a field for the block: mails can be longer."""
    # The limit is global to the process, so threads take turns.
    with _CSV_LIMIT:
        before = csv.field_size_limit(MAX_CSV_FIELD_BYTES)
        try:
            yield
        finally:
            csv.field_size_limit(before)
