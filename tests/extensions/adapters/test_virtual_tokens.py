"""A prefix of keys and values that tokens left in the cache is those tokens, in every pass that
raydp makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peft import PrefixTuningConfig, get_peft_model
from torch import nn

from raydp.extensions.adapters.virtual_tokens import prefix_states
from raydp.models.reading import reading
from raydp.scores.language.decoding import CachedDecoder, evaluating
from raydp.tasks.task import Batch
from raydp.tasks.text.token_loss import IGNORE, token_nll
from raydp.testing.models import llama
from tests.builders.models import gpt2

BEFORE = [7, 30, 2, 11]
BUILDERS = {"grouped heads, rotary positions": llama, "learned positions": gpt2}
with_both = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
TOLERANCE = {
    "rtol": 0,
    "atol": 4e-5,
}  # fp32 logits of some 10, sums over 64 terms in another order: 10 * 64 * 2^-24


def after(model: nn.Module) -> nn.Module:
    """The model behind a prefix that is what it keeps of the tokens BEFORE."""
    with torch.no_grad():
        layers = model(torch.tensor([BEFORE]), use_cache=True).past_key_values.layers
        prefixed = get_peft_model(
            model, PrefixTuningConfig(num_virtual_tokens=len(BEFORE), task_type="CAUSAL_LM")
        ).eval()
        kept = [
            states[0].transpose(0, 1).flatten(1)
            for layer in layers
            for states in (layer.keys, layer.values)
        ]
        prefixed.prompt_encoder.default.embedding.weight.copy_(torch.cat(kept, dim=1))
    return prefixed


def texts() -> Batch:
    """Three of different lengths, padded on the right."""
    ids = torch.randint(2, 60, (3, 9), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[0, 6:] = labels[1, :3] = IGNORE
    return Batch(input_ids=ids, labels=labels)


@with_both
def test_the_loss_is_that_of_the_text_after_the_tokens(build) -> None:
    batch, model = texts(), build(60)
    before = torch.tensor([BEFORE]).expand(3, -1)
    whole = Batch(
        input_ids=torch.cat([before, batch.input_ids], dim=1),
        labels=torch.cat([torch.full_like(before, IGNORE), batch.labels], dim=1),
    )
    with torch.no_grad():
        expected = token_nll(model, whole)[:, len(BEFORE) :]
        torch.testing.assert_close(token_nll(after(model), batch), expected, **TOLERANCE)


@with_both
def test_padding_and_decoding_are_those_of_the_text_after_the_tokens(build) -> None:
    sequences, model = [[5], [9, 9, 3, 41], [8, 12]], build(60)
    prefixed = after(model)
    plain, behind = (
        CachedDecoder(model, [[*BEFORE, *s] for s in sequences]),
        CachedDecoder(prefixed, sequences),
    )
    with evaluating(prefixed):
        torch.testing.assert_close(behind.read(), plain.read(), **TOLERANCE)
        for parents, tokens in (([0, 1, 1, 2], [3, 4, 5, 6]), ([3, 0], [7, 8])):
            expected, found = (d.step(np.array(parents), np.array(tokens)) for d in (plain, behind))
            torch.testing.assert_close(found, expected, **TOLERANCE)


def test_a_prefix_takes_the_type_of_the_base_and_has_rows_of_its_own() -> None:
    prefixed = after(llama(60)).bfloat16()
    prefixed.prompt_encoder.float()
    keys, values = prefix_states(prefixed, 3)[1]
    assert keys.dtype == values.dtype == torch.bfloat16
    assert (
        keys.shape == values.shape == (3, 2, len(BEFORE), 8)
    )  # rows, key-value heads, tokens, width
    weight = prefixed.prompt_encoder.default.embedding.weight
    (first,) = torch.autograd.grad(keys[0].sum(), weight, retain_graph=True)
    (all_rows,) = torch.autograd.grad(keys.sum(), weight)
    assert torch.equal(3 * first, all_rows)


def test_a_cache_grows_only_while_decoding() -> None:
    prefixed, ids = after(llama(60)), torch.tensor([[5, 6]])
    for grows, kept in ((False, 4), (True, 6)):
        read = reading(prefixed, ids, cache_grows=grows)
        with torch.no_grad():
            read.model(**read.inputs, use_cache=True)
        assert read.inputs["past_key_values"].get_seq_length() == kept
