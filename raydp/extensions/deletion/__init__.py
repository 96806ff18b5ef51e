"""Deleting a sweep: its models and runs in MLflow, its key and its folder (docs/registry.md)."""
