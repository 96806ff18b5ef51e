"""The score `acr`: the shortest prompt after which a model says a secret (docs/scores/acr.md).

It builds on: adapters.
"""
