"""Train with reference data beside the training data; see docs/mechanisms/reference_data.md.

It builds on: classification.
"""
