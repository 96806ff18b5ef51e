"""Accountants: ε of events at a δ, calibration of σ, privacy profiles. No torch."""
