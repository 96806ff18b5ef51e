"""DP-Weights: noise on trained weights, whose ε is only claimed (docs/mechanisms/dp_weights.md)."""
