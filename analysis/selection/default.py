"""The default selection rule. The module imports nothing, so that a spec can be checked quickly."""

DEFAULT_RULE = "informed"
"""The least expected regret, given all measured scores and their errors (`rules.INFORMED`)."""
