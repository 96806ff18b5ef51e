"""What turns the noisy gradient into an update: schedules of the learning rate, and Adam corrected
for the noise."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from raydp.extensions.reference_data.mmd import MMDRegularization
from raydp.extensions.reference_data.weighted import WeightedDPAdam
from raydp.methods.dp import DPSGD, DPAdam
from raydp.methods.nonprivate import NonPrivate
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import LocalComm
from raydp.training.corrected_adam import NoiseCorrectedAdam
from raydp.training.schedule import LearningRateSchedule
from raydp.training.trial import Paused
from raydp.training.trial_plan import TrialPlan
from tests.builders import toys

ADAM_BC = DPAdam(max_grad_norm=0.1, second_moment="noise_corrected")


def steps_of(
    method: DPSGD | NonPrivate, *, checkpoints: Path | None = None, pause_after: int | None = None
) -> list:
    """Train the toy, and return the learning rate of each step and all weights after it; the first
    is the start."""
    asked: list[int] = []

    def pause() -> bool:
        asked.append(1)
        return len(asked) > (pause_after or 0)

    toy = toys.context(
        microbatch_size=toys.NUM_EXAMPLES,
        pause_fn=pause if pause_after else lambda: False,
        checkpoint_seconds=1e9,
    )
    seen: list[tuple[float, torch.Tensor]] = []

    def watched(make, plan, parameters):
        made = make(plan, parameters)
        step = made.step

        def note() -> None:
            step()
            seen.append(
                (made.param_groups[0]["lr"], torch.cat([p.detach().flatten() for p in parameters]))
            )

        made.step = note
        seen.append((math.nan, torch.cat([p.detach().flatten() for p in parameters])))
        return made

    store = (
        None
        if checkpoints is None
        else CheckpointStore(folder=checkpoints, run_id=toys.PLAN.run_id)
    )
    with replaced_optimizer(method, watched):
        try:
            method.train(toys.PLAN, toy, toys.task(), LocalComm(), toys.KEY, store)
        except Paused:
            assert len(seen) - 1 == pause_after
    return seen


@contextmanager
def replaced_optimizer(method, make):
    """The frozen method with an optimizer of make(its own optimizer, plan, parameters)."""
    own = method.optimizer
    object.__setattr__(method, "optimizer", lambda plan, parameters: make(own, plan, parameters))
    try:
        yield
    finally:
        object.__delattr__(method, "optimizer")


@pytest.mark.parametrize("warmup", [0, 7])
@pytest.mark.parametrize(
    ("shape", "theirs"),
    [("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup)],
)
def test_after_the_warm_up_the_factors_are_those_of_transformers(
    shape, theirs, warmup: int
) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = theirs(optimizer, warmup, 60)
    (expected,) = scheduler.lr_lambdas
    ours = LearningRateSchedule(shape=shape, warmup_steps=warmup, num_steps=60)
    assert [ours.factor(step) for step in range(warmup, 60)] == pytest.approx(
        [expected(s) for s in range(warmup, 60)]
    )


def test_no_step_is_without_a_learning_rate_and_one_has_all_of_it() -> None:
    for shape in ("constant", "linear", "cosine"):
        for num_steps in (1, 2, 5, 40):
            for ratio in (0, 0.1, 0.5, 0.99):
                schedule = LearningRateSchedule.of(shape, ratio, num_steps)
                factors = [schedule.factor(step) for step in range(num_steps)]
                assert all(0 < factor <= 1 for factor in factors)
                assert schedule.warmup_steps >= num_steps or max(factors) == 1
    schedule = LearningRateSchedule.of("constant", 0.3, 10)
    assert [schedule.factor(step) for step in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1, 1])


@pytest.mark.parametrize("method", [DPSGD, DPAdam, NonPrivate])
def test_each_step_has_its_own_learning_rate(method: type) -> None:
    """η is 5e-3 and there are 6 steps, 2 of them of the warm-up."""
    settings = {} if method is NonPrivate else {"max_grad_norm": 0.1}
    rates = [
        rate
        for rate, _ in steps_of(
            method(learning_rate_schedule="linear", warmup_ratio=0.3, **settings)
        )[1:]
    ]
    assert rates == pytest.approx([5e-3 * f for f in (1 / 3, 2 / 3, 1, 3 / 4, 2 / 4, 1 / 4)])
    assert [rate for rate, _ in steps_of(method(**settings))[1:]] == [5e-3] * 6


def test_the_learning_rate_scales_the_update_and_the_decay() -> None:
    """The first step has the same gradient and the same noise whatever the schedule is."""
    plain, warm = DPSGD(weight_decay=0.5), DPSGD(weight_decay=0.5, warmup_ratio=0.3)
    whole, third = (
        after - before for (_, before), (_, after) in (steps_of(m)[:2] for m in (plain, warm))
    )
    assert whole.abs().max() > 1e-4
    torch.testing.assert_close(
        third, whole / 3, rtol=1e-4, atol=1e-7
    )  # a difference of weights in single precision


def test_a_paused_run_goes_on_with_the_rates_of_its_steps(tmp_path: Path) -> None:
    method = DPAdam(
        max_grad_norm=0.1, learning_rate_schedule="cosine", second_moment="noise_corrected"
    )
    whole = steps_of(method)
    parts = (
        steps_of(method, checkpoints=tmp_path, pause_after=2)
        + steps_of(method, checkpoints=tmp_path)[1:]
    )
    assert [rate for rate, _ in parts[1:]] == [rate for rate, _ in whole[1:]]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(parts, whole, strict=True))


def test_only_used_fields_are_part_of_a_runs_identity() -> None:
    for method in (DPSGD(), DPAdam(), NonPrivate()):
        assert not {"learning_rate_schedule", "warmup_ratio", "second_moment"} & set(
            method.model_dump()
        )
    used = DPAdam(
        learning_rate_schedule="cosine", warmup_ratio=0.1, second_moment="noise_corrected"
    ).model_dump()
    assert (used["learning_rate_schedule"], used["warmup_ratio"]) == ("cosine", 0.1)
    assert (used["second_moment"], used["second_moment_floor"], "eps" in used) == (
        "noise_corrected",
        0.1,
        False,
    )
    assert "eps" in DPAdam().model_dump()


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        (
            DPAdam,
            {"second_moment_floor": 0.5},
            "second_moment_floor must be left out with second_moment 'plain'",
        ),
        (DPAdam, {"second_moment": "noise_corrected", "eps": 1e-6}, "method.eps must be left out"),
        (
            DPAdam,
            {"second_moment": "noise_corrected", "clipping": "adaptive"},
            "must be plain with clipping adaptive",
        ),
        (
            WeightedDPAdam,
            {"second_moment": "noise_corrected", "reference_weight": 0.5},
            "must be plain with reference_weight",
        ),
        (DPSGD, {"second_moment": "noise_corrected"}, "Extra inputs"),
        (DPSGD, {"learning_rate_schedule": "polynomial"}, "'constant', 'linear' or 'cosine'"),
        (DPSGD, {"warmup_ratio": 1.0}, "less than 1"),
        (MMDRegularization, {"strength": 1.0, "learning_rate_schedule": "cosine"}, "'constant'"),
        (MMDRegularization, {"strength": 1.0, "warmup_ratio": 0.1}, "less than or equal to 0"),
    ],
)
def test_ignored_and_unknown_fields_are_refused(method: type, changes: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        method(**changes)


def test_corrected_adam_by_hand() -> None:
    """Against the formulas of Tang et al. 2024, Algorithm 1, in double precision with numpy."""
    rng = np.random.default_rng(0)
    start, gradients = rng.normal(size=7), rng.normal(size=(9, 7))
    rate, first, second, decay, variance, least = 0.05, 0.8, 0.95, 0.3, 0.6, 0.07
    weights, m, v = start.copy(), np.zeros(7), np.zeros(7)
    floored = 0
    for t, g in enumerate(gradients, 1):
        m, v = first * m + (1 - first) * g, second * v + (1 - second) * g**2
        moment = v / (1 - second**t) - variance
        floored += int((moment < least).sum())
        weights = weights * (1 - rate * decay)
        weights = weights - rate * (m / (1 - first**t)) / np.sqrt(np.maximum(moment, least))
    assert 10 < floored < 50, "both cases occur"
    parameter = torch.nn.Parameter(torch.from_numpy(start))
    optimizer = NoiseCorrectedAdam(
        [parameter],
        lr=rate,
        betas=(first, second),
        decay=decay,
        noise_variance=variance,
        least=least,
    )
    for g in gradients:
        parameter.grad = torch.from_numpy(g)
        optimizer.step()
    np.testing.assert_allclose(parameter.detach().numpy(), weights, rtol=1e-12)


def test_without_noise_it_is_adam() -> None:
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Parameter(torch.ones(5, dtype=torch.float64)) for _ in range(2))
    corrected = NoiseCorrectedAdam(
        [ours], lr=0.1, betas=(0.9, 0.99), decay=0.2, noise_variance=0.0, least=1e-300
    )
    adam = torch.optim.AdamW([theirs], lr=0.1, betas=(0.9, 0.99), eps=0.0, weight_decay=0.2)
    for _ in range(8):
        ours.grad = theirs.grad = torch.randn(5, dtype=torch.float64)
        corrected.step()
        adam.step()
    torch.testing.assert_close(ours, theirs)


def test_the_corrected_variance_is_that_of_the_noise_which_a_run_adds() -> None:
    """Of a run that hardly draws an example: what the optimizer gets is the noise."""
    plan = replace(toys.PLAN, num_steps=200, noise_multiplier=5.0, batch_size=1)
    variances, squares = [], []

    def listening(make, plan, parameters):
        made = make(plan, parameters)
        variances.append(made._noise_variance)
        made.step = lambda: squares.append(
            torch.cat([p.grad.flatten() for p in parameters]).square().mean()
        )
        return made

    with replaced_optimizer(ADAM_BC, listening):
        ADAM_BC.train(plan, toys.context(), toys.task(), LocalComm(), toys.KEY, None)
    assert variances == pytest.approx([(5.0 * 0.1 / 1) ** 2])
    assert float(torch.stack(squares).mean()) == pytest.approx(variances[0], rel=0.01)


class OwnOptimizer(DPSGD):
    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(parameters, lr=plan.learning_rate)


def test_traits_name_the_optimizer_whose_rates_are_warned_of() -> None:
    methods = (DPSGD(), DPAdam(), NonPrivate(), NonPrivate(optimizer_name="sgd"), OwnOptimizer())
    assert [m.traits.optimizer for m in methods] == ["sgd", "adam", "adam", "sgd", None]
