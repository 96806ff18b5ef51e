"""Which configurations of a space are run, and in which order: strategies that know neither Ray nor torch."""
