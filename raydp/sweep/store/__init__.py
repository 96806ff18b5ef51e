"""The folder of a sweep: files of runs, documents, points, and what may be shown."""
