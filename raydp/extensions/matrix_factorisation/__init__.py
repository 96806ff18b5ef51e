"""Train with noise that is correlated between the steps; see docs/mechanisms/mf.md.

It builds on: reference_data.
"""
