"""The probe refuses models and tasks whose examples depend on each other, and no sound ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import nn

from raydp.extensions.classification.digits import DigitsTask
from raydp.extensions.classification.networks import NetworkName
from raydp.models.pretrained import PretrainedModel
from raydp.models.quantization import quantise
from raydp.models.reduced import random_form
from raydp.spec.sections import AdapterSpec, ModelSpec
from raydp.tasks.task import Batch, TaskFacts
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask
from raydp.training import probe
from raydp.training.architecture import check_architecture
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.probe import DependentExamples
from raydp.training.trial import TrainingContext

SMALL = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
PLAIN = {**SMALL, "intermediate_size": 64, "max_position_embeddings": 64}
GROUPED = {**PLAIN, "num_key_value_heads": 2}
GPT = {"vocab_size": 300, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
GEMMA = {**GROUPED, "head_dim": 8, "query_pre_attn_scalar": 8}
FULL = AdapterSpec(type="none")
LORA = AdapterSpec(r=2, alpha=4, target_modules="all-linear")
IA3 = AdapterSpec(type="ia3", target_modules="all-linear")
PROMPT = AdapterSpec(type="soft_prompt", num_virtual_tokens=3)
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
MOE = {**GROUPED, "num_local_experts": 4}
CHUNKED = {
    **MOE,
    "head_dim": 8,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 16,
    "pad_token_id": 0,
}
XLSTM = {**SMALL, "num_heads": 4, "chunk_size": 8, "pad_token_id": 0}
SPARSE = {
    **PLAIN, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "index_head_dim": 16, "index_n_heads": 16, "index_topk": 8, "first_k_dense_replace": 2, "eos_token_id": 2,
}  # fmt: skip


def lora(*targets: str) -> AdapterSpec:
    return LORA.model_copy(update={"target_modules": targets})


SOUND: dict[str, tuple[Callable[[], Any], tuple[AdapterSpec, ...]]] = {
    "gpt2": (lambda: hf.GPT2Config(**GPT), (LORA, FULL, AdapterSpec(type="bitfit"))),
    "llama": (
        lambda: hf.LlamaConfig(**GROUPED),
        (
            FULL,
            PROMPT,
            AdapterSpec(type="prefix", num_virtual_tokens=3),
            IA3,
            LORA.model_copy(update={"use_dora": True}),
        ),
    ),
    "qwen2": (lambda: hf.Qwen2Config(**GROUPED), (LORA,)),
    "qwen3": (lambda: hf.Qwen3Config(**GROUPED, head_dim=8), (FULL,)),
    "mistral, window 4": (lambda: hf.MistralConfig(**GROUPED, sliding_window=4), (LORA,)),
    "gemma2": (lambda: hf.Gemma2Config(**GEMMA), (FULL,)),
    "gemma3": (lambda: hf.Gemma3TextConfig(**GEMMA), (LORA,)),
    "gpt_neox": (lambda: hf.GPTNeoXConfig(**PLAIN), (FULL,)),
    "gpt_neo": (
        lambda: hf.GPTNeoConfig(
            vocab_size=300, hidden_size=32, num_layers=2, num_heads=4, max_position_embeddings=64, window_size=4,
            attention_types=[[["global", "local"], 1]],
        ),
        (LORA,),
    ),
    "opt": (
        lambda: hf.OPTConfig(**SMALL, ffn_dim=64, max_position_embeddings=64, word_embed_proj_dim=32),
        (lora("q_proj", "v_proj"),),
    ),
    "bloom": (lambda: hf.BloomConfig(vocab_size=300, hidden_size=32, n_layer=2, n_head=4), (FULL,)),
    "mpt": (lambda: hf.MptConfig(vocab_size=300, d_model=32, n_layers=2, n_heads=4, max_seq_len=64), (LORA, PROMPT)),
    "falcon": (lambda: hf.FalconConfig(**SMALL), (FULL,)),
    "falcon, alibi": (lambda: hf.FalconConfig(**SMALL, alibi=True), (LORA,)),
    "phi": (lambda: hf.PhiConfig(**PLAIN), (LORA,)),
    "phi3": (lambda: hf.Phi3Config(**GROUPED, pad_token_id=0), (LORA,)),
    "mamba": (
        lambda: hf.MambaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=2, state_size=4),
        (lora("in_proj"),),
    ),
    "mixtral": (lambda: hf.MixtralConfig(**GROUPED, num_local_experts=4), (LORA,)),
    "qwen2_moe": (
        lambda: hf.Qwen2MoeConfig(
            **GROUPED, **EXPERTS, moe_intermediate_size=16, shared_expert_intermediate_size=16
        ),
        (lora("q_proj", "v_proj"),),
    ),
    "olmoe": (lambda: hf.OlmoeConfig(**GROUPED, **EXPERTS), (LORA,)),
    "BERT, decoder": (lambda: hf.BertConfig(**PLAIN, is_decoder=True), (FULL, AdapterSpec(type="bitfit"))),
    "Megatron-BERT, decoder": (lambda: hf.MegatronBertConfig(**PLAIN, is_decoder=True), (FULL,)),
}  # fmt: skip
BOTH_WAYS: dict[str, Callable[[], Any]] = {
    "llama, not causal": lambda: hf.LlamaConfig(**GROUPED, is_causal=False),
    "gemma3, bidirectional": lambda: hf.Gemma3TextConfig(**GEMMA, use_bidirectional_attention=True),
    "bert": lambda: hf.BertConfig(**PLAIN),
    "electra": lambda: hf.ElectraConfig(**PLAIN),
    "xlm": lambda: hf.XLMConfig(vocab_size=300, emb_dim=32, n_layers=2, n_heads=4),
    "roformer": lambda: hf.RoFormerConfig(**PLAIN),
}
OWN_POSITIONS: dict[str, Callable[[], Any]] = {
    "roberta": lambda: hf.RobertaConfig(**PLAIN, is_decoder=True),
    "xlm-r": lambda: hf.XLMRobertaConfig(**PLAIN, is_decoder=True),
    "camembert": lambda: hf.CamembertConfig(**PLAIN, is_decoder=True),
    "data2vec": lambda: hf.Data2VecTextConfig(**PLAIN, is_decoder=True),
    "roberta, norm first": lambda: hf.RobertaPreLayerNormConfig(**PLAIN, is_decoder=True),
}


def task(longest: int = 19) -> LanguageModelingTask:
    """Sentences of 4 to 16 tokens, and a longer one."""
    rng = np.random.default_rng(0)
    lengths = [*(min(4 + 3 * i, longest) for i in range(5)), longest]
    examples = TokenizedExamples.from_lists(
        [rng.integers(5, 250, length).tolist() for length in lengths]
    )
    facts = TaskFacts(
        num_examples=6, num_units=6, privacy_unit="sentence", content_hash="", num_tokens=60
    )
    return LanguageModelingTask(train=examples, heldout=examples, task_facts=facts)


def context(config: Any, adapter: AdapterSpec = LORA, **changes: Any) -> TrainingContext:
    made = random_form(config, adapter, 1 << 30)
    assert made is not None
    base = PretrainedModel(name="m", model=made[0], tokenizer=None, weight_hash="", **changes)
    quantise(base)
    return probe.start_training_context(base, made[1])


@pytest.mark.parametrize("kind", SOUND)
def test_a_sound_model_passes_with_room(kind: str) -> None:
    config, adapters = SOUND[kind]
    for adapter in adapters:
        for figure in probe.figures(context(config(), adapter), task(), clipped=True):
            assert figure.difference < figure.rounding / 30, (adapter.type, figure)


def test_a_model_that_reads_positions_by_the_width_of_a_batch_is_refused() -> None:
    """Short rows alone do not show it: the width is that of the task's longest example."""
    rotary = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "rope_theta": 10000.0,
    }
    config = hf.Phi3Config(
        **GROUPED, pad_token_id=0, initializer_range=0.3, original_max_position_embeddings=16,
        rope_parameters={**rotary, "original_max_position_embeddings": 16},
    )  # fmt: skip
    with pytest.raises(DependentExamples, match="do not depend on the width of its batch, got 'm'"):
        probe.check(context(config), task(), model="m", clipped=True)


def test_the_rounding_of_a_few_close_losses_is_no_dependence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In 16 bits the losses of a short row, all near 17, may differ by their rounding."""
    generator = torch.Generator().manual_seed(0)
    losses = 14 + 3 * torch.randn((4, 63), generator=generator)
    losses[:, :4] = 17.4 + 0.1 * torch.randn((4, 4), generator=generator)

    def rounded(_: TrainingContext, ids: torch.Tensor) -> torch.Tensor:
        width = ids.shape[1] - 1
        return losses[:, :width] + 0.12 * torch.randn((4, width), generator=generator)

    monkeypatch.setattr(probe, "_token_losses", rounded)
    model = context(hf.LlamaConfig(**GROUPED))
    assert probe._long_rows(model, 64) < 2**-3.5, "the rounding of bfloat16"

    def one_token_off(_: TrainingContext, ids: torch.Tensor) -> torch.Tensor:
        found = rounded(_, ids)
        if ids.shape[1] == 64:
            found[0, 2] += 3.0
        return found

    monkeypatch.setattr(probe, "_token_losses", one_token_off)
    assert probe._long_rows(model, 64) > 2**-3.5, "one token of 252 that depends on the width"


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("kept", [8, 16, 32])
def test_sparse_attention_with_ties_is_refused_where_it_begins(heads: int, kept: int) -> None:
    """Of equal scores, other tokens are kept in a wider batch.

    Few index heads give many scores of 0.
    """
    config = hf.DeepseekV32Config(**{**SPARSE, "index_n_heads": heads, "index_topk": kept})
    model = context(config, lora("q_b_proj", "o_proj"))
    with pytest.raises(DependentExamples, match="do not depend on the width of its batch, got 'm'"):
        probe.check(model, task(longest=60), model="m", clipped=True)
    probe.check(model, task(longest=kept), model="m", clipped=True)  # all tokens are kept


@pytest.mark.parametrize(
    ("config", "adapter", "message"),
    [
        (
            lambda: hf.Llama4TextConfig(**CHUNKED),
            LORA,
            "got 'lora': model.layers.0.feed_forward.router fails",
        ),
        (
            lambda: hf.Llama4TextConfig(**CHUNKED),
            IA3,
            "got 'ia3': model.layers.0.feed_forward.router fails",
        ),
        (
            lambda: hf.PhimoeConfig(**MOE),
            LORA.model_copy(update={"use_dora": True}),
            "layers.0.mlp.router fails",
        ),
        (
            lambda: hf.xLSTMConfig(**XLSTM),
            AdapterSpec(type="prefix", num_virtual_tokens=3),
            "Use type 'lora'",
        ),
        (
            lambda: hf.DeepseekV32Config(**SPARSE),
            lora("q_b_proj", "wk"),
            "take part in the loss, got .*indexer.wk",
        ),
        (lambda: hf.CodeGenConfig(**GPT, rotary_dim=4), FULL, None),
        (lambda: hf.RwkvConfig(**SMALL, intermediate_size=64), lora("key"), None),
    ],
    ids=[
        "llama4",
        "llama4, ia3",
        "phimoe, dora",
        "xlstm, prefix",
        "deepseek_v32",
        "codegen",
        "rwkv",
    ],
)
def test_an_adapter_that_would_fail_in_the_worker_is_refused_before(
    config: Callable[[], Any],
    adapter: AdapterSpec,
    message: str | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A model that the adapter fits is checked at once: nothing is left to the worker."""
    config().save_pretrained(tmp_path)
    caplog.set_level("DEBUG", "raydp")
    refused = nullcontext() if message is None else pytest.raises(ValueError, match=message)
    with refused:
        check_architecture(ModelSpec(name=str(tmp_path), adapter=adapter), task(), clipped=True)
    assert message is not None or not [
        record for record in caplog.records if record.name.startswith("raydp")
    ]


@pytest.mark.parametrize("adapter", [LORA, FULL], ids=["lora", "full"])
@pytest.mark.parametrize("kind", BOTH_WAYS)
def test_a_model_that_reads_later_tokens_is_refused(kind: str, adapter: AdapterSpec) -> None:
    """Also without clipping: the loss of a padded row is another loss."""
    with pytest.raises(
        DependentExamples, match=r"tokens before it, got 'm': a later token changes"
    ):
        probe.check(context(BOTH_WAYS[kind](), adapter), task(), model="m", clipped=False)


@pytest.mark.parametrize("kind", OWN_POSITIONS)
def test_a_model_that_counts_positions_in_its_own_way_is_refused(kind: str) -> None:
    with pytest.raises(DependentExamples, match="It counts positions in its own way"):
        probe.check(context(OWN_POSITIONS[kind]()), task(), model="m", clipped=True)


def test_the_real_model_is_refused_too_in_16_bits() -> None:
    unsound = context(BOTH_WAYS["llama, not causal"]())
    unsound.model.to(torch.bfloat16)
    with pytest.raises(DependentExamples, match=r"rounding: 0\.09"):
        probe.check(unsound, task(), model="m", clipped=True)
    sound = context(SOUND["llama"][0]())
    sound.model.to(torch.bfloat16)
    probe.check(sound, task(), model="m", clipped=True)
    probe.check(
        replace(context(SOUND["gpt2"][0](), FULL), autocast=torch.bfloat16),
        task(),
        model="m",
        clipped=True,
    )


@pytest.mark.parametrize("autocast", [False, True])
def test_a_machine_that_rounds_too_far_in_16_bits_is_told_from_an_unsound_model(
    autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processors without products in 16 bits gave 0.21 for SmolLM2."""
    own = probe._plain_call

    def rounded(measured: TrainingContext, rows: Sequence[torch.Tensor]) -> float:
        weights = {p.dtype for p in measured.model.parameters()}
        in_16_bits = measured.autocast is not None or torch.bfloat16 in weights
        return 0.21 if in_16_bits else own(measured, rows)

    monkeypatch.setattr(probe, "_plain_call", rounded)
    for config, words in (
        (SOUND["llama"][0](), r"model\.dtype must be float32 on this machine.*'plain call'"),
        (BOTH_WAYS["llama, not causal"](), "must predict each token from the tokens before it"),
    ):
        tried = context(config)
        if autocast:
            tried = replace(tried, autocast=torch.bfloat16)
        else:
            tried.model.to(torch.bfloat16)
        types = [p.dtype for p in tried.model.parameters()]
        with pytest.raises(DependentExamples, match=words):
            probe.check(tried, task(), model="m", clipped=True)
        assert [p.dtype for p in tried.model.parameters()] == types, "the model itself is kept"


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["nf4", "int8"])
def test_quantised_bases(quantization: str) -> None:
    probe.check(
        context(hf.LlamaConfig(**GROUPED), quantization=quantization),
        task(),
        model="m",
        clipped=True,
    )
    unsound = context(BOTH_WAYS["llama, not causal"](), quantization=quantization)
    with pytest.raises(DependentExamples, match="later token"):
        probe.check(unsound, task(), model="m", clipped=True)


@dataclass(frozen=True, kw_only=True)
class TokenMean(LanguageModelingTask):
    """A plug-in whose loss is a share of the mean over the tokens of the whole batch."""

    def per_example_loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        losses = super().per_example_loss(model, batch)
        return losses * len(losses) / (batch.labels != -100).sum() * 4


@dataclass(frozen=True, kw_only=True)
class Contrast(LanguageModelingTask):
    """A plug-in whose losses have the value of a single example, and the gradient of all."""

    def per_example_loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        losses = super().per_example_loss(model, batch)
        mean = losses.mean()
        return losses + mean - mean.detach()


@dataclass(frozen=True, kw_only=True)
class Rising(LanguageModelingTask):
    """A plug-in whose losses are others where a shorter row comes first."""

    def per_example_loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        lengths = (batch.labels != -100).sum(dim=1)
        return super().per_example_loss(model, batch) * (1 + 0.01 * float(lengths[0] < lengths[-1]))


@dataclass(frozen=True, kw_only=True)
class Wide(LanguageModelingTask):
    """A plug-in whose losses are others where every row is padded."""

    def per_example_loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return super().per_example_loss(model, batch) * (
            1 + 0.01 * float((batch.labels[:, -1] == -100).all())
        )


@dataclass(frozen=True, kw_only=True)
class Hardest(LanguageModelingTask):
    """A plug-in that trains on the 16 examples of a batch with the largest losses."""

    def per_example_loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        losses = super().per_example_loss(model, batch)
        return losses * (losses >= losses.detach().topk(min(16, len(losses))).values.min())


@pytest.mark.parametrize("coupled", [TokenMean, Contrast, Rising, Wide, Hardest])
def test_a_task_that_couples_examples_is_refused(coupled: type[LanguageModelingTask]) -> None:
    with pytest.raises(
        DependentExamples, match=r"task and model\.name must give each example a loss"
    ):
        probe.check(
            context(hf.LlamaConfig(**GROUPED)), coupled(**vars(task())), model="m", clipped=True
        )


@dataclass(frozen=True, kw_only=True)
class Shortest(LanguageModelingTask):
    """A plug-in that cuts every row to the shortest of its batch."""

    def batch(self, indices: Any) -> Batch:
        batch = super().batch(indices)
        width = int((batch.labels != -100).sum(dim=1).min()) + 1
        return Batch(input_ids=batch.input_ids[:, :width], labels=batch.labels[:, :width])


@dataclass(frozen=True, kw_only=True)
class Unmasked(LanguageModelingTask):
    """A plug-in whose first row alone has its second token as a target."""

    def batch(self, indices: Any) -> Batch:
        batch = super().batch(indices)
        batch.labels[1:, 1] = -100
        return batch


@pytest.mark.parametrize("coupled", [Shortest, Unmasked])
def test_a_task_whose_batch_couples_examples_is_refused(
    coupled: type[LanguageModelingTask],
) -> None:
    """The probe puts rows of the task together by itself, so it asks for a batch of the task,
    too."""
    with pytest.raises(
        DependentExamples,
        match="task must give an example the same tokens and targets alone and in",
    ):
        probe.check(
            context(hf.LlamaConfig(**GROUPED)), coupled(**vars(task())), model="m", clipped=True
        )


@dataclass(frozen=True, kw_only=True)
class UndefinedLoss(LanguageModelingTask):
    """A plug-in whose loss of the first example of several is not a number, unless all are
    padded."""

    def per_example_loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        losses = super().per_example_loss(model, batch)
        undefined = len(losses) > 1 and bool((batch.labels[:, -1] != -100).any())
        return losses + torch.tensor(
            [float("nan") if undefined else 0.0] + [0.0] * (len(losses) - 1)
        )


@dataclass(frozen=True, kw_only=True)
class UndefinedGradient(LanguageModelingTask):
    """A plug-in whose gradient of the first example of several is not a number."""

    def per_example_loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        losses = super().per_example_loss(model, batch)
        if len(losses) > 1 and losses.requires_grad:
            first = torch.arange(len(losses)) == 0
            losses.register_hook(lambda g: torch.where(first & (g != 0), float("nan"), g))
        return losses


@pytest.mark.parametrize("undefined", [UndefinedLoss, UndefinedGradient])
def test_a_figure_that_is_not_a_number_refuses(undefined: type[LanguageModelingTask]) -> None:
    """Also if the figures that follow it are numbers."""
    with pytest.raises(
        DependentExamples, match=r"task and model\.name must give each example a loss"
    ):
        probe.check(
            context(hf.LlamaConfig(**GROUPED)), undefined(**vars(task())), model="m", clipped=True
        )


@pytest.mark.parametrize("wrong", ["norms", "sum"])
def test_clipped_gradients_that_are_not_autograds_are_refused(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one per cent, in the norms alone, by which examples are clipped, or in the sum alone."""

    class Wrong(ClippedGradients):
        def accumulate(self, loss_fn: Any, total: Any, *rest: Any) -> torch.Tensor:
            measured = super().accumulate(loss_fn, total, *rest)
            for tensor in total.values() if wrong == "sum" else ():
                tensor *= 1.01
            return measured * torch.tensor([[1.0], [1.01 if wrong == "norms" else 1.0]])

    monkeypatch.setattr(probe, "ClippedGradients", Wrong)
    with pytest.raises(DependentExamples, match="gradients that are clipped differ by"):
        probe.check(context(hf.LlamaConfig(**GROUPED)), task(), model="m", clipped=True)


class BatchCentred(nn.Module):
    """Statistics of a batch, in eval mode too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dim=0)


class Router(nn.Linear):
    """A layer with a place for the first example alone, as an expert with a capacity."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([super().forward(x[:1]), x[1:]])


@pytest.mark.parametrize("mixing", [BatchCentred(), Router(64, 64).requires_grad_(False)])
def test_a_classifier_that_mixes_a_batch_is_refused(mixing: nn.Module) -> None:
    network = NetworkName.parse("mlp:1x8x8:10").build()
    whole = TrainingContext(model=network, parameters=dict(network.named_parameters()))
    probe.check(whole, DigitsTask().build(None), model="mlp", clipped=True)
    network.layers.insert(2, mixing.eval())
    with pytest.raises(DependentExamples, match="that depends on it alone"):
        probe.check(whole, DigitsTask().build(None), model="mlp", clipped=True)


def test_an_architecture_is_checked_without_its_weights(tmp_path: Path) -> None:
    """Only the configuration is read, of 30 layers and a large vocabulary."""
    config = hf.LlamaConfig(
        **{**GROUPED, "num_hidden_layers": 30, "vocab_size": 50_000}, is_causal=False
    )
    config.save_pretrained(tmp_path)
    with pytest.raises(DependentExamples, match="later token"):
        check_architecture(ModelSpec(name=str(tmp_path), adapter=LORA), task(), clipped=True)


def test_experts_that_all_linear_leaves_out_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, named in (("olmoe", 1), ("llama", 0)):
        SOUND[name][0]().save_pretrained(tmp_path / name)
        caplog.clear()
        check_architecture(ModelSpec(name=str(tmp_path / name), adapter=LORA), task(), clipped=True)
        assert caplog.text.count("leaves out the experts") == named
