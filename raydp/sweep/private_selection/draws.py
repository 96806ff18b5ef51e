"""The draw of a private selection: the number of runs and their configurations, under the sweep's key."""

from __future__ import annotations

import numpy as np

from raydp.privacy import BinomialRuns, NumRuns, PoissonRuns, PrivateSelectionRecord, TruncatedNegativeBinomial
from raydp.privacy.mechanisms.private_selection import ASSUMED
from raydp.privacy.mechanisms.tuning import BOUNDS
from raydp.spec.document import SweepSpec
from raydp.spec.sections import NumRunsSpec
from raydp.tasks.base import TaskFacts
from raydp.training.noise.stream import KeyedStream

STREAM = "private-selection"
"""Names the draw's stream; no run has this name. The draw depends on the key alone, not on the data."""


def num_runs_of(spec: SweepSpec) -> NumRuns:
    """Return the distribution of the number of runs that a spec asks for."""
    chosen = _number(spec)
    if chosen.distribution == "poisson":
        return PoissonRuns(mean=chosen.mean)
    if chosen.distribution == "binomial":
        assert chosen.trials is not None, "the spec checks it"
        return BinomialRuns(mean=chosen.mean, trials=chosen.trials)
    return TruncatedNegativeBinomial.with_mean(chosen.mean, eta=chosen.eta)


def _number(spec: SweepSpec) -> NumRunsSpec:
    assert spec.privacy.num_runs is not None, "a private selection has a distribution of the number of runs"
    return spec.privacy.num_runs


def check_utility_is_public(spec: SweepSpec, facts: TaskFacts) -> None:
    """Check that a private selection compares its runs on public data alone.

    Raises:
        ValueError: the task's utility depends on private data.
    """
    if not facts.utility_is_public:
        raise ValueError(
            f"task.name must be a task whose utility rests on public data alone with privacy.tuning private_selection, "
            f"got {spec.task.name!r} with private held-out data. Use the task text with a public file as heldout_path "
            "and heldout_is_public: true, or set privacy.tuning: ignored."
        )


def selection_record(spec: SweepSpec, num_configurations: int, single_run_epsilon: float) -> PrivateSelectionRecord:
    """Return the part of a run's privacy record that describes the choice."""
    chosen = _number(spec)
    return PrivateSelectionRecord(
        distribution=chosen.distribution,
        mean=chosen.mean,
        eta=chosen.eta if chosen.distribution == "truncated_negative_binomial" else None,
        trials=chosen.trials,
        configurations=num_configurations,
        single_run_epsilon=single_run_epsilon,
        assumed=tuple(ASSUMED),
        bound=BOUNDS[spec.privacy.accountant],
    )


def selection_sentence(spec: SweepSpec, num_configurations: int) -> str:
    """Describe the draw in words. Nothing that was drawn is revealed."""
    chosen = _number(spec)
    kind = {
        "poisson": f"Poisson distribution with mean {chosen.mean:g}",
        "binomial": f"binomial distribution with mean {chosen.mean:g} of at most {chosen.trials} runs",
        "truncated_negative_binomial": f"truncated negative binomial distribution with mean {chosen.mean:g} and "
        f"η = {chosen.eta:g}",
    }[chosen.distribution]
    return (
        f"private selection: the number of runs is drawn from a {kind}, each run's configuration uniformly from these "
        f"{num_configurations}; only the run with the best utility is released, and its ε covers the choice"
    )


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
