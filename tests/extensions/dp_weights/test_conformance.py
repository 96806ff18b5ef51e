"""DP-Weights runs the suite of methods."""

from __future__ import annotations

from raydp.testing.methods import MethodConformance


class TestDPWeights(MethodConformance):
    name, written = "dp_weights", {"max_grad_norm": 0.7, "formula": "algorithm_2"}
