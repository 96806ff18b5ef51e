"""Base weights in 4 or 8 bits, frozen under an adapter (docs/adapters.md)."""
