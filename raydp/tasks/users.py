"""Whose examples are whose, for a guarantee that protects all that one user gave."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Users:
    """The user of every training example.

    Attributes:
        of_example: [num_examples] int64, users numbered from 0 by their first example.
        noun: what a user is, in words: "e-mail", "author".
    """

    of_example: NDArray[np.int64]
    noun: str

    @classmethod
    def named(cls, names: Sequence[Hashable], noun: str) -> Users:
        """From anything that tells users apart, one per example."""
        numbers: dict[Hashable, int] = {}
        of_example = [numbers.setdefault(name, len(numbers)) for name in names]
        return cls(of_example=np.array(of_example, np.int64), noun=noun)

    def sizes(self) -> NDArray[np.int64]:
        """[num_users] examples of each."""
        return np.bincount(self.of_example)
