"""Pages with privacy profiles as figures, for `raydp profile -o`; see docs/privacy.md."""
