"""Ray Tune's part: trials that follow their runs, rounds, callbacks, metrics."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.tune import ResultGrid as ResultGrid
