"""Sign models, and publish them: folders for other programs, the Hugging Face hub, OpenSSF signatures.

See docs/registry.md.
"""
