"""Models of a few thousand weights that the suites use: random, or trained to memorise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from raydp.models.base_models import LoadedModel
from raydp.tasks.task import Secret
from raydp.tasks.text.examples import TokenizedExamples
from raydp.testing.secrets import told

SPECIAL = ("<bos>", "<eos>")


def byte_tokenizer(
    extra: Sequence[str] = (), merges: Sequence[tuple[str, str]] = ()
) -> PreTrainedTokenizerFast:
    """Bytes as tokens, <bos> before every text; `extra` tokens are in the vocabulary and made by
    `merges` alone."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *alphabet, *extra))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=SPECIAL[0], eos_token=SPECIAL[1]
    )


def llama(
    vocab_size: int, *, seed: int = 0, hidden_size: int = 32, scale: float = 0.3
) -> LlamaForCausalLM:
    """Two layers of random weights, of a scale at which attention and position matter to the
    logits."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
    )
    generator = torch.Generator().manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=scale, generator=generator)
    model.eval()
    return model


def memorise(secrets: Sequence[Secret], tokenizer: Any, *, num_steps: int = 150) -> LoadedModel:
    """A small Llama trained until it says the secrets; it knows the weights that it started
    from."""
    model = llama(len(tokenizer), hidden_size=64, scale=0.1)
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    texts = told(secrets)
    examples = TokenizedExamples.from_lists(tokenizer(texts).input_ids)
    batch = examples.batch(np.arange(len(texts)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(input_ids=batch.input_ids, labels=batch.labels).loss.backward()
        optimizer.step()
    return LoadedModel(
        model=model.requires_grad_(False).eval(), tokenizer=tokenizer, base_weights=start
    )
