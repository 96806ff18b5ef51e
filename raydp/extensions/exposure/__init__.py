"""How far up a planted canary ranks among all that could stand in its place; see docs/scores/exposure.md."""
