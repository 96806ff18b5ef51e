"""Output perturbation runs the suite of methods."""

from __future__ import annotations

from typing import Any

from raydp.extensions.output_perturbation.release_checks import release_checks
from raydp.selftest.check_result import Check
from raydp.testing.methods import MethodConformance


class TestOutputPerturbation(MethodConformance):
    name, bad = "output_perturbation", {"max_input_norm": 0}

    def measured(self, method: Any) -> list[Check]:
        """Its noise is on the trained weights."""
        return release_checks(method)
