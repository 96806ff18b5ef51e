"""Predicted score and utility of configurations that have not been run; see docs/analysis.md."""
