"""One budget for one data set: the ledger of what sweeps release, and `raydp budget`.

See docs/privacy.md.
"""
