"""Dropout of an adapter's inputs: a mask is the example's own, and a step that is repeated drops
the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from raydp.models.vector_layers import dropouts_of
from raydp.spec.reading import load_spec
from raydp.sweep.planning.inputs import _check_dropout
from raydp.training.batch_sum import example_masks
from raydp.training.noise.stream import KeyedStream
from tests.builders import toys
from tests.builders.specs import small_spec

ADAPTER = toys.ADAPTER.model_copy(update={"lora_dropout": 0.25})
STREAM = KeyedStream(key=toys.KEY, run_id="toy")


def outputs(
    model: nn.Module, examples: list[int], *, step: int = 0, key: KeyedStream = STREAM
) -> torch.Tensor:
    """[B, V] the logits after the first four tokens of some examples, with their masks."""
    batch = toys.task().batch(np.array(examples))
    with torch.no_grad(), example_masks(dropouts_of(model), key, step, np.array(examples)):
        return model(input_ids=batch.input_ids).logits[:, 3]


def moved(adapter: object = ADAPTER) -> nn.Module:
    """A model whose adapter changes its outputs."""
    toy = toys.context(adapter)
    with torch.no_grad():
        for parameter in toy.parameters.values():
            parameter.add_(0.3)
    return toy.model


def test_a_mask_depends_on_key_step_and_example_alone() -> None:
    model = moved()
    together = outputs(model, [3, 7, 11])
    torch.testing.assert_close(
        outputs(model, [11, 3])[0], together[2], msg="other companions, other padding"
    )
    assert not torch.allclose(outputs(model, [3], step=1), together[:1])
    assert not torch.allclose(
        outputs(model, [3], key=KeyedStream(key=toys.KEY, run_id="other")), together[:1]
    )
    plain = model(input_ids=toys.task().batch(np.array([3, 7, 11])).input_ids).logits[:, 3]
    assert not torch.allclose(plain, together), "the masks matter"
    without = moved(toys.ADAPTER)(
        input_ids=toys.task().batch(np.array([3, 7, 11])).input_ids
    ).logits[:, 3]
    torch.testing.assert_close(plain, without, msg="nothing is dropped outside of training")


@pytest.mark.parametrize("share", [0.25, 0.5, 1e-3])
def test_the_share_is_dropped_and_the_mean_kept(share: float) -> None:
    model = toys.context(toys.ADAPTER.model_copy(update={"lora_dropout": share})).model
    layer, other = dropouts_of(model)[:2]
    count = 200_000
    with example_masks([layer, other], STREAM, 0, np.array([5])):
        ones = layer(torch.ones(1, count // 4, 4))
        again = layer(torch.ones(1, count // 4, 4))
        elsewhere = other(torch.ones(1, count // 4, 4))
    dropped = (ones == 0).double().mean()
    assert abs(dropped - share) <= 4 * (share * (1 - share) / count) ** 0.5 + 2**-17
    assert torch.equal(ones.unique(), torch.tensor([0.0, 1 / (1 - share)]))
    assert torch.equal(ones, again), "the same step again"
    both = ((ones == 0) & (elsewhere == 0)).double().mean()
    assert abs(both - share**2) <= 4 * (share / count**0.5), "layers drop independently"


def test_how_the_work_is_cut_does_not_matter_and_dropout_does() -> None:
    whole = toys.train(microbatch_size=toys.NUM_EXAMPLES, adapter=ADAPTER)
    assert toys.distance(whole, toys.train(microbatch_size=toys.NUM_EXAMPLES, adapter=ADAPTER)) == 0
    for size in (1, None):
        assert toys.distance(whole, toys.train(microbatch_size=size, adapter=ADAPTER)) <= 1e-5
    assert toys.distance(whole, toys.train(microbatch_size=toys.NUM_EXAMPLES)) > 1e-3


@pytest.mark.extensions
def test_a_method_without_masks_refuses_dropout(tmp_path: Path) -> None:
    document = small_spec(tmp_path)
    document["model"]["adapter"]["lora_dropout"] = 0.1
    _check_dropout(load_spec(document))
    document["method"] = {"name": "pate", "num_teachers": 10, "num_queries": 5}
    with pytest.raises(
        ValueError, match=r"lora_dropout must be 0 with the method 'pate', got 0\.1"
    ):
        _check_dropout(load_spec(document))
