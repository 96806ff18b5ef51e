"""The package's data files: the embedded model (`tiny/`, made by `tools/make_tiny.py`) and the
embedded sweep."""
