"""The runs of a sweep as Ray Tune's `ResultGrid` (docs/python_api.md)."""
