"""Write the runs of a sweep for TensorBoard and Weights & Biases; see docs/run-logs.md."""
