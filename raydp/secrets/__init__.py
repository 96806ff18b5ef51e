"""Secrets in data, prepared before a sweep: extracted, split into prompt and continuation, and filtered."""
