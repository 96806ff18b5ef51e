"""Conversations as a task, with loss on the assistant's words (docs/data.md)."""
