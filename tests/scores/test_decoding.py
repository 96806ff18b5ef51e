"""Padded, cached and adapted forward passes against plain ones, one unpadded sequence at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peft import (
    LoraConfig,
    MultitaskPromptTuningConfig,
    PrefixTuningConfig,
    PromptTuningConfig,
    get_peft_model,
)
from transformers import GPT2LMHeadModel

from raydp.scores.language.decoding import CachedDecoder, evaluating
from raydp.testing.models import llama
from tests.builders.models import plain_gpt2

pytestmark = pytest.mark.extensions("soft", "prefix")

VOCABULARY = 40
SEQUENCES = [[3], [5, 6, 7, 8, 9, 10, 11], [4, 4, 30]]
# fp32: logits of some 10 in size, sums over 64 terms in another order: 10 * 64 * 2^-24 = 4e-5.
TOLERANCE = {"rtol": 0, "atol": 4e-5}


def gpt2() -> GPT2LMHeadModel:
    """Learned absolute positions, which padding would shift."""
    return plain_gpt2(vocab_size=VOCABULARY, n_embd=32, initializer_range=0.3)


def adapted(config, model=None) -> torch.nn.Module:
    """A peft model whose adapter does something."""
    torch.manual_seed(0)
    model = get_peft_model(model or llama(VOCABULARY), config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.5)
    return model


def lora():
    return adapted(LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))


def soft_prompt():
    return adapted(PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"))


def prefix(model=None):
    return adapted(PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"), model)


BUILDERS = {
    "llama": lambda: llama(VOCABULARY),
    "gpt2": gpt2,
    "lora": lora,
    "soft-prompt": soft_prompt,
    "prefix": prefix,
    "prefix-gpt2": lambda: prefix(gpt2()),
}
with_every_model = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)


def plain(model, sequence) -> torch.Tensor:
    """[L, V] logits by the model's own forward, no padding and no cache."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([sequence])).logits[0, -len(sequence) :]


@with_every_model
def test_padding_changes_no_logit(build):
    model = build()
    with evaluating(model):
        logits = CachedDecoder(model, SEQUENCES).read(keep=3, use_cache=False)
    for row, sequence in zip(logits, SEQUENCES, strict=True):
        kept = min(3, len(sequence))
        torch.testing.assert_close(row[3 - kept :], plain(model, sequence)[-kept:], **TOLERANCE)


@with_every_model
def test_decoding_from_the_cache_changes_no_logit(build):
    """Rows are repeated, reordered, kept and dropped on the way."""
    model, sequences = build(), [list(s) for s in SEQUENCES]
    with evaluating(model):
        decoder = CachedDecoder(model, sequences)
        decoder.read()
        for parents, tokens in [
            ([0, 0, 1, 2], [1, 2, 3, 4]),
            ([0, 1, 2, 3], [5, 6, 7, 8]),
            ([3, 1], [9, 9]),
        ]:
            logits = decoder.step(np.array(parents), np.array(tokens))
            sequences = [
                [*sequences[parent], token] for parent, token in zip(parents, tokens, strict=True)
            ]
            for row, sequence in zip(logits, sequences, strict=True):
                torch.testing.assert_close(row, plain(model, sequence)[-1], **TOLERANCE)


@pytest.mark.parametrize("build", [lora, soft_prompt, prefix])
def test_a_switched_off_adapter_is_off(build):
    model = build()
    with model.disable_adapter(), evaluating(model):
        off = CachedDecoder(model, SEQUENCES).read()[:, -1]
    with evaluating(model):
        on = CachedDecoder(model, SEQUENCES).read()[:, -1]
    for row, sequence in zip(off, SEQUENCES, strict=True):
        torch.testing.assert_close(row, plain(llama(VOCABULARY), sequence)[-1], **TOLERANCE)
    assert (on - off).abs().max() > 0.1


@pytest.mark.extensions
def test_adapters_without_a_place_before_the_text_are_refused():
    model = adapted(
        MultitaskPromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM", num_tasks=2)
    )
    with pytest.raises(
        ValueError, match="must be lora, a soft prompt or a prefix, got MULTITASK_PROMPT_TUNING"
    ):
        CachedDecoder(model, SEQUENCES).read()


@pytest.mark.extensions
def test_a_second_reading_replaces_the_cache():
    model = prefix()
    with evaluating(model):
        decoder = CachedDecoder(model, SEQUENCES)
        assert torch.equal(decoder.read(), decoder.read())
        again = decoder.step(np.arange(3), np.arange(3))
    torch.testing.assert_close(again[0], plain(model, [3, 0])[-1], **TOLERANCE)


def test_every_module_gets_its_mode_back_also_after_an_error():
    model = llama(VOCABULARY)
    model.model.layers[0].mlp.train()
    before = [module.training for module in model.modules()]
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before
    with pytest.raises(IndexError), evaluating(model):
        model(torch.tensor([[VOCABULARY]]))
    assert [module.training for module in model.modules()] == before
    assert any(before)
    assert not all(before)


def test_bf16_logits_stay_near_those_of_fp32():
    """Both paths run in bf16 (8 bits of mantissa: 2^-8 relative a step, logits of some 10 in size,
    2 layers)."""
    model = llama(VOCABULARY)
    with evaluating(model):
        exact = CachedDecoder(model, SEQUENCES).read()[:, -1]
    model = model.bfloat16()
    with evaluating(model):
        rounded = CachedDecoder(model, SEQUENCES).read()[:, -1]
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, rtol=0, atol=0.4)
