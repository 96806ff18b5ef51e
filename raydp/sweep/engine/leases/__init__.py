"""Leases of runs and the state of slots, without Ray and without asyncio."""
