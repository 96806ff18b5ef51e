"""The users of examples, for a guarantee that protects all examples of one user."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BY_COLUMN = "Set task.user_column to the column that names them"


@dataclass(frozen=True, kw_only=True)
class Users:
    """The user of every training example.

    Attributes:
        of_example: [num_examples] int64, the user of each example. Users are numbered from 0 by
            their first example.
        noun: a user in words: "e-mail", "author".
        remedy: how a spec names the users, if it has not. The texts' own sources, such as e-mails,
            then stand in for users in a caveat, and are no units. None if the spec or the data set
            names the users.
    """

    of_example: NDArray[np.int64]
    noun: str
    remedy: str | None = None

    @classmethod
    def named(cls, names: Sequence[Hashable], noun: str, *, remedy: str | None = None) -> Users:
        """Number the users by their names, one per example, which are any hashable values."""
        numbers: dict[Hashable, int] = {}
        # Each user gets a number at its first example.
        of_example = [numbers.setdefault(name, len(numbers)) for name in names]
        return cls(of_example=np.array(of_example, np.int64), noun=noun, remedy=remedy)

    def require_declared(self) -> None:
        """Raise ValueError if the spec has not named the users."""
        if self.remedy is not None:
            raise ValueError(
                f"privacy.unit must be example without task.user_column, got user. {self.remedy}"
            )

    def sizes(self) -> NDArray[np.int64]:
        """Return [num_users] the number of examples of each user."""
        return np.bincount(self.of_example)


def require_named(users: Sequence[str]) -> None:
    """Raise ValueError if a row of a data set has no user.

    Rows without a name would form one user. A person with such rows would own only a part of this
    unit, and would not be protected.
    """
    for number, user in enumerate(users, start=1):
        check_named(user, f"row {number} of the data set")


def check_named(user: str, place: str) -> None:
    """Raise ValueError if a user's name is blank."""
    if not user.strip():
        raise ValueError(
            f"task.user_column must name a user in every row, got a blank name in {place}. Give "
            "the row's user a name, or leave the row out."
        )
