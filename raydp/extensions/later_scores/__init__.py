"""Scores of models, measured after their sweep: `raydp score`; see docs/commands.md."""
