"""Names of runs for people."""

from __future__ import annotations

from collections.abc import Mapping

from raydp.search_spaces.settings import settings_in_words, settings_of


def run_name(run: Mapping[str, object]) -> str:
    """Return the name of a run: its configuration and its seed."""
    further = settings_in_words(settings_of(str(run.get("settings", ""))), equals="=")
    configuration = f"b={run['batch_size']}, T={run['num_steps']}, η={run['learning_rate']:g}"
    return f"({configuration}{', ' if further else ''}{further}) seed {run['seed']}"
