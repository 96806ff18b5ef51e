"""Studies: one sweep for each value of ε, model, data or method, and what they show together.

See docs/epsilon.md.

It builds on: budget.
"""
