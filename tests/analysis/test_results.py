"""Corrections for several tests."""

from __future__ import annotations

import pytest

from raydp.analysis.statistics.results import holm


def test_holm_rejects_step_by_step() -> None:
    """0.01 × 4, 0.02 × 3, then never less than those before: the textbook's sequence."""
    assert holm([0.04, 0.01, 0.02, 0.5]) == pytest.approx([0.08, 0.04, 0.06, 0.5])
    assert holm([]) == []
    assert max(holm([0.3, 0.9, 0.8])) == 1.0
