"""Scores secret by secret: intervals of means and worst cases, and subsets of the secrets; see docs/analysis.md."""
