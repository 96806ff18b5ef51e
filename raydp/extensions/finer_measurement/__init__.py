"""A finer measurement of the trained models before further seeds, if it may decide; see docs/decision.md.

It builds on: later_scores.
"""
