"""Scores of memorised secrets: verbatim, by log-probability, and of attributes."""
