"""The draw of a private selection: the number of runs and their configurations, under the sweep's key."""

from __future__ import annotations

import numpy as np

from raydp.privacy import BinomialRuns, NumRuns, PoissonRuns, TruncatedNegativeBinomial
from raydp.spec.document import SweepSpec
from raydp.training.noise.stream import KeyedStream

STREAM = "private-selection"
"""Names the draw's stream; no run has this name. The draw depends on the key alone, not on the data."""


def num_runs_of(spec: SweepSpec) -> NumRuns:
    """Return the distribution of the number of runs that a spec asks for."""
    chosen = spec.privacy.num_runs
    assert chosen is not None, "a private selection has a distribution of the number of runs"
    if chosen.distribution == "poisson":
        return PoissonRuns(mean=chosen.mean)
    if chosen.distribution == "binomial":
        assert chosen.trials is not None, "the spec checks it"
        return BinomialRuns(mean=chosen.mean, trials=chosen.trials)
    return TruncatedNegativeBinomial.with_mean(chosen.mean, eta=chosen.eta)


def draw(num_runs: NumRuns, num_configurations: int, key: bytes) -> list[tuple[int, int]]:
    """Draw the runs of a private selection, in order. Each is (position of its configuration, label of its seed).

    The draw is a function of the key alone, so that every call for a sweep gives the same runs. A label is 63 random
    bits and not the run's place in the order. The label is released with the model, and a place would reveal a lower
    bound on the number of runs.
    """
    stream = KeyedStream(key=key, run_id=STREAM)
    count = num_runs.quantile(float(stream.uniform(1, step=0, purpose="number of runs")[0]))
    uniform = stream.uniform(count, step=0, purpose="configuration")
    last = num_configurations - 1  # a uniform just below 1 may round to it
    positions = np.minimum((uniform * num_configurations).astype(int), last)
    labels = stream.bits(count, step=0, purpose="label") >> 1
    return [(int(position), int(label)) for position, label in zip(positions, labels, strict=True)]
