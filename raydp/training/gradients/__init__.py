"""Clipped sums of per-example gradients, in little memory."""
