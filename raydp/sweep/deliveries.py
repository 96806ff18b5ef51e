"""Compares a sweep's folder with the tracking store, before a resume relies on either."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.measurements import measured_later
from raydp.sweep.store.results import RunResult
from raydp.tracking import Tracker

LOGGER = logging.getLogger(__name__)


def check_deliveries(folder: SweepFolder, tracker: Tracker) -> None:
    """Remove the mark of each delivery that the store has lost.

    The run is then delivered again.

    Raises:
        ValueError: the loss or a score of training in a result.json is not the delivered figure.
    """
    marks = folder.deliveries()
    if not marks:
        return
    held, later = tracker.recorded_runs(), {m.label for m in measured_later(folder)}
    lost = []
    for run_id, mark in marks.items():
        run = held.get(run_id)
        if run is not None and (result := folder.result(run_id)) is not None:
            _check_figures(folder, result, run.metrics, later)
        # A run with another status or model in the store was delivered before its present result.
        if run is None or (run.status, run.model_uri) != (mark.status, mark.model_uri):
            folder.remove_delivery(run_id)
            lost.append(run_id)
    if lost:
        LOGGER.warning(
            "the tracking store has lost %d of %d delivered runs, which are delivered again",
            len(lost),
            len(marks),
        )


def _check_figures(
    folder: SweepFolder, result: RunResult, delivered: Mapping[str, float], later: set[str]
) -> None:
    """Refuse figures, which a selection would follow, that differ from those delivered."""
    figures = {"utility_loss": result.utility_loss}
    # A later measurement has replaced its score in the store, so this score may differ.
    figures |= {f"score.{name}": m.value for name, m in result.scores.items() if name not in later}
    for name, value in figures.items():
        if name in delivered and delivered[name] != value:
            raise ValueError(
                f"{name} of the result in {folder.trial(result.run_id)} must be the figure that "
                f"MLflow has, {delivered[name]!r}, got {value!r}. Restore the file, or start a new "
                "sweep."
            )
