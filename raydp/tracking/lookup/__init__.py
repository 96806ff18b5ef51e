"""Finds registered models by conditions."""
