"""Subjects of the sensitivity checks: small models of every supported kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from raydp.methods.dp import DPSGD
from raydp.models.pretrained import PretrainedModel
from raydp.plugins.registries import service
from raydp.selftest.observe import NoisyMethod
from raydp.selftest.odd_layers import with_odd_layers
from raydp.spec.sections.model import AdapterSpec, ModelSpec
from raydp.tasks.task import Task, TaskFacts
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask, content_hash
from raydp.tasks.users import Users
from raydp.training.probe import start_training_context
from raydp.training.trial import TrainingContext

NUM_EXAMPLES = 6
VOCABULARY = 61
FULL = AdapterSpec(type="none")
LORA = AdapterSpec(
    r=3,
    alpha=6,
    target_modules=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
)
DROPOUT = LORA.model_copy(update={"lora_dropout": 0.25})
SOFT_PROMPT = AdapterSpec(type="soft_prompt", num_virtual_tokens=3)
PREFIX = AdapterSpec(type="prefix", num_virtual_tokens=3)
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Relative error of a gradient that rounding explains, by type of the base weights."""
DTYPES: tuple[str, ...] = get_args(ModelSpec.model_fields["dtype"].annotation)
"""Every type that `model.dtype` of a spec may name."""
AS_WITH_USERS = ("Llama, layers without a rule, bfloat16", "GPT-2, tied, full, bfloat16")
"""Names of subjects to leave out, because the same models with users are included."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model, a task and a method to train on a few examples.

    Attributes:
        name: name in the checks.
        context: the model to train.
        task: the examples.
        method: the method, which clips at its max_grad_norm.
        indices: the units to train on.
        tolerance: relative error that rounding explains.
    """

    name: str
    context: TrainingContext
    task: Task
    method: NoisyMethod
    indices: NDArray[np.int64]
    tolerance: float


def toy_subjects(dtypes: Sequence[str] = DTYPES) -> list[Subject]:
    """Return subjects with random models.

    The models are: tied embeddings trained in full, LoRA, a soft prompt, a prefix, layers without a
    rule, and GPT-2 with Conv1D, LayerNorm and positions. The last two also come with users of
    several examples, GPT-2 with users also with weight decay in the loss. Each clipping norm is
    exceeded by some gradients and not by others. Models that clip differently are included in every
    type.

    Args:
        dtypes: types that a spec may name, float32 first.
    """
    # Every type that a spec may name: a smaller type shows rounding that float32 hides.
    others = [subject for dtype in dtypes[1:] for subject in _with_decay(_subjects_in(dtype))]
    subjects = _with_decay(_subjects_in(dtypes[0]))
    return [*subjects, *(s for s in others if not s.name.startswith(AS_WITH_USERS))]


def _with_decay(subjects: list[Subject]) -> list[Subject]:
    """Return the subjects, and the last one once more with weight decay in the loss.

    Three of its four units are clipped, so that one of them shows a rounded norm.
    """
    last, method = subjects[-1], DPSGD(max_grad_norm=5.5, weight_decay=0.1, decay="in_loss")
    return [*subjects, replace(last, name=f"{last.name}, decay in the loss", method=method)]


def _subjects_in(dtype: str) -> list[Subject]:
    """Return the random models in one number type.

    Under an adapter, it is the type of the base weights. In full fine-tuning, it is the type of
    matrix products. The smaller the type, the more the large random weights expose rounding.
    """
    reads_prompts = service("read_virtual_tokens", needed_by=None) is not None
    prompts = {"Llama, soft prompt": SOFT_PROMPT, "Llama, prefix": PREFIX} if reads_prompts else {}
    # Each clipping norm lies between the gradients' norms, so that some of them are clipped.
    kinds: dict[
        str, tuple[Callable[[], PreTrainedModel], AdapterSpec, float, LanguageModelingTask]
    ] = {
        "Llama, tied, full": (toy_llama, FULL, 5.2, _task()),
        "Llama, LoRA": (toy_llama, LORA, 2.3, _task()),
        "Llama, LoRA, dropout": (toy_llama, DROPOUT, 2.3, _task()),
        **{name: (toy_llama, prompt, 0.5, _task()) for name, prompt in prompts.items()},
        "Llama, layers without a rule": (lambda: with_odd_layers(toy_llama()), FULL, 3.5, _task()),
        "Llama, layers without a rule, users": (
            lambda: with_odd_layers(toy_llama()),
            FULL,
            6.0,
            _task().by_user(),
        ),
        "GPT-2, tied, full": (_gpt2, FULL, 5.0, _task()),
        "GPT-2, tied, full, users": (_gpt2, FULL, 8.0, _task().by_user()),
    }
    small = dtype != DTYPES[0]
    return [
        Subject(
            name=f"{name}, {dtype}" if small else name,
            context=typed_training_context(
                toy_base(build),
                ModelSpec.model_validate({"name": "selftest", "adapter": adapter, "dtype": dtype}),
            ),
            task=task,
            method=DPSGD(max_grad_norm=c),
            indices=np.arange(task.facts().num_units),
            tolerance=ROUNDING[getattr(torch, dtype)] * (2 if small else 1),
        )
        for name, (build, adapter, c, task) in kinds.items()
    ]


def typed_training_context(
    base: PretrainedModel, spec: ModelSpec, microbatch_size: int | None = None
) -> TrainingContext:
    """Return the model with the adapter and in the type of a spec."""
    base.model.to(getattr(torch, spec.weight_dtype))
    context = start_training_context(base, spec.adapter, microbatch_size)
    return replace(context, autocast=torch.bfloat16 if spec.autocasts_on("cpu") else None)


def toy_base(build: Callable[[], PreTrainedModel]) -> PretrainedModel:
    """Return a frozen base model with random weights."""
    # Weights from a fixed seed, without touching the process's generator.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build()
    model.requires_grad_(False).eval()
    return PretrainedModel(name="selftest", model=model, tokenizer=None, weight_hash="selftest")


def toy_llama() -> LlamaForCausalLM:
    """Return a Llama of two layers."""
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


def _gpt2() -> GPT2LMHeadModel:
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
    """Return random sentences of 4 to 19 tokens, in which one token repeats."""
    rng = np.random.default_rng(0)
    sentences = [rng.integers(1, VOCABULARY, 4 + 3 * i) for i in range(NUM_EXAMPLES)]
    # A repeated token makes positions of an embedding add up.
    for sentence in sentences:
        sentence[::3] = 7
    return toy_task([s.tolist() for s in sentences])


def toy_task(sentences: list[list[int]]) -> LanguageModelingTask:
    """Return the task of the sentences. The last sentence is also the held-out data."""
    examples = TokenizedExamples.from_lists(sentences)
    heldout = examples.select(np.array([NUM_EXAMPLES - 1]))
    facts = TaskFacts(
        num_examples=NUM_EXAMPLES,
        num_units=NUM_EXAMPLES,
        privacy_unit="sentence",
        content_hash=content_hash(examples, heldout, []),
        num_tokens=examples.num_targets(),
    )
    # One user has three of the six sentences.
    users = Users.named([0, 1, 0, 2, 3, 0], "user")
    return LanguageModelingTask(train=examples, heldout=heldout, task_facts=facts, users=users)
