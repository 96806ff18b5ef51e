"""Secrets in data, extracted, split and filtered before a sweep (docs/scores/secrets.md).

It builds on: chat, paper_data.
"""
