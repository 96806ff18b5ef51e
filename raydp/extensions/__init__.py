"""Subjects that the core does without: one folder each, whose docstring names its page."""
