"""Publish models: folders for other programs, the Hugging Face hub and OpenSSF signatures.

See docs/registry.md.
"""
