"""`raydp calibrate` and `raydp profile`: σ and ε without a sweep, with pages; see docs/privacy.md."""
