"""DP-MF runs the suite of methods."""

from __future__ import annotations

from raydp.testing.methods import MethodConformance


class TestDPMF(MethodConformance):
    name, written, bad = "dp_mf", {"num_bands": 3, "momentum": 0.5}, {"num_bands": 0}
