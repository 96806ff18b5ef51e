"""The default selection rule. The module imports nothing, so that a spec can be checked quickly."""

DEFAULT_RULE = "checked-procedure"
"""Algorithm 1 of Hu et al. 2025, unless the measured scores contradict it (`rules.CHECKED_PROCEDURE`)."""
