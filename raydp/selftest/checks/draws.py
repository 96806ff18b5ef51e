"""Whether noise is ever drawn again, how fine it is, and whether what a step releases lies on a public lattice."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from raydp.selftest.base import Check, check
from raydp.selftest.linear import LinearTask, linear_trainee
from raydp.selftest.observe import (
    NoisyMethod,
    noise_strategy,
    observed_plan,
    summed_updates,
    with_sgd,
    without_reference_weight,
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
"""Chance that right noise fails a check; with the fixed test key it passes always or never."""
STEPS, NEAR = 4096, 300
"""So many steps in a row of which words are drawn, and so many of which normals are, which cost more."""
FAR = sorted({2**k for k in range(8, 41)} | {2**k - 1 for k in range(12, 34)} | {10**k for k in range(3, 13)})
"""Steps further on: a counter cut to k bits, or taken modulo one of these numbers, returns to step 0 there."""
RUN_IDS, NAMES, PURPOSES = ("selftest/draws/0", "selftest/draws/1"), ("w", "v"), ("noise", "count", "mask")
COORDINATES, WIDTH, NUM_LAYERS = 8, 8, 2
LARGE = 200_000
"""Coordinates of a large parameter."""


def draw_checks(method: NoisyMethod) -> list[Check]:
    """What a step of a method draws, compared with what all other steps draw, and what becomes of it."""
    return [*repeat_checks(method), *resolution_checks(), *lattice_checks(method)]


def repeat_checks(method: NoisyMethod) -> list[Check]:
    """That no noise comes twice.

    1. Of the stream, over 1,200 steps in a row and steps as far as 2^40, two runs, two parameters, two workers that
       hold a part of a parameter each, and the positions of a large parameter.
    2. Of the updates of two runs of the method, at 300 steps in a row and, for a run that goes on from a checkpoint, at
       the steps further on.
    3. Of the words for noise, counts and batches, over 4,096 steps in a row and the steps further on.
    """
    normals, words = (np.concatenate(list(found)) for found in (_normals(), _words()))
    cosine, bound, count = _largest_cosine(_noise_of_steps(method))
    return [
        check("noise drawn twice", _repeats(np.abs(normals)), 0, 0, f"equal values among {len(normals)}"),
        check("noise drawn twice by a run", cosine, 0, bound, f"largest |cosine| of two of {count} draws, beta test"),
        check("words drawn twice", _repeats(words), 0, 0, f"equal words of {', '.join(PURPOSES)} among {len(words)}"),
    ]


def resolution_checks() -> list[Check]:
    """That normals have the resolution of double precision, also where they are added to a sum."""
    normals = KeyedStream(key=TEST_KEY, run_id=RUN_IDS[0]).normal(LARGE, step=0, purpose="noise", name="large")
    radii = normals[: LARGE // 2] ** 2 + normals[LARGE // 2 :] ** 2
    total = torch.zeros(LARGE, dtype=torch.float64)
    add_lattice_noise(total, normals, std=1.0, step=2.0**-48)  # finer than single precision
    among = f"of {LARGE} normals, those that single precision holds"
    return [
        check("normals of too few bits", _coarse(normals), 0, _most_coarse(LARGE), among),
        check("noise added with too few bits", _coarse(total.numpy()), 0, _most_coarse(LARGE), f"{among}, in a sum"),
        check(
            "normals of few radii", _repeats(np.round(radii * 2.0**36)), 0, _most_equal_radii(len(radii)),
            f"equal radii among {len(radii)} pairs, to 36 bits after the point",
        ),
    ]  # fmt: skip


def lattice_checks(method: NoisyMethod) -> list[Check]:
    """That all coordinates of an update are multiples of one power of two, which does not depend on the data."""
    first, other = (_common_power(method, seed) for seed in (0, 1))
    return [
        check(
            "lattice of an update", first, 0.5, 1.0,
            "its step over the largest that the noise pays for; about 0 for sums that are on no lattice",
        ),
        check("lattice of another data set", other / first if first else 0.0, 1, 1, "its step over the first one's"),
    ]  # fmt: skip


def _steps(in_a_row: int) -> Iterator[int]:
    """Steps in a row, and those further on."""
    return chain(range(in_a_row), (far for far in FAR if far >= in_a_row))


def _normals() -> Iterator[NDArray[np.float64]]:
    """Normals of many steps, runs, parameters, parts and positions: what a step of training asks for."""
    noise, everything = CorrelatedNoise(), Part(count=COORDINATES, start=0, stop=COORDINATES)
    for number, (run_id, name) in enumerate(product(RUN_IDS, NAMES)):
        stream = KeyedStream(key=TEST_KEY, run_id=run_id)
        for step in _steps(4 * NEAR if number == 0 else NEAR):
            yield noise.normal(stream, everything, step=step, name=name)
    stream = KeyedStream(key=TEST_KEY, run_id=RUN_IDS[0])
    for start in (0, LARGE // 3):  # two workers of a sharded model
        stop = LARGE // 3 if start == 0 else LARGE
        yield noise.normal(stream, Part(count=LARGE, start=start, stop=stop), step=0, name="large")
    for exponent in range(18, 35):  # positions of a parameter of 2^35 coordinates, far apart
        part = Part(count=2**35, start=2**exponent, stop=2**exponent + COORDINATES)
        yield noise.normal(stream, part, step=1, name="large")


def _words() -> Iterator[NDArray[np.uint64]]:
    """Words of all purposes under the same run, steps and parameter name."""
    stream = KeyedStream(key=TEST_KEY, run_id=RUN_IDS[0])
    for purpose in PURPOSES:
        for step in _steps(STEPS):
            yield stream.bits(COORDINATES, step=step, purpose=purpose, name="")


def _repeats(values: NDArray[np.generic]) -> int:
    """How many values have come before."""
    return len(values) - len(np.unique(values))


def _noise_of_steps(method: NoisyMethod) -> NDArray[np.float64]:
    """[draw, coordinate] updates of a method on empty batches, which are noise: of two runs, steps in a row, and single
    steps further on; each layer is a draw. Noise that leans on earlier steps is drawn from the first step on again, so
    that it is seen in a row only."""
    bands = len(noise_strategy(method, _plan(RUN_IDS[0], 1)))
    found = [_updates(method, run_id, 0, NEAR) for run_id in RUN_IDS]
    if bands == 1:
        found += [_updates(method, RUN_IDS[0], step, step + 1) for step in FAR if step >= NEAR]
    return np.concatenate(found).reshape(-1, WIDTH * WIDTH) if bands == 1 else _independent(method, found)


def _independent(method: NoisyMethod, found: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """[draw, coordinate] C times the noise, which is independent from step to step."""
    column = noise_strategy(method, _plan(RUN_IDS[0], 1))
    rows = [
        sum(c * updates[step - lag] for lag, c in enumerate(column) if lag <= step)
        for updates in found
        for step in range(len(updates))
    ]
    return np.stack(rows).reshape(-1, WIDTH * WIDTH)


def _plan(run_id: str, num_steps: int) -> TrialPlan:
    return observed_plan(run_id, batch_size=1, num_steps=num_steps, num_examples=2048, noise_multiplier=2.0)


def _updates(method: NoisyMethod, run_id: str, first: int, stop: int) -> NDArray[np.float64]:
    """[step, coordinate] the updates of the steps from the first on; if it is not 0, of a run that goes on."""
    context, empty = linear_trainee(WIDTH, WIDTH, NUM_LAYERS), np.zeros(0, np.int64)
    task, plan = LinearTask(torch.zeros(2, WIDTH), torch.zeros(2, WIDTH), num_reference=1), _plan(run_id, stop)
    observed = with_sgd(method, lambda step: empty)
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(folder=Path(folder), run_id=run_id)
        if first:
            optimizer = observed.optimizer(plan, list(context.parameters.values()))
            store.save(first, whole_state(context, optimizer, LocalComm()), {"history": []})
        updates = summed_updates(observed, plan, context, task, LocalComm(), store)
    return torch.stack(updates).double().numpy()


def _largest_cosine(rows: NDArray[np.float64]) -> tuple[float, float, int]:
    """The largest |cosine| of two rows, what it is at most at LEVEL, and the number of rows."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = np.abs(unit @ unit.T)
    np.fill_diagonal(cosines, 0)
    pairs = len(rows) * (len(rows) - 1) / 2
    bound = float(np.sqrt(stats.beta.isf(LEVEL / pairs, 0.5, (rows.shape[1] - 1) / 2)))
    return float(cosines.max()), bound, len(rows)


def _coarse(values: NDArray[np.float64]) -> int:
    """How many of the values single precision holds."""
    return int((values == values.astype(np.float32)).sum())


def _most_coarse(count: int) -> float:
    """Double precision has 29 bits more: that they are all 0 has a chance of 2^-29, if the values are not rounded."""
    return float(stats.binom.isf(LEVEL, count, 2.0**-27))


def _most_equal_radii(count: int) -> float:
    """Of squared radii, which are exponential with mean 2, in cells of 2^-36: the chance of a pair is 2^-38."""
    return float(stats.poisson.isf(LEVEL, count**2 / 2 * 2.0**-38))


def _common_power(method: NoisyMethod, seed: int) -> float:
    """The largest power of two of which all coordinates of the first update are multiples, over c 2^-13 / sqrt(d)."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = (torch.randn(16, 32, generator=generator) for _ in range(2))
    plain = without_reference_weight(method)
    plan, context = _plan(f"selftest/lattice/{seed}", 1), linear_trainee(32, 32, NUM_LAYERS)
    observed = with_sgd(plain, lambda step: np.arange(16))
    (update,) = summed_updates(observed, plan, context, LinearTask(inputs, targets), LocalComm())
    mantissas, exponents = np.frexp(update.double().numpy()[update.numpy() != 0])
    integers = (mantissas * 2.0**53).astype(np.int64)
    lowest = np.log2((integers & -integers).astype(np.float64)) + exponents - 53
    return float(2.0 ** lowest.min() / (method.max_grad_norm * 2.0**-13 / np.sqrt(len(update))))
