"""The checks of the self-test on the price of a choice."""

from __future__ import annotations

from collections.abc import Callable

from raydp.extensions.private_selection.choice_checks import choice_checks
from raydp.extensions.private_selection.choice_profile_checks import choice_profile_checks
from raydp.methods.method import Method
from raydp.selftest.check_result import Check


class ChoiceChecks:
    """Checks of the ε that covers a choice. They need no method."""

    title = "price of a choice"

    def measure(self, method: Method) -> bool:
        """Return False: no method's noise is measured here."""
        return False

    def checks(self, method: Method | None, progress: Callable[[float], object]) -> list[Check]:
        """Check both bounds on ε, and the labels of the released runs."""
        return [*choice_checks(), *choice_profile_checks()]


CHECKS = ChoiceChecks()
