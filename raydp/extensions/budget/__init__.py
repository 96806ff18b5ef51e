"""Costs of a sweep: `raydp plan --measure`, `--simulate`, and `raydp init`, which proposes a spec.

See docs/data.md.
"""
