"""Cover the choice among runs by ε: release the best of a random number; see docs/privacy.md."""
