"""Repeated, greedy, near-verbatim and textual extraction of secrets; see docs/scores/generation.md."""
