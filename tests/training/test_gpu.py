"""On a GPU training gives what it gives on a CPU. Selected by `-m gpu`; fails where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raydp.methods.dp import DPAdam
from raydp.sections import AdapterSpec
from raydp.training.comm import LocalComm
from tests.training import toys

pytestmark = pytest.mark.gpu

DEVICE_TOLERANCE = 1e-5
"""As CUT_TOLERANCE of test_invariants: fp32 sums in another order, carried to a weight by Adam's division."""


def trained(device: str, adapter: AdapterSpec, method: Any) -> dict[str, torch.Tensor]:
    """The weights after the toy plan on a device."""
    toy = toys.trainee(adapter)
    toy.model.to(device)
    method.train(toys.PLAN, toy, toys.task(), LocalComm(device), toys.KEY, None)
    return {name: p.detach().cpu() for name, p in toy.parameters.items()}


@pytest.mark.parametrize("clipping", ["flat", "automatic", "adaptive"])
@pytest.mark.parametrize("adapter", [toys.ADAPTER, AdapterSpec(type="none")], ids=["lora", "full"])
def test_a_gpu_gives_the_weights_of_a_cpu(adapter: AdapterSpec, clipping: str) -> None:
    method = DPAdam(max_grad_norm=0.1, clipping=clipping)
    assert toys.distance(trained("cpu", adapter, method), trained("cuda", adapter, method)) <= DEVICE_TOLERANCE
