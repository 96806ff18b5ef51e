"""The HTML report of a sweep: one page that loads nothing, its sections and its chart."""
