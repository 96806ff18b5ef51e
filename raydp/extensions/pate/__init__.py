"""Train on noisy votes of teachers; see docs/mechanisms/pate.md.

It builds on: classification.
"""
