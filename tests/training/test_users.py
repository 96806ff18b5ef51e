"""With the user as the unit of privacy, users are drawn, and the sum of a user's gradients is
clipped."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from raydp.methods.nonprivate import NonPrivate
from raydp.tasks.users import Users
from raydp.training.comm import LocalComm
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.microbatches import Units
from raydp.training.gradients.thresholds import Clipping
from tests.builders import toys
from tests.training.test_clipping import MODELS, TOLERANCE, batch_of, losses

pytestmark = pytest.mark.extensions("nf4", "int8", "soft prompt", "prefix")

OF_EXAMPLE = [
    i * i % 9 for i in range(toys.NUM_EXAMPLES)
]  # users of different numbers of examples, mixed
NUM_USERS = len(set(OF_EXAMPLE))
PLAN = replace(toys.PLAN, num_examples=NUM_USERS, batch_size=2)
CUT_TOLERANCE = 1e-5  # as in test_invariants


@pytest.fixture(scope="module")
def task():
    return replace(toys.task(), users=Users.named(OF_EXAMPLE, "user")).by_user()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("per_unit", [1, 2, 3])
def test_the_sum_of_a_users_gradients_is_clipped(name: str, per_unit: int) -> None:
    model, batch = MODELS[name](), batch_of(6, 11)
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    own = [_flat(model, parameters, rows) for rows in torch.arange(6).split(per_unit)]
    norms = torch.stack([g.norm() for g in own])
    c = 0.9 * float(norms.median())  # the median is clipped, and the smallest may not be
    expected = sum(g * min(1.0, c / float(n)) for g, n in zip(own, norms, strict=True))

    total = {n: torch.zeros_like(p) for n, p in parameters.items()}
    engine = ClippedGradients(model, parameters, Clipping(c))
    reported = engine.accumulate(lambda: losses(model, batch), total, per_unit)
    flat = torch.cat([t.flatten() for t in total.values()]).double()
    assert float((flat - expected).norm() / expected.norm()) <= TOLERANCE
    assert reported.shape == (2, 6 // per_unit)
    torch.testing.assert_close(reported[1].double(), norms, rtol=TOLERANCE, atol=0)
    mean = losses(model, batch).detach().view(-1, per_unit).mean(1)
    torch.testing.assert_close(reported[0], mean, rtol=1e-6, atol=0)  # a few roundings of fp32


def _flat(
    model: nn.Module, parameters: dict[str, nn.Parameter], rows: torch.Tensor
) -> torch.Tensor:
    """Autograd's own gradient of one user, float64."""
    grads = torch.autograd.grad(
        losses(model, batch_of(6, 11))[rows].sum(), list(parameters.values())
    )
    return torch.cat([g.flatten() for g in grads]).double()


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    size=st.none() | st.integers(1, 9),
    ranks=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_micro_batches_hold_every_drawn_user_once_and_whole(sizes, size, ranks, seed) -> None:
    rng = np.random.default_rng(seed)
    units = Units(
        offsets=np.concatenate([[0], np.cumsum(sizes)]), lengths=rng.integers(2, 700, sum(sizes))
    )
    drawn = np.flatnonzero(rng.random(len(sizes)) < 0.6)
    seen = []
    for rank in range(ranks):
        comm = LocalComm()
        comm.rank, comm.world_size = rank, ranks
        for examples, count in units.microbatches(units.share(drawn, comm), size, 1024):
            assert size is None or len(examples) <= max(size, count)
            for own in examples.reshape(-1, count):
                unit = int(np.searchsorted(units.offsets, own[0], side="right")) - 1
                assert own.tolist() == units.examples(np.array([unit])).tolist()
                seen.append(unit)
    assert sorted(seen) == [i for i in drawn if sizes[i]]


def test_examples_come_in_the_order_of_their_users(task) -> None:
    plain = toys.task()
    assert task.unit_sizes().tolist() == [OF_EXAMPLE.count(u) for u in dict.fromkeys(OF_EXAMPLE)]
    order = [
        i for u in dict.fromkeys(OF_EXAMPLE) for i in range(toys.NUM_EXAMPLES) if OF_EXAMPLE[i] == u
    ]
    for place, i in enumerate(order):
        assert (
            task.batch(np.array([place])).input_ids == plain.batch(np.array([i])).input_ids
        ).all()
    facts = task.facts()
    assert (facts.num_units, facts.num_examples) == (NUM_USERS, toys.NUM_EXAMPLES)
    assert facts.content_hash != plain.facts().content_hash


def _train(task, comm=None, microbatch_size=None, method=toys.METHOD) -> dict[str, torch.Tensor]:
    toy = toys.context(microbatch_size=microbatch_size)
    _train.history = method.train(PLAN, toy, task, comm or LocalComm(), toys.KEY, None).history
    return {name: p.detach().clone() for name, p in toy.parameters.items()}


@pytest.mark.parametrize("method", [toys.METHOD, NonPrivate()], ids=["private", "not private"])
def test_users_are_drawn_and_how_they_are_cut_does_not_matter(task, method) -> None:
    whole = _train(task, microbatch_size=toys.NUM_EXAMPLES, method=method)
    drawn = [len(method.batch_indices(PLAN, toys.KEY, step)) for step in range(PLAN.num_steps)]
    assert (
        max(max(method.batch_indices(PLAN, toys.KEY, s), default=0) for s in range(PLAN.num_steps))
        < NUM_USERS
    )
    assert [h["drawn"] for h in _train.history] == drawn
    for size in (1, None):
        assert (
            toys.distance(whole, _train(task, microbatch_size=size, method=method)) <= CUT_TOLERANCE
        )


def test_one_user_moves_the_sum_by_at_most_c(task) -> None:
    """Through the loop, with all other users in and a threshold far below every gradient."""
    c, sums = 1e-3, []
    for users in ([0, 1, 2, 3], [0, 1, 2]):
        toy = toys.context()
        total = {name: torch.zeros_like(p) for name, p in toy.parameters.items()}
        engine = ClippedGradients(toy.model, toy.parameters, Clipping(c))
        for examples, per_unit in Units.of(task).microbatches(np.array(users), None, 1024):
            batch = task.batch(examples)
            norms = engine.accumulate(
                partial(task.per_example_loss, toy.model, batch), total, per_unit
            )[1]
            assert (norms > 10 * c).all()
        sums.append(torch.cat([t.flatten() for t in total.values()]).double())
    change = float((sums[0] - sums[1]).norm())
    assert math.isclose(change, c, rel_tol=1e-5)  # the clipping allowance and fp32 sums


def test_a_task_without_users_says_so() -> None:
    with pytest.raises(ValueError, match=r"privacy.unit must be example .* task.user_column"):
        toys.task().by_user()
