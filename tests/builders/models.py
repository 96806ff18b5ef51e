"""Real models of a few thousand weights: random, chosen or trained to memorise; a byte tokenizer;
networks."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from raydp.models.base_models import LoadedModel

SAMPLE = (
    "Please call Mira Halborn at 555-0142 about the draft.\nForwarded by Otto Fenwick/OSL/NRD on "
    "03/04\n\nQuestion: What does the author write?\nAnswer: The author writes in the naval comedy "
    "genre.\n"
)


def trained_tokenizer(*, trim_offsets: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of 400 tokens that was trained on SAMPLE; <end> ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([SAMPLE], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def word_tokenizer() -> PreTrainedTokenizerFast:
    """31 words w0, w1, ... and <unk> as tokens."""
    words = Tokenizer(
        models.WordLevel({f"w{i}": i for i in range(31)} | {"<unk>": 31}, unk_token="<unk>")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")


def gpt2(vocab_size: int, *, seed: int = 0) -> GPT2LMHeadModel:
    """Two layers of random weights, tied embeddings."""
    config = GPT2Config(
        vocab_size=vocab_size, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, loss_type="ForCausalLMLoss",
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.3, generator=generator)
    return model.eval()


def plain_llama(*, seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """Two layers of width 16 with the weights that transformers draws; `changes` are fields of its
    configuration."""
    shape = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = LlamaConfig(**{**shape, "num_attention_heads": 2, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def plain_gpt2(*, seed: int = 0, **changes: Any) -> GPT2LMHeadModel:
    """Two layers of width 16 with the weights that transformers draws; `changes` are fields of its
    configuration."""
    shape = {"vocab_size": 64, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(GPT2Config(**{**shape, **changes})).eval()


def bigram_llama(logits: torch.Tensor) -> LlamaForCausalLM:
    """A Llama whose next-token logits are chosen: row t of `logits` [V, V] after token t, whatever
    came before.

    Attention and MLP add nothing; embeddings are one-hot times sqrt(V), which RMSNorm leaves as
    they are.
    """
    size = len(logits)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=size,
        intermediate_size=2,
        num_hidden_layers=1,
        num_attention_heads=1,
        head_dim=2,
        rms_norm_eps=0.0,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(size) * size**0.5)
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.lm_head.weight.copy_(logits.T / size**0.5)
    return model.eval()


def bigram(
    probabilities: dict[tuple[str, str], float], tokenizer: PreTrainedTokenizerFast
) -> LoadedModel:
    """A bigram model over single-token strings: the given transition probabilities, the rest spread
    evenly."""
    size = len(tokenizer)
    table = torch.zeros(size, size, dtype=torch.float64)
    ids = tokenizer.convert_tokens_to_ids
    for (before, after), probability in probabilities.items():
        table[ids(before), ids(after)] = probability
    rest = (table == 0).double()
    table += rest * ((1 - table.sum(dim=1, keepdim=True)) / rest.sum(dim=1, keepdim=True)).clamp(
        min=1e-30
    )
    return LoadedModel(model=bigram_llama(table.log().float()), tokenizer=tokenizer)
