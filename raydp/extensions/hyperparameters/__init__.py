"""What hyperparameters do to score and utility: effects, importance, confounding, regressions; see docs/analysis.md."""
