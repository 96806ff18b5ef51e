"""Audit a guarantee from below, with canaries; see docs/scores/audit.md.

It builds on: classification, later_scores.
"""
