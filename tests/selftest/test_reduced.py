"""The self-test of a spec leaves layers and tokens out of its model, and still sees the faults of
the whole model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from raydp.models.adapters import attach_adapter, decoder_layers
from raydp.models.pretrained import PretrainedModel
from raydp.models.reduced import _writes_out, renamed, with_few_layers, with_few_tokens
from raydp.selftest import spec_subject
from raydp.selftest.checks.sensitivity import sensitivity_checks
from raydp.spec.reading import load_spec
from raydp.spec.sections import AdapterSpec
from raydp.training.gradients import clipping, layers
from tests.builders.specs import small_spec
from tests.selftest.test_faults import failed

LAST = AdapterSpec(
    r=1, alpha=2, target_modules=("gate_proj", "down_proj"), layers_to_transform=(5, 6, 7)
)
WHOLE = AdapterSpec(type="none")


def deep(num_layers: int = 8, **changes: Any) -> LlamaForCausalLM:
    sizes = {
        "vocab_size": 768,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 2,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = LlamaConfig(
            **{**sizes, "tie_word_embeddings": True, "initializer_range": 0.2, **changes}
        )
        config.num_hidden_layers = num_layers
        return LlamaForCausalLM(config).requires_grad_(False).eval()


def kept(model: LlamaForCausalLM, adapter: AdapterSpec) -> tuple[list[int], AdapterSpec]:
    """The positions of the layers that stay, and the adapter for them."""
    before = list(model.model.layers)
    fewer = with_few_layers(model, adapter)
    return [
        next(i for i, old in enumerate(before) if old is layer) for layer in model.model.layers
    ], fewer


def test_two_layers_of_each_kind_stay_and_the_adapter_follows() -> None:
    model = deep()
    positions, fewer = kept(model, LAST)
    assert positions == [0, 1, 5, 6]
    assert fewer == LAST.model_copy(update={"layers_to_transform": (2, 3)})
    assert model.config.num_hidden_layers == 4
    assert [layer.self_attn.layer_idx for layer in model.model.layers] == [0, 1, 2, 3]
    assert model(input_ids=torch.tensor([[1, 2, 3]])).logits.isfinite().all()
    adapted = attach_adapter(
        PretrainedModel(name="deep", model=model, tokenizer=None, weight_hash=""), fewer
    )
    trained = {
        name.split(".layers.")[1][0] for name, p in adapted.named_parameters() if p.requires_grad
    }
    assert trained == {"2", "3"}


def test_layers_above_those_of_the_adapter_are_a_kind_of_their_own() -> None:
    assert kept(deep(), LAST.model_copy(update={"layers_to_transform": (2,)}))[0] == [0, 1, 2, 3, 4]
    assert kept(deep(), WHOLE)[0] == [0, 1]


class Doubled(nn.Linear):
    """A class of its own."""


def other_class(layer: nn.Module) -> None:
    layer.mlp.up_proj.__class__ = Doubled


def other_setting(layer: nn.Module) -> None:
    layer.self_attn.scaling = 0.1


def other_type(layer: nn.Module) -> None:
    layer.mlp.to(torch.bfloat16)


def other_shape(layer: nn.Module) -> None:
    layer.mlp.up_proj, layer.mlp.gate_proj = (
        nn.Linear(32, 40, bias=False),
        nn.Linear(32, 40, bias=False),
    )
    layer.mlp.down_proj = nn.Linear(40, 32, bias=False)


def hooked(layer: nn.Module) -> None:
    layer.mlp.register_forward_hook(lambda module, args, out: out)


def other_forward(layer: nn.Module) -> None:
    layer.mlp.forward = lambda x: x


@pytest.mark.parametrize(
    "change", [other_class, other_setting, other_type, other_shape, hooked, other_forward]
)
def test_a_layer_of_another_kind_stays(change: Callable[[nn.Module], None]) -> None:
    model = deep()
    change(model.model.layers[6])
    assert kept(model, WHOLE)[0] == [0, 1, 6]


def test_layers_that_share_a_weight_stay() -> None:
    model = deep()
    stack = model.model.layers
    stack[7].mlp.up_proj.weight = stack[4].mlp.up_proj.weight
    stack[6].mlp = stack[3].mlp
    stack[5].mlp.gate_proj = nn.Linear(32, 768, bias=False)
    stack[5].mlp.gate_proj.weight = model.model.embed_tokens.weight
    assert kept(model, WHOLE)[0] == [0, 1, 3, 4, 5, 6, 7]


def test_a_model_whose_layers_an_adapter_names_in_full_stays_whole() -> None:
    named = AdapterSpec(r=1, alpha=2, target_modules=("model.layers.6.mlp.up_proj",))
    assert kept(deep(), named) == (list(range(8)), named)


@pytest.mark.parametrize("tied", [True, False])
def test_the_remaining_tokens_have_the_logits_that_they_had(tied: bool) -> None:
    model = deep(2, tie_word_embeddings=tied, pad_token_id=700)
    ids = np.array([5, 767, 9, 700, 5, 3], np.int32)
    before = model(input_ids=torch.from_numpy(ids)[None].long()).logits
    new_ids = with_few_tokens(model, ids, longest=6)
    assert new_ids is not None
    new = renamed(ids, new_ids)
    assert (
        model.model.embed_tokens.num_embeddings
        == model.lm_head.out_features
        == model.config.vocab_size
        < 768
    )
    assert model.model.embed_tokens.padding_idx == new_ids[700]
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    after = model(input_ids=torch.from_numpy(new)[None].long()).logits
    torch.testing.assert_close(
        after[..., new], before[..., ids], rtol=0, atol=1e-5
    )  # other kernels of float32


@pytest.mark.parametrize("longest", [4, 20, 25, 31, 40])
def test_the_norm_of_the_output_layer_is_taken_in_the_same_way(longest: int) -> None:
    model = deep(2)
    with_few_tokens(model, np.arange(1, 9, dtype=np.int32), longest)
    assert _writes_out(longest, 32, model.lm_head.out_features) == _writes_out(longest, 32, 768)
    use = layers.Use(kind="linear", g=torch.ones(1, longest, 768), x=torch.ones(1, longest, 32))
    assert _writes_out(longest, 32, 768) == (use.gradient() is not None), (
        "this is the engine's own choice"
    )


def subjects_of(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    adapter: dict[str, Any],
    change: Callable[[nn.ModuleList], None],
) -> list[spec_subject.Subject]:
    """The subjects of a spec whose model is a deep one, with a change of its layers."""
    tiny = spec_subject.models.load_base

    def load(spec: Any, **arguments: Any) -> PretrainedModel:
        model = deep(8, vocab_size=768, max_position_embeddings=256)
        change(decoder_layers(model)[1])
        return PretrainedModel(
            name="deep",
            model=model.requires_grad_(False),
            tokenizer=tiny(spec).tokenizer,
            weight_hash="deep",
        )

    monkeypatch.setattr(spec_subject.models, "load_base", load)
    return spec_subject.spec_subjects(
        load_spec(small_spec(folder, model={"name": "tiny", "adapter": adapter}))
    )


class Mixing(nn.Module):
    """Adds a share of the mean over the batch, as a norm over the batch does."""

    def __init__(self, inner: nn.Module, share: float) -> None:
        super().__init__()
        self.inner, self.share = inner, share

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        return out + self.share * out.mean(dim=(0, 1), keepdim=True)


def wide_ghost(use: layers.Use) -> torch.Tensor:
    """A norm that is wrong only where it is not written out, for the output layer."""
    right = NORM_SQUARED(use)
    return (
        right / 4
        if use.kind == "linear" and use.gradient() is None and use.g.shape[2] > 60
        else right
    )


NORM_SQUARED = layers.Use.norm_squared


@pytest.mark.parametrize("faulty", [False, True])
def test_a_wrong_ghost_norm_of_the_output_layer_is_seen_with_fewer_tokens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, faulty: bool
) -> None:
    (subject,) = subjects_of(monkeypatch, tmp_path, {"type": "none"}, lambda stack: None)
    assert subject.context.model.config.vocab_size < 768
    if faulty:
        monkeypatch.setattr(layers.Use, "norm_squared", wide_ghost)
        monkeypatch.setattr(clipping.Use, "norm_squared", wide_ghost)
    assert (failed(sensitivity_checks(subject)) >= {"clipped sum", "one record"}) == faulty
