"""The rule that selects where nobody names one. The module is free to import, so that a spec can be checked quickly."""

DEFAULT_RULE = "checked-procedure"
"""Algorithm 1 of Hu et al. 2025 as long as the measured scores do not contradict it (`rules.CHECKED_PROCEDURE`)."""
