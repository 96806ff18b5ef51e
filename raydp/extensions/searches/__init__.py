"""Search a space in fewer runs than the grid: a look-ahead, and Optuna's samplers; see docs/search.md.

It builds on: prediction.
"""
