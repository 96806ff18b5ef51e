"""What is learnt: training data, loss and utility, and the secrets that must not leak."""
