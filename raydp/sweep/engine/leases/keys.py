"""The keys of runs in a queue, which several sweeps may share."""

from __future__ import annotations


def key_of(sweep: str, run_id: str) -> str:
    """Return the key of a run of a sweep; the sweep that has a queue for itself has no name."""
    return f"{sweep}/{run_id}" if sweep else run_id


def split_key(key: str) -> tuple[str, str]:
    """Return the name of the sweep, empty for a sweep alone, and the run's id."""
    sweep, _, run_id = key.rpartition("/")
    return sweep, run_id
