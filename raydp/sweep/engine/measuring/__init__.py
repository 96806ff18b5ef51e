"""Measurements of the models of a sweep after training."""
