"""On a GPU training gives what it gives on a CPU. Selected by `-m gpu`; fails where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raydp.methods.dp import DPAdam
from raydp.spec.sections import AdapterSpec
from raydp.training.comm import LocalComm
from raydp.training.gradients.memory import is_out_of_memory, take_share
from tests.builders import toys

pytestmark = pytest.mark.gpu

DEVICE_TOLERANCE = 1e-5
"""As CUT_TOLERANCE of test_invariants: fp32 sums in another order, carried to a weight by Adam's division."""


def trained(device: str, adapter: AdapterSpec, method: Any) -> dict[str, torch.Tensor]:
    """The weights after the toy plan on a device."""
    toy = toys.context(adapter)
    toy.model.to(device)
    method.train(toys.PLAN, toy, toys.task(), LocalComm(device), toys.KEY, None)
    return {name: p.detach().cpu() for name, p in toy.parameters.items()}


@pytest.mark.parametrize("clipping", ["flat", "automatic", "adaptive"])
@pytest.mark.parametrize("adapter", [toys.ADAPTER, AdapterSpec(type="none")], ids=["lora", "full"])
def test_a_gpu_gives_the_weights_of_a_cpu(adapter: AdapterSpec, clipping: str) -> None:
    method = DPAdam(max_grad_norm=0.1, clipping=clipping)
    assert toys.distance(trained("cpu", adapter, method), trained("cuda", adapter, method)) <= DEVICE_TOLERANCE


def test_a_worker_is_held_to_its_share_of_the_memory() -> None:
    """Half of the device: two thirds of it do not fit, and the error is one that halves micro-batches."""
    device = torch.device("cuda:0")
    total = torch.cuda.get_device_properties(device).total_memory
    take_share(device, 0.5, 1)
    try:
        with pytest.raises(torch.OutOfMemoryError) as raised:
            torch.empty(total * 2 // 3, dtype=torch.uint8, device=device)
        assert is_out_of_memory(raised.value)
        with pytest.raises(ValueError, match="gpus_per_worker must leave"):
            take_share(device, 0.5, total)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
