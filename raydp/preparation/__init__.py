"""Preparation of data sets for a sweep: raw layouts, paraphrases, and the check that data are new to a base model."""
