"""The DP training loop: `loop` holds the mechanism, and observers stand beside it."""
