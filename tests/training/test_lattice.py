"""What a step releases is a lattice point, the lattice is public, and rounding to it is paid
for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raydp.methods.dp import DPSGD
from raydp.training.comm import LocalComm
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.thresholds import Clipping
from raydp.training.noise import adding, lattice
from raydp.training.noise.lattice import (
    LATTICE_SHARE,
    NOISE_WIDENING,
    add_lattice_noise,
    lattice_step,
    noisy_count,
)
from raydp.training.noise.stream import KeyedStream
from raydp.training.trial_plan import TrialPlan
from tests.builders import toys
from tests.selftest.faults import rewrite

SIGMA, C = 0.7, 0.3
BATCH_SIZE = 8
"""A power of two, so that the division by it is exact."""
finite = st.floats(-1e3, 1e3, allow_subnormal=False)


class Seen(DPSGD):
    """DP-SGD that keeps what the optimizer is given, times b: the released sum."""

    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        optimizer = super().optimizer(plan, parameters)
        optimizer.register_step_pre_hook(
            lambda *_: released.append(
                [p.grad.double().numpy() * plan.batch_size for p in parameters]
            )
        )
        return optimizer


released: list[list[np.ndarray]] = []


def released_sum(
    num_examples: int = toys.NUM_EXAMPLES,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What one step releases, and the clipped sum it is made of, per parameter."""
    plan = replace(
        toys.PLAN, run_id="lattice", num_steps=1, noise_multiplier=SIGMA, batch_size=BATCH_SIZE,
        num_examples=num_examples,
    )  # fmt: skip
    method, task, toy = Seen(max_grad_norm=C), toys.task(num_examples), toys.context()
    total = {n: torch.zeros_like(p) for n, p in toy.parameters.items()}
    engine = ClippedGradients(toy.model, toy.parameters, Clipping(C))
    batch = task.batch(method.batch_indices(plan, toys.KEY, 0))
    engine.accumulate(lambda: task.per_example_loss(toy.model, batch), total)
    released.clear()
    method.train(plan, toy, task, LocalComm(), toys.KEY, None)
    return released[0], [t.double().numpy() for t in total.values()]


def public_step(c: float, d: int) -> Fraction:
    """The largest power of two Δ with Δ² d <= (c / 2^13)², in exact arithmetic."""
    step = Fraction(1)
    while step**2 * d > (Fraction(c) / 2**13) ** 2:
        step /= 2
    while (2 * step) ** 2 * d <= (Fraction(c) / 2**13) ** 2:
        step *= 2
    return step


def on_the_lattice(parts: list[np.ndarray]) -> bool:
    """Whether all are integers times the public step, of no common divisor: a coarser lattice is
    another one."""
    step = float(public_step(C, sum(part.size for part in parts)))
    integers = np.concatenate([part.ravel() for part in parts]) / step
    return (
        bool((integers == np.round(integers)).all())
        and math.gcd(*integers.astype(np.int64).tolist()) == 1
    )


@given(st.floats(1e-12, 1e12), st.integers(1, 10**11))
def test_the_step_is_the_largest_power_of_two_that_costs_its_share(c: float, d: int) -> None:
    step = lattice_step(c, d)
    assert math.frexp(step)[0] == 0.5, "a power of two"
    assert step * math.sqrt(d) <= c * LATTICE_SHARE * (1 + 2**-50)  # two roundings of the product
    assert 2 * step * math.sqrt(d) >= c * LATTICE_SHARE * (1 - 2**-50)


def test_a_step_releases_multiples_of_a_public_lattice_step() -> None:
    whole, sums = released_sum()
    assert on_the_lattice(whole)
    assert on_the_lattice(released_sum(toys.NUM_EXAMPLES - 9)[0]), "other data, the same lattice"
    assert not on_the_lattice(sums), "without rounding no sum of gradients lies there"


@pytest.mark.parametrize(
    ("owner", "name", "change"),
    [
        (adding, "add_noise", ("add_lattice_noise(gradient, noise, std=std, step=lattice)",
                              "gradient += (noise * std).to(gradient).view_as(gradient)")),
        (lattice, "add_lattice_noise", ("* (std / step)).round_()", "* (std / step))")),
        (lattice, "add_lattice_noise", (".mul_(1 / step).round_()", ".mul_(1 / step)")),
        (adding, "add_noise", ("lattice_step(threshold,",
                              "lattice_step(float(max(map(torch.norm, total.values()))) / 7,")),
        (adding, "add_noise", ("lattice_step(threshold,", "lattice_step(threshold * 1e3,")),
        (adding, "add_noise", ("sum(part.count for part in parts.values())", "1")),
    ],
    ids=["added in fp32", "noise not rounded", "sum not rounded", "a step from the data", "too coarse", "d left out"],
)  # fmt: skip
def test_noise_that_is_not_on_the_lattice_is_seen(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, change: tuple[str, str]
) -> None:
    rewrite(monkeypatch, owner, name, change)
    monkeypatch.setattr(adding, name, getattr(owner, name))  # imported by name
    assert not on_the_lattice(released_sum()[0])


def test_the_noise_is_the_streams_computed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """release = Δ (round(S / Δ) + round(std N / Δ)) in exact arithmetic, parameter by parameter;
    added in pieces."""
    monkeypatch.setattr(lattice, "CACHED", {"cpu": 13})
    parts, sums = released_sum()
    step = public_step(C, sum(part.size for part in parts))
    std = Fraction(SIGMA) * Fraction(C) * (1 + Fraction(1, 2**12))
    stream, names = KeyedStream(key=toys.KEY, run_id="lattice"), sorted(toys.context().parameters)
    for name, part, total in zip(names, parts, sums, strict=True):
        noise = stream.normal(part.size, step=0, purpose="noise", name=name)
        for i in range(0, part.size, 7):
            expected = round(Fraction(total.flat[i]) / step) + round(
                std * Fraction(noise[i]) / step
            )
            assert part.flat[i] == float(np.float32(expected * step))


def differences(add_noise_fn: Callable[..., None], one: float, two: float) -> set[float]:
    """Release of a sum less release of its neighbour, over the step, for many draws of noise."""
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=500))
    sums = [torch.full((500,), value, dtype=torch.float64) for value in (one, two)]
    for total in sums:
        add_noise_fn(total, noise, std=1.0, step=2.0**-20)
    return set(((sums[0] - sums[1]) * 2**20).tolist())


@given(finite, finite)
def test_neighbours_have_the_same_support(one: float, two: float) -> None:
    """The release of one is that of the other, shifted by the same whole number of steps for every
    draw of noise: so what one can release, bit for bit, the other can."""
    (shift,) = differences(add_lattice_noise, one, two)
    assert shift.is_integer()
    assert (
        abs(shift - (one - two) * 2**20) <= 1 + 1e-6
    )  # each is rounded by at most 1/2; 1e-6: fp64 of the product


def test_plain_sums_of_floats_do_not_have_it() -> None:
    """What the lattice is there for, in double precision: the low-order bits of sum + noise depend
    on the sum."""

    def plain(gradient: torch.Tensor, noise: torch.Tensor, *, std: float, step: float) -> None:
        gradient += noise * std

    assert len(differences(plain, 0.3, 0.1)) > 1


@given(st.integers(1, 300), st.floats(1e-3, 1e3), st.integers(0, 2**32 - 1))
def test_rounding_the_sum_adds_at_most_its_share_to_the_sensitivity(
    d: int, c: float, seed: int
) -> None:
    """Also where every coordinate of one sum is rounded up and of the other down."""
    rng = np.random.default_rng(seed)
    step = lattice_step(c, d)
    direction = rng.normal(size=d)
    shift = direction * (c / np.linalg.norm(direction))
    sums = rng.normal(size=d) * 10 * c
    for one in (sums, np.round(sums / step) * step + step / 2 * (1 - 1e-6) * -np.sign(shift)):
        rounded = [torch.from_numpy(one.copy()), torch.from_numpy(one + shift)]
        for total in rounded:
            add_lattice_noise(total, torch.zeros(d, dtype=torch.float64), std=1.0, step=step)
        apart = float((rounded[0] - rounded[1]).norm())
        assert apart <= (c + step * math.sqrt(d)) * (1 + 1e-12)  # fp64 of the norm
        assert apart <= c * (1 + LATTICE_SHARE) * (1 + 1e-12)


def test_the_noise_pays_for_rounding_and_for_clipping_in_single_precision() -> None:
    """1e-5: what docs/privacy.md allows a clipped gradient to be longer than c."""
    assert 1 + LATTICE_SHARE + 1e-5 <= NOISE_WIDENING


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.floats(-1e6, 1e6))
def test_a_noisy_count_lies_on_a_lattice_that_every_count_lies_on(
    twice: int, more: int, noise: float
) -> None:
    one, two = noisy_count(twice / 2, noise), noisy_count((twice + more) / 2, noise)
    assert (one * 2**20).is_integer()
    assert two - one == more / 2
    assert (
        abs(one - twice / 2 - noise) <= 2**-21 + 2**-22
    )  # half a step, and fp64 of values up to 1e9
