"""The report of a sweep while it runs, served to this machine's browser (docs/report.md)."""
