"""The users of examples, for a guarantee that protects all examples of one user."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Users:
    """The user of every training example.

    Attributes:
        of_example: [num_examples] int64, the user of each example. Users are numbered from 0 by their first example.
        noun: a user in words: "e-mail", "author".
    """

    of_example: NDArray[np.int64]
    noun: str

    @classmethod
    def named(cls, names: Sequence[Hashable], noun: str) -> Users:
        """Number the users by their names. There is one name per example; names are any hashable values."""
        numbers: dict[Hashable, int] = {}
        of_example = [numbers.setdefault(name, len(numbers)) for name in names]
        return cls(of_example=np.array(of_example, np.int64), noun=noun)

    def sizes(self) -> NDArray[np.int64]:
        """Return [num_users] the number of examples of each user."""
        return np.bincount(self.of_example)
