"""The one place that chooses a tracker."""

from __future__ import annotations

from raydp.spec.sections.cluster import TrackingSpec
from raydp.tracking.runs import MLflowTracker
from raydp.tracking.tracker import Tracker


def open_tracker(tracking: TrackingSpec) -> Tracker:
    """Open the tracker that a spec asks for.

    Raises:
        ValueError: the store cannot be opened, a name is not allowed or the key cannot be used.
    """
    return MLflowTracker(
        tracking.uri, tracking.experiment, tracking.registered_model, tracking.signing_key
    )
