"""Weights are spread over two workers or more, and only those of models whose layers are known."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raydp.models import adapters
from raydp.models import base_models as models
from raydp.spec.sections import AdapterSpec, ClusterSpec, ModelSpec
from tests.builders import toys


def test_a_model_whose_layers_are_not_known_is_refused() -> None:
    model = toys.pretrained().model
    model.model.layers = torch.nn.Sequential(*model.model.layers)
    with pytest.raises(
        ValueError, match=r"cluster\.sharding must be none for LlamaForCausalLM, got full"
    ):
        adapters.shardable_layers(model)


@pytest.mark.parametrize("kind", ["soft_prompt", "prefix"])
def test_virtual_tokens_are_refused_with_sharding(kind: str) -> None:
    spec = ModelSpec(name="tiny", adapter=AdapterSpec(type=kind))
    with pytest.raises(
        ValueError, match=rf"cluster\.sharding must be none with adapter\.type '{kind}', got full"
    ):
        models.check(spec, sharded=True)


@pytest.mark.parametrize("workers", [1, [1, 1]])
def test_one_worker_has_nobody_to_share_with(workers: Any) -> None:
    with pytest.raises(
        ValueError,
        match=r"cluster\.workers_per_trial must be at least 2 with sharding 'full', got 1",
    ):
        ClusterSpec(sharding="full", workers_per_trial=workers)


def test_workers_are_a_number_or_a_range() -> None:
    assert ClusterSpec(workers_per_trial=3).worker_range == (3, 3)
    assert ClusterSpec(workers_per_trial=[2, 4], sharding="full").worker_range == (2, 4)
    with pytest.raises(
        ValueError,
        match=r"cluster\.workers_per_trial must be \[min, max\] with min <= max, got \[4, 2\]",
    ):
        ClusterSpec(workers_per_trial=[4, 2])
