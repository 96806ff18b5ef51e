"""Randomness spaces: the sets that continuations of planted secrets are drawn from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Digits:
    """All strings of num_digits decimal digits after a fixed text (see raydp.tasks.base.Space).

    Attributes:
        num_digits: number of digits.
        before: text before the digits in every continuation, such as a space.
    """

    num_digits: int
    before: str = ""

    @property
    def size(self) -> int:
        size: int = 10**self.num_digits
        return size

    def continuation(self, index: int) -> str:
        return f"{self.before}{index:0{self.num_digits}d}"
