"""Check that noise is never reused and fine enough, and that releases lie on a public lattice."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from raydp.selftest.check_result import Check, check
from raydp.selftest.linear import LinearTask, linear_training_context
from raydp.selftest.observe import (
    NoisyMethod,
    noise_strategy,
    observed_plan,
    summed_updates,
    with_sgd,
    without_weights,
)
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import LocalComm
from raydp.training.noise.correlated import CorrelatedNoise
from raydp.training.noise.lattice import add_lattice_noise
from raydp.training.noise.stream import TEST_KEY, KeyedStream
from raydp.training.resuming import whole_state
from raydp.training.sharding import Part
from raydp.training.trial_plan import TrialPlan

LEVEL = 1e-6
"""Probability that correct noise fails. With the test key, a check passes always or never."""
STEPS, NEAR = 4096, 300
"""Numbers of consecutive steps whose words and whose normals are drawn. Normals cost more."""
FAR = sorted(
    {2**k for k in range(8, 41)} | {2**k - 1 for k in range(12, 34)} | {10**k for k in range(3, 13)}
)
"""Single steps far beyond the consecutive ones.

A counter cut to k bits, or taken modulo one of these numbers, would repeat step 0 there.
"""
RUN_IDS, NAMES, PURPOSES = (
    ("selftest/draws/0", "selftest/draws/1"),
    ("w", "v"),
    ("noise", "count", "mask"),
)
COORDINATES, WIDTH, NUM_LAYERS = 8, 8, 2
LARGE = 200_000
"""Number of coordinates of a large parameter."""


def draw_checks(method: NoisyMethod) -> list[Check]:
    """Compare a method's draws with those of all other steps, and check how they are used."""
    return [*repeat_checks(method), *resolution_checks(), *lattice_checks(method)]


def repeat_checks(method: NoisyMethod) -> list[Check]:
    """Check that no noise repeats.

    1. In the stream: over 1,200 consecutive steps and steps up to 2^40, two runs, two parameters,
       two workers that each hold a part of a parameter, and the positions of a large parameter.
    2. In the updates of two runs of the method: at 300 consecutive steps and, for a run resumed
       from a checkpoint, at the later steps.
    3. In the words for noise, counts and batches: over 4,096 consecutive steps and the later steps.
    """
    # Values of a correct stream never repeat in practice, so a single repetition is a fault.
    normals, words = (np.concatenate(list(draws)) for draws in (_normals(), _words()))
    cosine, bound, count = _largest_cosine(_noise_of_steps(method))
    return [
        check(
            "noise drawn twice",
            _repeats(np.abs(normals)),
            0,
            0,
            f"equal values among {len(normals)}",
        ),
        check(
            "noise drawn twice by a run",
            cosine,
            0,
            bound,
            f"largest |cosine| of two of {count} draws, beta test",
        ),
        check(
            "words drawn twice",
            _repeats(words),
            0,
            0,
            f"equal words of {', '.join(PURPOSES)} among {len(words)}",
        ),
    ]


def resolution_checks() -> list[Check]:
    """Check that normals have the resolution of double precision, also after they enter a sum."""
    normals = KeyedStream(key=TEST_KEY, run_id=RUN_IDS[0]).normal(
        LARGE, step=0, purpose="noise", name="large"
    )
    # Radii of pairs show a coarse uniform that sine and cosine would hide.
    radii = normals[: LARGE // 2] ** 2 + normals[LARGE // 2 :] ** 2
    total = torch.zeros(LARGE, dtype=torch.float64)
    # Finer than single precision.
    add_lattice_noise(total, torch.from_numpy(normals), std=1.0, step=2.0**-48)
    among = f"of {LARGE} normals, those that single precision holds"
    return [
        check("normals of too few bits", _coarse(normals), 0, _most_coarse(LARGE), among),
        check(
            "noise added with too few bits",
            _coarse(total.numpy()),
            0,
            _most_coarse(LARGE),
            f"{among}, in a sum",
        ),
        check(
            "normals of few radii",
            _repeats(np.round(radii * 2.0**36)),
            0,
            _most_equal_radii(len(radii)),
            f"equal radii among {len(radii)} pairs, to 36 bits after the point",
        ),
    ]


def lattice_checks(method: NoisyMethod) -> list[Check]:
    """Check that an update consists of multiples of one power of two, whatever the data."""
    first, other = (_common_power(method, seed) for seed in (0, 1))
    return [
        check(
            "lattice of an update",
            first,
            0.5,
            1.0,
            "its step over the largest that the noise pays for; about 0 for sums that are on no "
            "lattice",
        ),
        check(
            "lattice of another data set",
            other / first if first else 0.0,
            1,
            1,
            "its step over the first one's",
        ),
    ]


def _steps(in_a_row: int) -> Iterator[int]:
    """Return consecutive steps, and the later steps."""
    return chain(range(in_a_row), (far for far in FAR if far >= in_a_row))


def _normals() -> Iterator[NDArray[np.float64]]:
    """Yield normals of many steps, runs, parameters, parts and positions, as training asks."""
    noise, everything = CorrelatedNoise(), Part(count=COORDINATES, start=0, stop=COORDINATES)
    # Runs, parameters and steps, then the parts of one large parameter.
    for number, (run_id, name) in enumerate(product(RUN_IDS, NAMES)):
        stream = KeyedStream(key=TEST_KEY, run_id=run_id)
        for step in _steps(4 * NEAR if number == 0 else NEAR):
            yield noise.normal(stream, everything, step=step, name=name).numpy()
    stream = KeyedStream(key=TEST_KEY, run_id=RUN_IDS[0])
    for start in (0, LARGE // 3):  # two workers of a sharded model
        stop = LARGE // 3 if start == 0 else LARGE
        yield noise.normal(
            stream, Part(count=LARGE, start=start, stop=stop), step=0, name="large"
        ).numpy()
    for exponent in range(18, 35):  # positions of a parameter of 2^35 coordinates, far apart
        part = Part(count=2**35, start=2**exponent, stop=2**exponent + COORDINATES)
        yield noise.normal(stream, part, step=1, name="large").numpy()


def _words() -> Iterator[NDArray[np.uint64]]:
    """Yield words of all purposes under the same run, steps and parameter name."""
    stream = KeyedStream(key=TEST_KEY, run_id=RUN_IDS[0])
    for purpose in PURPOSES:
        for step in _steps(STEPS):
            yield stream.bits(COORDINATES, step=step, purpose=purpose, name="")


def _repeats(values: NDArray[np.generic]) -> int:
    """Return how many values repeat an earlier one."""
    return len(values) - len(np.unique(values))


def _noise_of_steps(method: NoisyMethod) -> NDArray[np.float64]:
    """Return a method's updates on empty batches, which are pure noise. Shape [draw, coordinate].

    They are of two runs, at consecutive steps and at single later steps. Each layer is a draw.
    Correlated noise is generated from the first step on again, so it is only checked at consecutive
    steps.
    """
    bands = len(noise_strategy(method, _plan(RUN_IDS[0], 1)))
    updates = [_updates(method, run_id, 0, NEAR) for run_id in RUN_IDS]
    if bands == 1:
        updates += [_updates(method, RUN_IDS[0], step, step + 1) for step in FAR if step >= NEAR]
    return (
        np.concatenate(updates).reshape(-1, WIDTH * WIDTH)
        if bands == 1
        else _independent(method, updates)
    )


def _independent(method: NoisyMethod, of_runs: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return C times the noise, which is independent between steps. Shape [draw, coordinate]."""
    column = noise_strategy(method, _plan(RUN_IDS[0], 1))
    rows = [
        sum(c * updates[step - lag] for lag, c in enumerate(column) if lag <= step)
        for updates in of_runs
        for step in range(len(updates))
    ]
    return np.stack(rows).reshape(-1, WIDTH * WIDTH)


def _plan(run_id: str, num_steps: int) -> TrialPlan:
    return observed_plan(
        run_id, batch_size=1, num_steps=num_steps, num_examples=2048, noise_multiplier=2.0
    )


def _updates(method: NoisyMethod, run_id: str, first: int, stop: int) -> NDArray[np.float64]:
    """Return [step, coordinate] the updates from first to stop - 1; if first > 0, of a resume."""
    context, empty = linear_training_context(WIDTH, WIDTH, NUM_LAYERS), np.zeros(0, np.int64)
    task, plan = (
        LinearTask(torch.zeros(2, WIDTH), torch.zeros(2, WIDTH), num_reference=1),
        _plan(run_id, stop),
    )
    # Empty batches: the update is the noise alone.
    observed = with_sgd(method, lambda step: empty)
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(folder=Path(folder), run_id=run_id)
        # A checkpoint of the step before, so that the run is really resumed there.
        if first:
            optimizer = observed.optimizer(plan, list(context.parameters.values()))
            store.save(first, whole_state(context, optimizer, LocalComm()), {"history": []})
        updates = summed_updates(observed, plan, context, task, LocalComm(), store)
    return torch.stack(updates).double().numpy()


def _largest_cosine(rows: NDArray[np.float64]) -> tuple[float, float, int]:
    """Return the largest |cosine| of two rows, its bound at LEVEL, and the number of rows."""
    # Correct noise is isotropic, so the squared cosine of two rows has a beta distribution.
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = np.abs(unit @ unit.T)
    np.fill_diagonal(cosines, 0)
    pairs = len(rows) * (len(rows) - 1) / 2
    bound = float(np.sqrt(stats.beta.isf(LEVEL / pairs, 0.5, (rows.shape[1] - 1) / 2)))
    return float(cosines.max()), bound, len(rows)


def _coarse(values: NDArray[np.float64]) -> int:
    """Return how many values single precision can represent."""
    return int((values == values.astype(np.float32)).sum())


def _most_coarse(count: int) -> float:
    """Return the bound on `_coarse`.

    Double precision has 29 more bits, all 0 with probability 2^-29 if unrounded.
    """
    return float(stats.binom.isf(LEVEL, count, 2.0**-27))


def _most_equal_radii(count: int) -> float:
    """Return the bound on equal squared radii in cells of 2^-36.

    They are exponential with mean 2: 2^-38 per pair.
    """
    return float(stats.poisson.isf(LEVEL, count**2 / 2 * 2.0**-38))


def _common_power(method: NoisyMethod, seed: int) -> float:
    """Return the largest power of two that divides the first update, over c 2^-13 / sqrt(d)."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = (torch.randn(16, 32, generator=generator) for _ in range(2))
    plain = without_weights(method)
    plan, context = (
        _plan(f"selftest/lattice/{seed}", 1),
        linear_training_context(32, 32, NUM_LAYERS),
    )
    observed = with_sgd(plain, lambda step: np.arange(16))
    (update,) = summed_updates(observed, plan, context, LinearTask(inputs, targets), LocalComm())
    # The lowest set bit of each coordinate, as an exponent; the lowest of all is the lattice's.
    mantissas, exponents = np.frexp(update.double().numpy()[update.numpy() != 0])
    integers = (mantissas * 2.0**53).astype(np.int64)
    lowest = np.log2((integers & -integers).astype(np.float64)) + exponents - 53
    return float(2.0 ** lowest.min() / (method.max_grad_norm * 2.0**-13 / np.sqrt(len(update))))
