"""How far apart the models of a sweep are, as a score (docs/scores/scoring.md)."""
