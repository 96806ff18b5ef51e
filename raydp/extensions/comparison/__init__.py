"""Several sweeps or tables compared: spreads, methods, with and without some examples.

See docs/analysis.md, and docs/scores/exposure.md for the task `without`.
"""
