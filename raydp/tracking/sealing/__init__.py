"""Seals of model folders, and which keys are trusted."""
