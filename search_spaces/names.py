"""Names in messages: a misspelt name, and the names from a file that a message may show.

The module serves packages that do not import `raydp`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass


def unknown_name(field: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name: the nearest known name, then all known names."""
    options = sorted(known)
    meant = nearest(name, options)
    hint = "" if meant is None else f" Did you mean {meant!r}?"
    return f"{field} {name!r} is unknown.{hint} Known: {', '.join(options) or 'none'}."


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelt name may stand for; None if no known name is near."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)), None)


def count_in_words(key: str) -> str:
    """Return the key of a count in plain words.

    "num_heldout_examples" is "held-out examples", "windows_per_text_max" is "most windows per
    text".
    """
    most = "most " if key.endswith("_max") else ""
    name = key.removeprefix("num_").removesuffix("_max")
    return most + name.replace("heldout", "held-out").replace("_", " ")


_NEARLY = 0.8
"""Least similarity of a name and what a user has written for it."""
_FAMILIAR = """
answer answers attribute audio audit author author_index base_utility_loss batch_size body
category class classes completion content continuation conversation conversations date
delta email epsilon epsilon_hat expectation features from function_call functions genre id
image images input inputs instruction label labels learning_rate mail max_grad_norm
message messages method model_uri n name noise_multiplier num_steps output
parallel_tool_calls paraphrases prompt prompts question reasoning_content refusal role row
run_id score secret seed sender sentence source status subject system target task_hash
test text texts title to tool_call_id tool_calls tools train type user user_id
utility_gain utility_loss validation value weight
"""
FAMILIAR = frozenset(_FAMILIAR.split())
"""Usual names of columns. Any other may be private text: a file may begin with a data row."""
OTHER_NAMES = {
    other: name
    for name, others in {
        "batch_size": "b bs batch",
        "learning_rate": "lr eta η",
        "num_steps": "t steps max_steps",
        "utility_loss": "loss eval_loss nll",
        "epsilon": "eps ε",
        "noise_multiplier": "sigma σ",
    }.items()
    for other in others.split()
}
"""Usual names of columns in other tools, in lower case -> raydp's names."""
# Columns that raydp writes itself, named after scores and parameters.
_OF_A_TABLE = re.compile(r"(score|param)\.[A-Za-z0-9_.-]{1,100}|(train|score)_seconds")


def familiar(names: Iterable[object]) -> list[str]:
    """Return those names from a file that a message may show."""
    return [name for name in map(str, names) if name in FAMILIAR or _OF_A_TABLE.fullmatch(name)]


def require_columns(field: str, required: Iterable[str], given: Iterable[object]) -> None:
    """Check that a table has its columns.

    Args:
        field: what holds the table, for the message.
        required: the names that the table must have.
        given: the names that it has.

    Raises:
        ValueError: some are missing. The message names them, the given columns, and those that only
            need another name.
    """
    needed, columns = list(required), list(map(str, given))
    if not (missing := [name for name in needed if name not in columns]):
        return
    renamed: dict[str, str] = {}
    for column in columns:
        plain = re.sub(r"[\W_]+", "_", column.strip().lower())
        close = difflib.get_close_matches(plain, missing, n=1, cutoff=0.8)
        meant = OTHER_NAMES.get(plain) or "".join(close)
        if meant in missing:
            renamed.setdefault(meant, column)
    renames = ", ".join(f"{column} to {meant}" for meant, column in renamed.items())
    shown = {*renamed.values(), *(column for column in columns if column.lower() in OTHER_NAMES)}
    rest = ", and add the others" if len(renamed) < len(missing) else ""
    raise ValueError(
        f"{field} must have the columns {', '.join(needed)}, got a table without "
        f"{', '.join(missing)}. It has {columns_in_words(columns, also=shown)}. "
        + (f"Rename {renames}{rest}." if renames else "Add or rename them.")
    )


def columns_in_words(names: Iterable[object], also: Iterable[str] = (), near: str = "") -> str:
    """Describe a file's columns for a message: the familiar ones by name, the others by number.

    Args:
        names: the columns.
        also: those of them that the message shows in any case.
        near: a name that the user has written. A column with nearly this name is shown, too: it
            tells nothing that the user has not written.
    """
    given, shown = list(names), set(also)
    shown |= set(difflib.get_close_matches(near, list(map(str, given)), cutoff=_NEARLY))
    known = [name for name in map(str, given) if name in shown or familiar([name])]
    others = len(given) - len(known)
    if not others:
        return ", ".join(known) or "no columns"
    noun = "column" if others == 1 else "columns"
    return (
        f"{', '.join(known)} and {others} other {noun}"
        if known
        else f"{others} {noun} of other names"
    )


_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
}


@dataclass(frozen=True)
class Unusable:
    """Stands for a value of a file that cannot be read. It is refused only where it is needed."""

    reason: str


def kind_of(value: object) -> str:
    """Describe the kind of a value from a file in words, without showing the value."""
    if isinstance(value, Unusable):
        return value.reason
    return _KINDS.get(type(value), "a mapping" if isinstance(value, dict) else "another value")


# The number that a message got, up to the end of its sentence.
_GOT = re.compile(r"\bgot -?[\d.][^ ]*?(?=[.,;]?( |$))")


def without_cells(message: str) -> str:
    """Return a message about a table's numbers without the number that it got."""
    return _GOT.sub("got another number", message)


def is_number(cell: str) -> bool:
    """Return whether a cell holds a finite number."""
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def cell_in_words(cell: object) -> str:
    """Describe a cell of a table for a message, without showing it: a number may be private too."""
    if not isinstance(cell, str):
        return kind_of(cell)
    if not cell.strip():
        return "an empty cell"
    try:
        return "another number" if math.isfinite(float(cell)) else "no finite number"
    except ValueError:
        return "text"
