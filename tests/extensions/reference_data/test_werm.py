"""Weighted empirical risk minimisation, private and not, against autograd of the weighted loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from raydp.extensions.classification.labelled import ClassificationTask
from raydp.extensions.reference_data.task import WithReferenceTask
from raydp.extensions.reference_data.weighted import WeightedDPAdam, WeightedDPSGD
from raydp.extensions.reference_data.werm import WeightedRiskMinimization, heldout_loss
from raydp.methods.dp import DPSGD, DPAdam
from raydp.methods.nonprivate import NonPrivate
from raydp.selftest.linear import LinearTask, linear_training_context
from raydp.selftest.observe import NO_NOISE
from raydp.testing.points import network_context
from raydp.training.comm import LocalComm
from raydp.training.noise.lattice import LATTICE_SHARE
from raydp.training.trial_plan import TrialPlan

KEY = bytes(32)
WEIGHTS = (0.0, 0.2, 0.5, 0.9, 1.0)


@pytest.fixture(scope="module")
def task() -> ClassificationTask:
    """71 training and 18 reference digits."""
    return WithReferenceTask(of={"name": "digits", "heldout_fraction": 0.95}, fraction=0.2).build(
        None
    )


def trained(
    method: NonPrivate | DPSGD, task: ClassificationTask, **changes: object
) -> dict[str, torch.Tensor]:
    context = network_context(microbatch_size=7)
    n = task.facts().num_units
    plan = TrialPlan(
        run_id="werm",
        batch_size=n,
        num_steps=1,
        learning_rate=0.5,
        seed=0,
        num_examples=n,
        noise_multiplier=NO_NOISE,
    )
    method.train(replace(plan, **changes), context, task, LocalComm(), KEY, None)
    return {name: p.detach().clone() for name, p in context.parameters.items()}


def expected(
    task: ClassificationTask, weight: float, shrink: Callable[[float], float]
) -> dict[str, torch.Tensor]:
    """One step of gradient descent on (1 - w) L_T + w L_R, each example's gradient scaled by a
    function of its norm."""
    context = network_context()
    model, parameters = context.model, context.parameters
    facts = task.facts()
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for i in range(facts.num_units):
        own = (
            weight / facts.num_reference
            if i >= facts.num_training
            else (1 - weight) / facts.num_training
        )
        loss = task.per_example_loss(model, task.batch(np.array([i])))[0]
        found = torch.autograd.grad(loss, list(parameters.values()))
        norm = float(torch.cat([g.flatten() for g in found]).norm())
        for name, g in zip(parameters, found, strict=True):
            total[name] += own * shrink(norm) * g
    return {name: (p - 0.5 * total[name]).detach() for name, p in parameters.items()}


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_step_on_all_examples_follows_the_gradient_of_the_weighted_loss(
    task, weight: float
) -> None:
    method = WeightedRiskMinimization(reference_weight=weight, optimizer_name="sgd")
    assert distance(trained(method, task), expected(task, weight, lambda norm: 1.0)) < 1e-6


@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_private_step_follows_the_weighted_sum_of_clipped_gradients(task, weight: float) -> None:
    """c = 1 clips every gradient here; the sum lies on the lattice, which is the wider the larger
    the scale."""
    method = WeightedDPSGD(max_grad_norm=1.0, reference_weight=weight)
    found = distance(trained(method, task), expected(task, weight, lambda norm: min(1.0, 1 / norm)))
    assert found < 0.5 * LATTICE_SHARE


def test_noise_is_in_proportion_to_the_larger_weight(task) -> None:
    """σ = 30: std of the update ησc scale / n in each of 650 coordinates; 4 standard errors are 11
    %."""
    n, sigma = task.facts().num_units, 30.0
    for weight in (0.2, 0.9):
        method = WeightedDPSGD(max_grad_norm=1.0, reference_weight=weight)
        pair = [trained(method, task, noise_multiplier=s) for s in (sigma, NO_NOISE)]
        noise = torch.cat([(pair[0][name] - pair[1][name]).flatten() for name in pair[0]])
        scale = max(
            (1 - weight) * n / task.facts().num_training, weight * n / task.facts().num_reference
        )
        assert float(noise.std()) == pytest.approx(0.5 * sigma * scale / n, rel=0.11)


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (WeightedDPSGD, DPSGD()),
        (WeightedDPAdam, DPAdam()),
        (WeightedRiskMinimization, NonPrivate()),
    ],
)
def test_weights_in_proportion_to_the_sizes_are_no_weights(task, kind, plain) -> None:
    facts = task.facts()
    weight = facts.num_reference / facts.num_units
    options = {"num_steps": 5, "batch_size": 30, "learning_rate": 0.01}
    found = [trained(method, task, **options) for method in (kind(reference_weight=weight), plain)]
    assert distance(*found) < 1e-5


@pytest.mark.parametrize("kind", [WeightedDPSGD, WeightedRiskMinimization])
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_set_without_weight_leaves_no_trace(task, kind, weight: float) -> None:
    first = task.facts().num_training
    inputs = task.train.inputs.copy()
    inputs[first:] += weight == 0
    inputs[:first] += weight == 1
    other = replace(task, train=replace(task.train, inputs=inputs))
    options = {"num_steps": 5, "batch_size": 30, "noise_multiplier": 1.0}
    found = [trained(kind(reference_weight=weight), t, **options) for t in (task, other)]
    assert distance(*found) == 0
    halves = [trained(kind(reference_weight=0.5), t, **options) for t in (task, other)]
    assert distance(*halves) > 1e-3


def test_one_example_moves_an_update_as_the_relative_guarantee_says() -> None:
    """Linear losses whose gradients are all clipped to c: leaving one out of 30 + 10 moves the sum
    by (1-w)/30 or w/10, and the two are (1-w)/w N_R/N_T apart, whatever σ."""
    inputs, targets = torch.eye(40), torch.ones(40, 1)
    for weight in (0.1, 0.6):
        method, moved = WeightedDPSGD(max_grad_norm=0.5, reference_weight=weight), []
        for zeroed in (None, 3, 35):
            rows = inputs.clone()
            if zeroed is not None:
                rows[zeroed] = 0
            context, plan = linear_training_context(40, 1, 1), TrialPlan(
                run_id="pair", batch_size=40, num_steps=1, learning_rate=1.0, seed=0, num_examples=40,
                noise_multiplier=NO_NOISE,
            )  # fmt: skip
            method.train(
                plan, context, LinearTask(rows, targets, num_reference=10), LocalComm(), KEY, None
            )
            moved.append(next(iter(context.parameters.values())).detach().clone())
        of_training, of_reference = (float((m - moved[0]).norm()) for m in moved[1:])
        assert of_training == pytest.approx(0.5 * (1 - weight) / 30, rel=1e-3)
        assert of_training / of_reference == pytest.approx(
            (1 - weight) / weight * 10 / 30, rel=2e-3
        )


def test_the_weighted_minimiser_moves_as_the_relative_guarantee_says() -> None:
    """The minimiser of Σ own_i (θ - x_i)² is the weighted mean: without noise and clipping, after
    400 steps."""
    weight, x = 0.3, torch.linspace(-1, 1, 40)[:, None]

    class Squares(LinearTask):
        def per_example_loss(self, model: nn.Module, batch) -> torch.Tensor:
            (layer,) = model.children()
            return 0.5 * (layer.weight[0, 0] - self._inputs[batch.input_ids[:, 0], 0]).square()

    def minimiser(values: torch.Tensor) -> float:
        context = linear_training_context(1, 1, 1)
        plan = TrialPlan(
            run_id="mean",
            batch_size=40,
            num_steps=400,
            learning_rate=0.1,
            seed=0,
            num_examples=40,
            noise_multiplier=0,
        )
        method = WeightedRiskMinimization(reference_weight=weight, optimizer_name="sgd")
        method.train(
            plan, context, Squares(values, values, num_reference=10), LocalComm(), KEY, None
        )
        return float(next(iter(context.parameters.values())).detach())

    start = minimiser(x)
    assert start == pytest.approx(
        float((1 - weight) * x[:30].mean() + weight * x[30:].mean()), abs=1e-6
    )
    moved = []
    for position in (0, 39):
        other = x.clone()
        other[position] += 1
        moved.append(minimiser(other) - start)
    assert moved[0] / moved[1] == pytest.approx((1 - weight) / weight * 10 / 30, rel=1e-3)


def test_the_best_of_several_looks_is_kept(task) -> None:
    """With a learning rate that overshoots, the last weights are not the best: kept are those of
    the best of the looks, which a run of so many steps ends with."""
    method = WeightedRiskMinimization(reference_weight=0.5, optimizer_name="sgd", keep_best_of=4)
    options = {"num_steps": 8, "batch_size": 20, "learning_rate": 40.0}
    plain = WeightedRiskMinimization(reference_weight=0.5, optimizer_name="sgd")
    looks = {
        steps: trained(plain, task, **{**options, "num_steps": steps}) for steps in (2, 4, 6, 8)
    }
    losses = {steps: loss_of(weights, task) for steps, weights in looks.items()}
    best = min(losses, key=losses.get)
    assert best != 8, "the test needs a run whose end is not its best"
    assert distance(trained(method, task, **options), looks[best]) == 0


def loss_of(weights: dict[str, torch.Tensor], task: ClassificationTask) -> float:
    context = network_context()
    context.model.load_state_dict(weights, strict=False)
    return heldout_loss(context, task)


def test_the_loss_that_is_looked_at_is_the_mean_over_the_held_out_examples(task) -> None:
    context = network_context()
    logits, labels = task.outputs(context.model, task.heldout)
    found = heldout_loss(context, task)
    assert found == pytest.approx(float(nn.functional.cross_entropy(logits, labels)), rel=1e-5)


def test_unused_fields_are_no_part_of_the_identity() -> None:
    assert "reference_weight" not in WeightedDPSGD().model_dump()
    assert WeightedDPSGD().model_dump() == DPSGD().model_dump()
    assert WeightedDPAdam().model_dump() == DPAdam().model_dump()
    assert WeightedDPAdam(reference_weight=0.0).model_dump()["reference_weight"] == 0
    with pytest.raises(
        ValueError, match=r"method\.clipping must be flat or automatic with reference_weight 0\.5"
    ):
        WeightedDPSGD(reference_weight=0.5, clipping="adaptive")
    with pytest.raises(ValueError, match="less than or equal to 1"):
        WeightedRiskMinimization(reference_weight=1.1)
