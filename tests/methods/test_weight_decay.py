"""Weight decay: decoupled, or in the loss that is clipped (Guo 2024)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from raydp.extensions.matrix_factorisation.method import DPMF
from raydp.methods.dp import DPSGD, DPAdam
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.thresholds import Clipping
from tests.builders import toys

R, DECAY, TARGET = 1.0, 0.5, 3.8
"""The example of Guo 2024, section 3.2: ½ (θ - θ*)²."""


def limit(method: DPSGD, targets: list[float]) -> float:
    """Where θ ends up after 1,000 steps of full batches without noise, from 0."""
    layer = nn.Linear(1, 1, bias=False).eval()
    layer.weight.data.zero_()
    plan = replace(toys.PLAN, learning_rate=0.05)
    optimizer = method.optimizer(plan, [layer.weight])
    engine = ClippedGradients(
        layer, {"weight": layer.weight}, Clipping(R), weight_decay=method.traits.loss_decay
    )
    x, y = torch.ones(len(targets), 1), torch.tensor(targets)[:, None]
    for _ in range(1000):
        total = {"weight": torch.zeros(1, 1)}
        engine.accumulate(lambda: 0.5 * (layer(x) - y).square().sum(dim=1), total)
        layer.weight.grad = total["weight"] / len(targets)
        optimizer.step()
    return layer.weight.item()


def test_decoupled_decay_stops_where_it_equals_the_clipped_gradient() -> None:
    """At R/λ the clipped gradient -R and λθ cancel, wherever the target beyond it is (Guo 2024,
    equation 3.1)."""
    method = DPSGD(max_grad_norm=R, weight_decay=DECAY)
    assert limit(method, [TARGET]) == pytest.approx(R / DECAY, abs=1e-5)
    assert limit(method, [10 * TARGET]) == pytest.approx(R / DECAY, abs=1e-5)


def test_decay_in_the_loss_reaches_the_ridge_solution_where_samples_agree() -> None:
    method = DPSGD(max_grad_norm=R, weight_decay=DECAY, decay="in_loss")
    assert limit(method, [TARGET] * 3) == pytest.approx(TARGET / (1 + DECAY), abs=1e-5)


def test_decay_in_the_loss_misses_the_ridge_solution_where_samples_do_not_agree() -> None:
    """One of three samples is far away and clipped: 2 ((1+λ) θ - 1) = R, so θ = 1, where ridge
    regression has 15.3."""
    method = DPSGD(max_grad_norm=R, weight_decay=DECAY, decay="in_loss")
    assert limit(method, [1.0, 1.0, 67.0]) == pytest.approx((1 + R / 2) / (1 + DECAY), abs=1e-5)
    assert pytest.approx(15.3, abs=0.05) == 23 / (1 + DECAY)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_decoupled_decay_shrinks_the_weights_and_leaves_the_momentum_alone(momentum: float) -> None:
    plan = replace(toys.PLAN, learning_rate=0.1)
    weights, decayed = (
        nn.Parameter(torch.tensor([1.0, -2.0])),
        nn.Parameter(torch.tensor([1.0, -2.0])),
    )
    plain = DPSGD(momentum=momentum).optimizer(plan, [weights])
    decaying = DPSGD(momentum=momentum, weight_decay=0.5).optimizer(plan, [decayed])
    for gradient in torch.randn(5, 2, generator=torch.Generator().manual_seed(0)):
        before, start = weights.detach().clone(), decayed.detach().clone()
        weights.grad, decayed.grad = gradient.clone(), gradient.clone()
        plain.step()
        decaying.step()
        torch.testing.assert_close(
            decayed, (1 - 0.1 * 0.5) * start + (weights - before), rtol=1e-6, atol=1e-7
        )


def test_decoupled_adam_is_torchs_adamw() -> None:
    optimizer = DPAdam(weight_decay=0.25).optimizer(toys.PLAN, [nn.Parameter(torch.ones(1))])
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.param_groups[0]["weight_decay"] == 0.25
    in_loss = DPAdam(weight_decay=0.25, decay="in_loss").optimizer(
        toys.PLAN, [nn.Parameter(torch.ones(1))]
    )
    assert in_loss.param_groups[0]["weight_decay"] == 0


def test_both_kinds_take_part_in_training() -> None:
    """The decay is large beside the noise: each kind ends elsewhere."""
    ends = [
        toys.train(method=DPSGD(max_grad_norm=0.1, **options))
        for options in ({}, {"weight_decay": 20.0}, {"weight_decay": 20.0, "decay": "in_loss"})
    ]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert toys.distance(ends[a], ends[b]) > 1e-4


def test_unused_fields_are_no_part_of_the_identity() -> None:
    assert DPAdam().model_dump() == DPAdam(weight_decay=0.0).model_dump()
    assert not {"weight_decay", "decay"} & set(DPAdam().model_dump())
    assert DPSGD(weight_decay=0.1).model_dump()["decay"] == "decoupled"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": "in_loss"}, "method.decay must be left out without weight_decay, got 'in_loss'"),
        ({"weight_decay": -1.0}, "greater than or equal to 0"),
        ({"weight_decay": 0.1, "decay": "coupled"}, "'decoupled' or 'in_loss'"),
    ],
)
def test_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DPSGD(**options)


@pytest.mark.parametrize("kind", [DPSGD, DPAdam, DPMF])
def test_a_step_that_would_turn_the_weights_is_refused(kind: type[DPSGD]) -> None:
    """1 - ηλ is 0 or negative; in the loss the clipping norm bounds what decay does."""
    plan = replace(toys.PLAN, learning_rate=0.5)
    with pytest.raises(
        ValueError,
        match=r"method.weight_decay must be < 1 / learning_rate = 2 where it is decoupled",
    ):
        kind(weight_decay=2.0).event(plan, 1.0)
    kind(weight_decay=1.9).event(plan, 1.0)
    if kind is not DPMF:
        kind(weight_decay=2.0, decay="in_loss").event(plan, 1.0)


def test_opacus_does_not_see_a_penalty_in_the_loss() -> None:
    """So what was trained with it "by adjusting the loss function" (Guo 2024, section 5.3) had no
    decay that is
    clipped: its hooks find an example's gradient in the layers, and a penalty goes past them."""
    from opacus import GradSampleModule

    def gradients(weight_decay: float) -> tuple[torch.Tensor, torch.Tensor]:
        layer = nn.Linear(3, 2)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([[1.0, -2, 3], [0.5, 1, -1]]))
            layer.bias.fill_(0.1)
        model = GradSampleModule(layer)
        penalty = sum(p.square().sum() for p in model.parameters()) * weight_decay / 2
        (model(torch.tensor([[1.0, 2, 3], [3, 1, 2]])).logsumexp(dim=1).sum() + penalty).backward()
        return layer.weight.grad_sample, layer.weight.grad

    (of_examples, summed), (with_penalty, summed_with_penalty) = gradients(0.0), gradients(10.0)
    assert torch.equal(of_examples, with_penalty)
    torch.testing.assert_close(
        summed_with_penalty - summed, torch.tensor([[10.0, -20, 30], [5, 10, -10]])
    )
