"""Hidden states below the first trained layer, computed once and kept (docs/performance.md)."""
