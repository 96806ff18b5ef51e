"""Check that a row more keeps other rows in the training, the held-out or the reference data."""

from __future__ import annotations

from collections.abc import Callable

from raydp.extensions.classification.checks import table_rows
from raydp.methods.base import Method
from raydp.selftest.base import Check
from raydp.selftest.checks.divisions import moved_rows


class ReferenceChecks:
    """Checks of the task `with_reference`."""

    title = "reference rows"

    def measure(self, method: Method) -> bool:
        """Return False: these are no checks of a method."""
        return False

    def checks(self, method: Method | None, progress: Callable[[float], object]) -> list[Check]:
        """Check the task on a table."""
        return [
            moved_rows(
                "with_reference",
                lambda folder, rows: {
                    "name": "with_reference",
                    "of": table_rows(folder, rows),
                    "fraction": 0.4,
                },
            )
        ]


CHECKS = ReferenceChecks()
