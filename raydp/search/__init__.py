"""Search strategies: which configurations of a space are run, in which order. They import neither Ray nor torch."""
