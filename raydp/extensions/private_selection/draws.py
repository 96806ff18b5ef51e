"""The draw of a private selection's runs and configurations, under the sweep's key."""

from __future__ import annotations

import numpy as np

from raydp.extensions.private_selection.num_runs import NumRuns

STREAM = "private-selection"
"""Names the draw's stream; no run has this name.

The draw depends on the key alone, not on the data.
"""


def draw(num_runs: NumRuns, num_configurations: int, key: bytes) -> list[tuple[int, int]]:
    """Draw the runs of a private selection, in order.

    Each is (position of its configuration, label of its seed).

    The draw is a function of the key alone, so that every call for a sweep gives the same runs. A
    label is 63 random bits and not the run's place in the order. The label is released with the
    model, and a place would reveal a lower bound on the number of runs.
    """
    # The spec's reader imports this module, which must not load torch.
    from raydp.training.noise.stream import KeyedStream

    stream = KeyedStream(key=key, run_id=STREAM)
    # Inverse transform sampling: the quantile of a uniform number has the distribution.
    count = num_runs.quantile(float(stream.uniform(1, step=0, purpose="number of runs")[0]))
    uniform = stream.uniform(count, step=0, purpose="configuration")
    last = num_configurations - 1  # a uniform just below 1 may round to it
    positions = np.minimum((uniform * num_configurations).astype(int), last)
    # 63 bits, so that a label fits a signed integer of 64 bits.
    labels = stream.bits(count, step=0, purpose="label") >> 1
    return [(int(position), int(label)) for position, label in zip(positions, labels, strict=True)]
