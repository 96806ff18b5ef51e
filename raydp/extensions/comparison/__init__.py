"""Several sweeps or tables compared: spreads, methods, with and without some examples; see docs/analysis.md."""
