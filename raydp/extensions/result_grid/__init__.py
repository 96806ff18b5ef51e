"""The runs of a sweep as Ray Tune's `ResultGrid` (docs/extending.md)."""
