"""Checks of output perturbation in the self-test."""

from __future__ import annotations

from collections.abc import Callable

from raydp.extensions.output_perturbation.descent_checks import descent_checks
from raydp.extensions.output_perturbation.method import OutputPerturbation
from raydp.extensions.output_perturbation.release_checks import release_checks
from raydp.methods.method import Method
from raydp.selftest.check_result import Check


class ReleaseChecks:
    """Checks of output perturbation, whose noise is on the trained weights."""

    title = "noise on trained weights"

    def measure(self, method: Method) -> bool:
        """Return whether the method is output perturbation."""
        return isinstance(method, OutputPerturbation)

    def checks(self, method: Method | None, progress: Callable[[float], object]) -> list[Check]:
        """Check the method, or output perturbation as it is by default."""
        own = method if isinstance(method, OutputPerturbation) else OutputPerturbation()
        return [*release_checks(own), *descent_checks(own)]


CHECKS = ReleaseChecks()
