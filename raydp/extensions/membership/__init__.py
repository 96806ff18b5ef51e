"""Membership inference: attacks, their scores and shadow models (docs/scores/membership.md).

It builds on: classification, later_scores, reference_data.
"""
