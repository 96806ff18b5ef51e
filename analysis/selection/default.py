"""The default selection rule. The module imports nothing, so that a spec can be checked quickly."""

DEFAULT_RULE = "informed"
"""The least expected regret, given all measured scores and their errors (`rules.INFORMED`)."""
WITHOUT_SCORES = ("procedure", "best-utility", "worst-utility")
"""Rules that need no score: they look at hyperparameters and utility alone."""
