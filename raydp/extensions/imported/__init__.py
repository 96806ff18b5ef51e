"""Models of other training code, measured as a sweep measures its own (docs/importing.md).

It builds on: later_scores.
"""
