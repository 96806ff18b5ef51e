"""`raydp selftest`: measures whether training does what its ε assumes."""
