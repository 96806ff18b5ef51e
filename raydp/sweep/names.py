"""Names of runs for people."""

from __future__ import annotations

from collections.abc import Mapping


def run_name(run: Mapping[str, object]) -> str:
    """Return the name of a run: its configuration (b, T, η) and its seed."""
    configuration = f"(b={run['batch_size']}, T={run['num_steps']}, η={run['learning_rate']:g})"
    return f"{configuration} seed {run['seed']}"
