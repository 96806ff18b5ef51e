"""What the sensitivity checks run on: small models of every supported kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from raydp import adapters, models
from raydp.methods.dp import DPSGD
from raydp.sections import AdapterSpec
from raydp.selftest.odd_layers import with_odd_layers
from raydp.tasks.base import Task, TaskFacts
from raydp.tasks.examples import TokenizedExamples
from raydp.tasks.language import LanguageModelingTask
from raydp.tasks.users import Users
from raydp.training.trial import Trainee

NUM_EXAMPLES = 6
VOCABULARY = 61
FULL = AdapterSpec(type="none")
LORA = AdapterSpec(
    r=3, alpha=6, target_modules=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
)
SOFT_PROMPT = AdapterSpec(type="soft_prompt", num_virtual_tokens=3)
PREFIX = AdapterSpec(type="prefix", num_virtual_tokens=3)
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Relative error of a gradient that rounding explains, by type of the base weights."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Something to train on a few examples.

    Attributes:
        method: clips at its max_grad_norm.
        indices: the units.
        tolerance: relative error that rounding explains.
    """

    name: str
    trainee: Trainee
    task: Task
    method: Any
    indices: NDArray[np.int64]
    tolerance: float


def toy_subjects() -> list[Subject]:
    """Random models: tied embeddings trained in full, LoRA, a soft prompt, a prefix, layers without a rule, and GPT-2
    with Conv1D, LayerNorm and positions; the last two also with users of several examples, one of them with weight
    decay in the loss; LoRA also with training and reference data that weigh differently. Each with a clipping norm that
    some of its gradients exceed and some do not."""
    kinds: dict[str, tuple[Callable[[], nn.Module], AdapterSpec, float, LanguageModelingTask]] = {
        "Llama, tied, full": (_llama, FULL, 5.2, _task()),
        "Llama, LoRA": (_llama, LORA, 2.3, _task()),
        "Llama, soft prompt": (_llama, SOFT_PROMPT, 0.5, _task()),
        "Llama, prefix": (_llama, PREFIX, 0.5, _task()),
        "Llama, layers without a rule": (lambda: with_odd_layers(_llama()), FULL, 3.5, _task()),
        "Llama, layers without a rule, users": (lambda: with_odd_layers(_llama()), FULL, 6.0, _task().by_user()),
        "GPT-2, tied, full": (_gpt2, FULL, 5.0, _task()),
        "GPT-2, tied, full, users": (_gpt2, FULL, 8.0, _task().by_user()),
    }
    subjects = [
        Subject(
            name=name,
            trainee=start_trainee(_pretrained(build), adapter),
            task=task,
            method=DPSGD(max_grad_norm=c),
            indices=np.arange(task.facts().num_units),
            tolerance=ROUNDING[torch.float32],
        )
        for name, (build, adapter, c, task) in kinds.items()
    ]
    decaying = DPSGD(max_grad_norm=subjects[-1].method.max_grad_norm, weight_decay=0.1, decay="in_loss")
    weighted = subjects[1]
    facts = replace(weighted.task.facts(), num_reference=4)
    return [
        *subjects,
        replace(subjects[-1], name=f"{subjects[-1].name}, decay in the loss", method=decaying),
        replace(
            weighted,
            name=f"{weighted.name}, reference data",
            task=replace(weighted.task, task_facts=facts),
            method=DPSGD(max_grad_norm=weighted.method.max_grad_norm, reference_weight=0.1),
        ),
    ]


def start_trainee(base: models.PretrainedModel, adapter: AdapterSpec, microbatch_size: int | None = None) -> Trainee:
    """The model with its adapter; LoRA's B is moved away from 0, where A would have no gradient."""
    model = adapters.attach_adapter(base, adapter)
    parameters = adapters.trainable_parameters(model, adapter)
    adapters.initialise(parameters, adapter, {n: p.detach().clone() for n, p in parameters.items()}, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in parameters.items():
            if ".lora_B." in name:
                parameter.normal_(std=0.1, generator=generator)
    return Trainee(model=model, parameters=parameters, microbatch_size=microbatch_size)


def _pretrained(build: Callable[[], nn.Module]) -> models.PretrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build()
    model.requires_grad_(False).eval()
    return models.PretrainedModel(name="selftest", model=model, tokenizer=None, weight_hash="selftest")


def _llama() -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=32,
            tie_word_embeddings=True,
            initializer_range=0.2,
        )
    )


def _gpt2() -> nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=32,
            n_embd=16,
            n_layer=2,
            n_head=2,
            initializer_range=0.2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def _task() -> LanguageModelingTask:
    """Random sentences of 4 to 19 tokens, in which one token comes again and again."""
    rng = np.random.default_rng(0)
    sentences = [rng.integers(1, VOCABULARY, 4 + 3 * i) for i in range(NUM_EXAMPLES)]
    for sentence in sentences:
        sentence[::3] = 7
    examples = TokenizedExamples.from_lists([s.tolist() for s in sentences])
    facts = TaskFacts(
        num_examples=NUM_EXAMPLES,
        num_units=NUM_EXAMPLES,
        privacy_unit="sentence",
        content_hash="selftest",
        num_tokens=examples.num_targets(),
    )
    users = Users.named([0, 1, 0, 2, 3, 0], "user")
    return LanguageModelingTask(train=examples, heldout=examples, task_facts=facts, users=users)
