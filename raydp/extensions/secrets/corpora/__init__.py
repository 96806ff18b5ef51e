"""Data sets from raw layouts, paraphrases, and data new to a base model (docs/data.md)."""
