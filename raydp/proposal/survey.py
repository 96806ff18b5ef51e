"""The properties of a file or data set that a spec depends on. Of its content only a sample of rows is kept."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Literal

from raydp.io.locations import local_copy
from raydp.search_spaces.names import columns_in_words
from raydp.tasks.chat.conversations import FORMS, Form, conversation_of, fitting_forms
from raydp.tasks.chat.templates import ChatTemplate, TemplateName
from raydp.tasks.data_sets import rows_of_data_set
from raydp.tasks.reading import is_file_of_rows, read_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLE_ROWS = 2000
"""Number of rows whose tokens are counted."""
FEW_TO_SPLIT = 100
"""Below so many units, a tenth of them that is drawn by hash may be none."""
SHORTEST_TEXT = 20
"""Mean length in characters below which a column is no column of texts."""
_PEOPLE = ("user", "author", "customer", "client", "patient", "person", "member", "account", "speaker")
USER_NAMES = frozenset(
    [*_PEOPLE, *(f"{who}_id" for who in _PEOPLE), "userid", "username", "author_index", "sender", "from"]
)
"""Usual names of columns that name whose row it is. Other names are not looked at: they may be private text."""
LONGEST_USER = 200
FEWEST_USERS = 10
"""A column with fewer values names roles, such as speakers, rather than users."""


@dataclass(frozen=True, kw_only=True)
class UserColumn:
    """A column that may name the user of each row: its name, the number of users, and the most rows of one user."""

    name: str
    num_users: int
    most_rows: int

    @property
    def unit(self) -> Literal["example", "user"]:
        """Return the unit of privacy to propose: a user whose rows are several is not protected by one row's ε."""
        return "user" if self.most_rows > 1 else "example"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The form and size of the data.

    Attributes:
        form: the form of the conversations; None for a column of texts.
        column: the column of texts; None for conversations.
        num_rows: number of rows.
        num_distinct: number of rows that differ in what is trained on.
        user_columns: columns that name the user of every row, the one with the most users first.
        sample: rows with their places in the data, drawn without replacement.
    """

    form: Form | None
    column: str | None
    num_rows: int
    num_distinct: int
    user_columns: tuple[UserColumn, ...]
    sample: tuple[tuple[str, Mapping[str, object]], ...]

    def heldout_fraction(self, users: UserColumn | None) -> float:
        """Return the share of the users or rows to evaluate on: a tenth, or more where a tenth may be none of them."""
        divided = self.num_rows if users is None else users.num_users
        return 0.1 if divided >= FEW_TO_SPLIT else 0.25

    def lengths(self, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Return the numbers of tokens of the sample's rows, as the task will write them, in ascending order."""
        template = ChatTemplate(tokenizer, self.template(tokenizer))
        texts = [self._text(place, row, template) for place, row in self.sample]
        return sorted(len(ids) for ids in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"])

    def template(self, tokenizer: PreTrainedTokenizerBase) -> TemplateName | None:
        """Return the template that the spec must name; None if the task's own choice fits the model."""
        if self.form is None or tokenizer.chat_template:
            return None
        plain = self.form != "messages" and all(
            isinstance(row[c], str) for _, row in self.sample for c in FORMS[self.form]
        )
        return None if plain else "chatml"

    def _text(self, place: str, row: Mapping[str, object], template: ChatTemplate) -> str:
        if self.form is None:
            return str(row[str(self.column)])
        conversation = conversation_of(row, self.form, "DATA", place)
        return "".join(part.text for part in template.parts(conversation, place))


@dataclass
class _Column:
    """Counts of a column's values over the rows."""

    texts: int = 0
    characters: int = 0
    names: Counter[int] = field(default_factory=Counter)
    named: int = 0


def survey(
    data: str, *, column: str | None = None, user_column: str | None = None, max_rows: int | None = None
) -> Survey:
    """Look at data.

    Args:
        data: a file, a saved data set, or the name of a data set on the hub.
        column: the column of texts; by default the rows are conversations if they have their columns, and else the
            column with the longest texts.
        user_column: the column of users; by default those with a usual name are looked at.
        max_rows: read so many rows at most.

    Raises:
        ValueError: the data are missing or malformed, have fewer than two rows, no column of texts, or a row
            without a user in the given column.
    """
    columns: dict[str, _Column] = {}
    sample: list[tuple[str, Mapping[str, object]]] = []
    rng, rows, seen = random.Random(0), 0, Counter[int]()
    form: Form | None = None
    for place, row in _rows(data, max_rows):
        if not rows and column is None:
            form = _form_of(row)
        trained_on = [row.get(c) for c in sorted(_trained_columns(row, form, column))]
        seen[hash(json.dumps(trained_on, default=str))] += 1
        for name, value in row.items():
            counts = columns.setdefault(name, _Column())
            if isinstance(value, str):
                counts.texts += 1
                counts.characters += len(value)
            may_name = name == user_column if user_column else name in USER_NAMES
            if may_name and isinstance(value, str | int) and 0 < len(str(value).strip()) <= LONGEST_USER:
                counts.named += 1
                counts.names[hash(str(value))] += 1
        # Each row is in the sample with the same probability (Vitter 1985, algorithm R).
        if rows < SAMPLE_ROWS:
            sample.append((place, row))
        elif (replaced := rng.randrange(rows + 1)) < SAMPLE_ROWS:
            sample[replaced] = (place, row)
        rows += 1
    if rows < 2:
        raise ValueError(f"DATA must have at least 2 rows, got {rows}. Give more data.")
    if form is None:
        column = _text_column(columns, rows, column)
    if user_column is not None:
        _require_users(columns, rows, user_column)
    users = [
        UserColumn(name=name, num_users=len(counts.names), most_rows=max(counts.names.values()))
        for name, counts in columns.items()
        if counts.named == rows and (name == user_column or (len(counts.names) >= FEWEST_USERS and name != column))
    ]
    return Survey(
        form=form,
        column=None if form else column,
        num_rows=rows,
        num_distinct=len(seen),
        user_columns=tuple(sorted(users, key=lambda u: -u.num_users)),
        sample=tuple(sample),
    )


def _rows(data: str, max_rows: int | None) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield rows with their places."""
    local = str(local_copy(data, "DATA"))
    if is_file_of_rows(local):
        yield from ((f"line {line}", row) for line, row in islice(read_rows(local, "DATA"), max_rows))
    else:
        yield from rows_of_data_set(local, "DATA", config=None, split=None, revision=None, max_rows=max_rows)


def _form_of(row: Mapping[str, object]) -> Form | None:
    """Return the form of conversations that the row has; None for other rows.

    Raises:
        ValueError: the row has several forms.
    """
    fitting = fitting_forms(row)
    if len(fitting) > 1:
        raise ValueError(
            f"DATA must hold rows of one form, got the columns of {' and '.join(fitting)}. Remove the columns of one."
        )
    return fitting[0] if fitting else None


def _trained_columns(row: Mapping[str, object], form: Form | None, column: str | None) -> set[str]:
    """Return the columns of a row that are trained on; all of them while the column of texts is not known."""
    if form is not None:
        return {*FORMS[form], *({"input"} if form == "instruction" else ())}
    return {column} if column is not None else set(row)


def _require_users(columns: Mapping[str, _Column], rows: int, given: str) -> None:
    """Raise ValueError unless every row names a user in the given column."""
    if given not in columns:
        raise ValueError(
            f"--user-column must be a column of the data, got {given!r}. They have {columns_in_words(columns)}."
        )
    if (blank := rows - columns[given].named) > 0:
        raise ValueError(
            f"--user-column must name a user in every row, got {blank} rows without. Name their users, or leave these "
            "rows out."
        )


def _text_column(columns: Mapping[str, _Column], rows: int, given: str | None) -> str:
    """Return the column of texts.

    Raises:
        ValueError: there is none, or the given one is missing or holds something else.
    """
    if given is not None:
        if given not in columns:
            raise ValueError(
                f"--column must be a column of the data, got {given!r}. They have {columns_in_words(columns)}."
            )
        if columns[given].texts < rows:
            raise ValueError(
                f"--column must hold a text in every row, got {rows - columns[given].texts} rows without one. Choose "
                "another column, or remove these rows."
            )
        return given
    texts = {name: c.characters / rows for name, c in columns.items() if c.texts == rows}
    best = max(texts, key=lambda name: texts[name], default=None)
    if best is None or texts[best] < SHORTEST_TEXT:
        raise ValueError(
            "DATA must hold `messages`, or `prompt` and `completion`, or `instruction` and `output`, or "
            f"`conversations`, or a column of texts, got {columns_in_words(columns)}. Rename the columns, or name the "
            "column of texts by --column."
        )
    return best
