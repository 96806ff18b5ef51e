"""The properties of a file or data set that a spec depends on.

Of its content only a sample of rows is kept.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from raydp.plugins.registries import names, resolve
from raydp.search_spaces.names import columns_in_words
from raydp.system.locations import local_copy
from raydp.tasks.data_sets import rows_of_data_set
from raydp.tasks.row_files import is_file_of_rows, read_rows
from raydp.tasks.text.windows import start_tokens, with_start

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

READER = "conversations"
"""The service that reads rows as conversations. Without it, data are a column of texts."""
SAMPLE_ROWS = 2000
"""Number of rows whose tokens are counted."""
FEW_TO_SPLIT = 100
"""Below so many units, a tenth of them that is drawn by hash may be none."""
SHORTEST_TEXT = 20
"""Mean length in characters below which a column is no column of texts."""
_PEOPLE = (
    "user",
    "author",
    "customer",
    "client",
    "patient",
    "person",
    "member",
    "account",
    "speaker",
)
USER_NAMES = frozenset(
    [
        *_PEOPLE,
        *(f"{who}_id" for who in _PEOPLE),
        "userid",
        "username",
        "author_index",
        "sender",
        "from",
    ]
)
"""Usual names of columns that name whose row it is.

Other names are not looked at: they may be private text.
"""
LONGEST_USER = 200
FEWEST_USERS = 10
"""A column with fewer values names roles, such as speakers, rather than users."""


class Conversations(Protocol):
    """Rows that are conversations, as the service `conversations` reads them."""

    @property
    def form(self) -> str:
        """The form of the rows."""

    @property
    def trained_columns(self) -> set[str]:
        """The columns that are trained on."""

    def template(
        self, tokenizer: PreTrainedTokenizerBase, rows: Iterable[Mapping[str, object]]
    ) -> str | None:
        """Return the template that the spec must name; None if the task's own choice fits."""

    def check_secrets(self, path: str | Path, field: str) -> None:
        """Raise ValueError if a secrets file is malformed."""

    def texts(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: str | None,
        sample: Iterable[tuple[str, Mapping[str, object]]],
    ) -> list[str]:
        """Return rows, given with their places, as the task writes them."""


@dataclass(frozen=True, kw_only=True)
class UserColumn:
    """A column that may name each row's user: its number of users, and the most rows of one."""

    name: str
    num_users: int
    most_rows: int

    @property
    def unit(self) -> Literal["example", "user"]:
        """Return the unit to propose: the ε of one row does not protect a user with several."""
        return "user" if self.most_rows > 1 else "example"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The form and size of the data.

    Attributes:
        conversations: what the rows are if they are conversations; None for a column of texts.
        column: the column of texts; None for conversations.
        num_rows: number of rows.
        num_distinct: number of rows that differ in what is trained on.
        user_columns: columns that name the user of every row, the one with the most users first.
        sample: rows with their places in the data, drawn without replacement.
    """

    conversations: Conversations | None
    column: str | None
    num_rows: int
    num_distinct: int
    user_columns: tuple[UserColumn, ...]
    sample: tuple[tuple[str, Mapping[str, object]], ...]

    @property
    def form(self) -> str | None:
        """The form of the conversations; None for a column of texts."""
        return None if self.conversations is None else self.conversations.form

    @property
    def repeated(self) -> str:
        """The number of rows that repeat another row, in words. The task removes those of one user."""
        number = self.num_rows - self.num_distinct
        stay = " (each user's copy stays)" if number and self.user_columns else ""
        return f"{number} of them repeated{stay}"

    def heldout_fraction(self, users: UserColumn | None) -> float:
        """Return the share of users or rows to evaluate on: a tenth, or more where they are few."""
        divided = self.num_rows if users is None else users.num_users
        return 0.1 if divided >= FEW_TO_SPLIT else 0.25

    def lengths(self, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Return the numbers of tokens of the sample's rows as the task writes them, ascending."""
        if self.conversations is None:
            texts = [str(row[str(self.column)]) for _, row in self.sample]
        else:
            template = self.template(tokenizer)
            texts = self.conversations.texts(tokenizer, template, self.sample)
        start = start_tokens(tokenizer)
        return sorted(
            len(with_start(ids, start))
            for ids in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        )

    def template(self, tokenizer: PreTrainedTokenizerBase) -> str | None:
        """Return the template that the spec must name; None if the task's own choice fits."""
        if self.conversations is None:
            return None
        return self.conversations.template(tokenizer, [row for _, row in self.sample])


@dataclass
class _Column:
    """Counts of a column's values over the rows."""

    texts: int = 0
    characters: int = 0
    names: Counter[int] = field(default_factory=Counter)
    named: int = 0

    def add(self, value: object, *, may_name: bool) -> None:
        """Count the value of one row."""
        if isinstance(value, str):
            self.texts += 1
            self.characters += len(value)
        fits = isinstance(value, str | int) and 0 < len(str(value).strip()) <= LONGEST_USER
        if may_name and fits:
            self.named += 1
            self.names[hash(str(value))] += 1


def survey(
    data: str,
    *,
    column: str | None = None,
    user_column: str | None = None,
    max_rows: int | None = None,
) -> Survey:
    """Look at data.

    Args:
        data: a file, a saved data set, or the name of a data set on the hub.
        column: the column of texts; by default the rows are conversations if they have their
            columns, and else the column with the longest texts.
        user_column: the column of users; by default those with a usual name are looked at.
        max_rows: read so many rows at most.

    Raises:
        ValueError: the data are missing or malformed, have fewer than two rows, no column of texts,
            or a row without a user in the given column.
    """
    columns: dict[str, _Column] = {}
    sample: list[tuple[str, Mapping[str, object]]] = []
    # A fixed seed: the same data give the same proposal.
    rng, rows, seen = random.Random(0), 0, Counter[int]()
    reader = resolve("services", READER) if READER in names("services") else None
    conversations: Conversations | None = None
    # One pass over the data: count rows, texts and users, and keep a sample of the rows.
    for place, row in _rows(data, max_rows):
        if not rows and column is None and reader is not None:
            conversations = reader.of_row(row)
        # Hashes find repeated rows without keeping their texts.
        if conversations is not None:
            columns_trained_on = conversations.trained_columns
        else:  # all columns while the column of texts is unknown
            columns_trained_on = {column} if column is not None else set(row)
        trained_on = [row.get(c) for c in sorted(columns_trained_on)]
        seen[hash(json.dumps(trained_on, default=str))] += 1
        for name, value in row.items():
            # Count the values of columns of users alone: other columns may be private text.
            may_name = name == user_column if user_column else name in USER_NAMES
            columns.setdefault(name, _Column()).add(value, may_name=may_name)
        # Each row is in the sample with the same probability (Vitter 1985, algorithm R).
        if rows < SAMPLE_ROWS:
            sample.append((place, row))
        elif (replaced := rng.randrange(rows + 1)) < SAMPLE_ROWS:
            sample[replaced] = (place, row)
        rows += 1
    if rows < 2:
        raise ValueError(f"DATA must have at least 2 rows, got {rows}. Give more data.")
    # Find the column of texts, and the columns that name a user in every row.
    if conversations is None:
        column = _text_column(columns, rows, column)
    return Survey(
        conversations=conversations,
        column=column if conversations is None else None,
        num_rows=rows,
        num_distinct=len(seen),
        user_columns=_users(columns, rows, user_column, column),
        sample=tuple(sample),
    )


def _users(
    columns: Mapping[str, _Column], rows: int, user_column: str | None, column: str | None
) -> tuple[UserColumn, ...]:
    """Return the columns that name a user in every row, the one with the most users first."""
    if user_column is not None:
        _require_users(columns, rows, user_column)
    # A column with few values names roles, such as speakers, unless the user named it.
    users = [
        UserColumn(name=name, num_users=len(counts.names), most_rows=max(counts.names.values()))
        for name, counts in columns.items()
        if counts.named == rows
        and (name == user_column or (len(counts.names) >= FEWEST_USERS and name != column))
    ]
    return tuple(sorted(users, key=lambda u: -u.num_users))


def _rows(data: str, max_rows: int | None) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield rows with their places."""
    local = str(local_copy(data, "DATA"))
    if is_file_of_rows(local):
        yield from (
            (f"line {line}", row) for line, row in islice(read_rows(local, "DATA"), max_rows)
        )
    else:
        yield from rows_of_data_set(
            local, "DATA", config=None, split=None, revision=None, max_rows=max_rows
        )


def _require_column(columns: Mapping[str, _Column], option: str, given: str) -> None:
    """Raise ValueError if the data lack the column that an option names."""
    if given not in columns:
        raise ValueError(
            f"{option} must be a column of the data, got {given!r}. They have "
            f"{columns_in_words(columns, near=given)}."
        )


def _require_users(columns: Mapping[str, _Column], rows: int, given: str) -> None:
    """Raise ValueError unless every row names a user in the given column."""
    _require_column(columns, "--user-column", given)
    if (blank := rows - columns[given].named) > 0:
        raise ValueError(
            f"--user-column must name a user in every row, got {blank} rows without. Name their "
            "users, or leave these rows out."
        )


def _text_column(columns: Mapping[str, _Column], rows: int, given: str | None) -> str:
    """Return the column of texts.

    Raises:
        ValueError: there is none, or the given one is missing or holds something else.
    """
    if given is not None:
        _require_column(columns, "--column", given)
        if columns[given].texts < rows:
            raise ValueError(
                f"--column must hold a text in every row, got {rows - columns[given].texts} rows "
                "without one. Choose another column, or remove these rows."
            )
        return given
    # A column of texts has a text in every row. Of several, the longest texts win.
    texts = {name: c.characters / rows for name, c in columns.items() if c.texts == rows}
    best = max(texts, key=lambda name: texts[name], default=None)
    if best is None or texts[best] < SHORTEST_TEXT:
        raise ValueError(
            "DATA must hold `messages`, or `prompt` and `completion`, or `instruction` and "
            f"`output`, or `conversations`, or a column of texts, got {columns_in_words(columns)}. "
            "Rename the columns, or name the column of texts by --column."
        )
    return best
