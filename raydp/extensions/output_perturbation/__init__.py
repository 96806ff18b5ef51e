"""Train a convex model, then add noise once (docs/mechanisms/output_perturbation.md).

It builds on: classification.
"""
