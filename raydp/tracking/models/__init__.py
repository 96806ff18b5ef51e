"""Registered models as files: fetched, checked and loaded."""
