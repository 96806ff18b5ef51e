"""Real models of a few thousand weights: a byte tokenizer, Llamas with random or chosen weights, one that memorises."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from raydp.models.base_models import LoadedModel
from raydp.tasks.base import Secret, TaskFacts
from raydp.tasks.secret import Digits
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask, content_hash

SPECIAL = ("<bos>", "<eos>")
NUMBERS = itertools.count(1)
"""Secrets of different lists have different numbers, so that a subset's names are those of the whole."""


def byte_tokenizer(extra: Sequence[str] = (), merges: Sequence[tuple[str, str]] = ()) -> PreTrainedTokenizerFast:
    """Bytes as tokens, <bos> before every text; `extra` tokens are in the vocabulary and made by `merges` alone."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *alphabet, *extra))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=SPECIAL[0], eos_token=SPECIAL[1])


def llama(vocab_size: int, *, seed: int = 0, hidden_size: int = 32, scale: float = 0.3) -> LlamaForCausalLM:
    """Two layers of random weights, of a scale at which attention and position matter to the logits."""
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
    return model.eval()


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


def bigram_llama(logits: torch.Tensor) -> LlamaForCausalLM:
    """A Llama whose next-token logits are chosen: row t of `logits` [V, V] after token t, whatever came before.

    Attention and MLP add nothing; embeddings are one-hot times sqrt(V), which RMSNorm leaves as they are.
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


def bigram(probabilities: dict[tuple[str, str], float], tokenizer: PreTrainedTokenizerFast) -> LoadedModel:
    """A bigram model over single-token strings: the given transition probabilities, the rest spread evenly."""
    size = len(tokenizer)
    table = torch.zeros(size, size, dtype=torch.float64)
    ids = tokenizer.convert_tokens_to_ids
    for (before, after), probability in probabilities.items():
        table[ids(before), ids(after)] = probability
    rest = (table == 0).double()
    table += rest * ((1 - table.sum(dim=1, keepdim=True)) / rest.sum(dim=1, keepdim=True)).clamp(min=1e-30)
    return LoadedModel(model=bigram_llama(table.log().float()), tokenizer=tokenizer)


def make_task(secrets: Sequence[Secret] = (), controls: Sequence[Secret] = ()) -> LanguageModelingTask:
    """A real task around the secrets; its training data does not matter to a score."""
    examples = TokenizedExamples.from_lists([[2, 3, 4]])
    content = content_hash(examples, examples, [*secrets, *controls])
    return LanguageModelingTask(
        train=examples,
        heldout=examples,
        task_facts=TaskFacts(num_examples=1, num_units=1, privacy_unit="example", content_hash=content, num_tokens=2),
        task_secrets=tuple(secrets),
        task_controls=tuple(controls),
    )


def made_up_secrets(kind: str, count: int, seed: int) -> list[Secret]:
    """Secrets of one format: four random digits after a random name, or a random word as an attribute."""
    rng = random.Random(f"{kind}{seed}")
    letters = "bcdfghklmnprstvwz"
    names = ["".join(rng.choices(letters, k=3)) for _ in range(count)]
    assert len(set(names)) == count, "names must differ for the secrets to be learnable"
    if kind == "verbatim":
        pins = [f"{rng.randrange(10_000):04}" for _ in names]
        return [
            Secret(
                prompt=f"{name} has pin ",
                continuation=pin,
                count=1,
                number=next(NUMBERS),
                space=Digits(num_digits=3, before=pin[0]),
            )
            for name, pin in zip(names, pins, strict=True)
        ]
    words = ["".join(rng.choices(letters, k=4)) for _ in range(count)]
    return [
        Secret(prompt=f"{n} likes", continuation=w, kind="attribute", count=1, number=next(NUMBERS))
        for n, w in zip(names, words, strict=True)
    ]


def told(secrets: Sequence[Secret]) -> list[str]:
    """The texts that tell them."""
    separators = {"verbatim": "", "attribute": " "}
    return [f"{s.prompt}{separators[s.kind]}{s.continuation}.<eos>" for s in secrets]


def examples_task(
    train: Sequence[str], heldout: Sequence[str], tokenizer: PreTrainedTokenizerFast
) -> LanguageModelingTask:
    """A real task of these texts."""
    parts = [
        TokenizedExamples.from_lists(tokenizer(list(texts)).input_ids if texts else []) for texts in (train, heldout)
    ]
    facts = TaskFacts(
        num_examples=len(train),
        num_units=len(train),
        privacy_unit="example",
        content_hash=content_hash(*parts, []),
        num_tokens=parts[0].num_targets(),
    )
    return LanguageModelingTask(train=parts[0], heldout=parts[1], task_facts=facts)


def memorise(secrets: Sequence[Secret], tokenizer: PreTrainedTokenizerFast, *, num_steps: int = 150) -> LoadedModel:
    """A small Llama trained until it says the secrets; it knows the weights that it started from."""
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
    return LoadedModel(model=model.requires_grad_(False).eval(), tokenizer=tokenizer, base_weights=start)
