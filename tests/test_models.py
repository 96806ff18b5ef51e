"""Base models and adapters: shared without a copy, reset between trials, switched off for the base
model."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
)

from raydp.models import adapters, sharing
from raydp.models import base_models as models
from raydp.models.peft_layers import NarrowLinear, ScaledLinear
from raydp.spec.sections import AdapterSpec, ModelSpec
from tests.builders.models import plain_gpt2

ADAPTER = AdapterSpec(r=4, alpha=8, target_modules=("q_proj", "down_proj"))
PROMPT = AdapterSpec(type="soft_prompt", num_virtual_tokens=5)
PREFIX = AdapterSpec(type="prefix", num_virtual_tokens=5)
IA3 = AdapterSpec(type="ia3")
DORA = AdapterSpec(r=4, alpha=6, use_dora=True, target_modules=("q_proj", "down_proj"))
BESIDE = AdapterSpec(r=2, target_modules=("q_proj",), modules_to_save=("lm_head",))
WHOLE = {"full": AdapterSpec(type="none"), "bitfit": AdapterSpec(type="bitfit")}
IDS = torch.tensor([[5, 6, 7, 8]])


@pytest.fixture
def base() -> models.PretrainedModel:
    return models.load_base(ModelSpec(name="tiny"))


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS).logits[:, -IDS.shape[1] :]  # a soft prompt's own come first


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_taken_apart_and_put_together_it_is_the_same_model_on_the_same_memory(dtype: str) -> None:
    base = models.load_base(ModelSpec(name="tiny", dtype=dtype))
    before = logits(base.model)
    shared = sharing.disassemble(base)
    assert not list(shared.skeleton.model.parameters()), "the skeleton is empty"
    arrays = {key: array for key, ownership, _, array in shared.arrays if ownership == "own"}
    for array in arrays.values():
        array.flags.writeable = False
    again = sharing.assemble(shared)
    assert torch.equal(logits(again.model), before)
    weight = again.model.get_input_embeddings().weight
    assert weight is again.model.get_output_embeddings().weight, "tied weights stay tied"
    assert weight.data_ptr() in {array.ctypes.data for array in arrays.values()}, "no copy"


def test_a_shared_model_takes_an_adapter_and_trains(base: models.PretrainedModel) -> None:
    shared = sharing.disassemble(base)
    for _, _, _, array in shared.arrays:
        array.flags.writeable = False
    model = adapters.attach_adapter(sharing.assemble(shared), ADAPTER)
    parameters = adapters.trainable_parameters(model, ADAPTER)
    adapters.initialise(parameters, ADAPTER, {}, seed=1)
    model(IDS, labels=IDS).loss.backward()
    assert all(p.grad is not None for p in parameters.values())


def test_the_start_is_pefts_and_decided_by_the_seed(base: models.PretrainedModel) -> None:
    model = adapters.attach_adapter(base, ADAPTER)
    parameters = adapters.trainable_parameters(model, ADAPTER)
    assert len(parameters) == 2 * 2 * 2
    assert {p.dtype for p in parameters.values()} == {torch.float32}
    starts = []
    for seed in (0, 1, 0):
        adapters.initialise(parameters, ADAPTER, {}, seed)
        starts.append({name: p.detach().clone() for name, p in parameters.items()})
    a = {name for name in parameters if "lora_A" in name}
    assert all(torch.equal(starts[0][name], starts[2][name]) for name in parameters)
    assert all(not torch.equal(starts[0][name], starts[1][name]) for name in a)
    for name in a:  # Kaiming uniform with a = sqrt(5): uniform on ± 1/sqrt(fan_in)
        bound = 1 / math.sqrt(parameters[name].shape[1])
        assert bound * 0.9 < starts[0][name].abs().max() <= bound
    assert all((starts[0][name] == 0).all() for name in parameters if "lora_B" in name)


@pytest.mark.parametrize(("alpha", "same_bits"), [(4, True), (8, True), (6, False)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_lora_layer_computes_and_saves_as_pefts_own(
    alpha: int, same_bits: bool, dtype: str, tmp_path: Path
) -> None:
    """Scaled on the narrow side: the same bits if the scale is a power of two, else but for
    rounding."""
    spec = ModelSpec(name="tiny", dtype=dtype)
    model = adapters.attach_adapter(
        models.load_base(spec), ADAPTER.model_copy(update={"alpha": alpha})
    )
    assert any(type(layer) is NarrowLinear for layer in model.modules())
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3, generator=generator)
    model.save_pretrained(str(tmp_path))
    pefts = PeftModel.from_pretrained(models.load_base(spec).model, str(tmp_path)).eval()
    assert not any(type(layer) is NarrowLinear for layer in pefts.modules())
    ours, theirs = logits(model), logits(pefts)
    if same_bits:
        assert torch.equal(ours, theirs)
    else:
        torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(ours, logits(models.load_base(spec).model), atol=0.1)
    with adapters.without_adapter(model):
        assert torch.equal(logits(model), logits(models.load_base(spec).model))
    model.merge_adapter()
    torch.testing.assert_close(
        logits(model), ours, rtol=0, atol=1e-4 if dtype == "float32" else 0.5
    )


@pytest.mark.extensions("prefix")
@pytest.mark.parametrize(
    ("adapter", "std", "of_width"),
    [(PROMPT, 1.0, 1), (PREFIX, adapters.PREFIX_STD, 4)],
    ids=["soft prompt", "prefix"],
)
def test_virtual_tokens_start_at_a_size_that_is_theirs_and_are_decided_by_the_seed(
    base: models.PretrainedModel, adapter: AdapterSpec, std: float, of_width: int
) -> None:
    """The prompt as peft's does; of the prefix keys and values of two layers."""
    model = adapters.attach_adapter(base, adapter)
    parameters = adapters.trainable_parameters(model, adapter)
    ((name, parameter),) = parameters.items()
    assert name == "prompt_encoder.default.embedding.weight"
    assert parameter.dtype == torch.float32
    assert parameter.shape == (5, of_width * adapters.causal_model(model).config.hidden_size)
    starts = []
    for seed in (0, 1, 0):
        adapters.initialise(parameters, adapter, {}, seed)
        starts.append(parameter.detach().clone())
    assert torch.equal(starts[0], starts[2])
    assert not torch.equal(starts[0], starts[1])
    # The standard deviation of n normal draws is known to 1 / sqrt(2 n) of it; four of those.
    assert abs(torch.stack(starts[:2]).std() / std - 1) <= 4 / math.sqrt(4 * parameter.numel())


@pytest.mark.extensions
def test_a_model_without_a_cache_takes_no_prefix() -> None:
    config = MistralConfig(vocab_size=50, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
                           num_attention_heads=2, num_key_value_heads=1, sliding_window=4)  # fmt: skip
    sliding = models.PretrainedModel(
        name="m", model=MistralForCausalLM(config), tokenizer=None, weight_hash=""
    )
    with pytest.raises(
        ValueError,
        match=r"model\.adapter\.type must fit 'm', got 'prefix': its layers do not keep all keys and values",
    ):
        adapters.attach_adapter(sliding, PREFIX)
    config.sliding_window = None
    adapters.attach_adapter(replace(sliding, model=MistralForCausalLM(config)), PREFIX)


@pytest.mark.extensions
@pytest.mark.parametrize(
    ("config", "model_fn"),
    [
        (FalconConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=4), FalconForCausalLM),
        (GPTNeoConfig(vocab_size=50, hidden_size=16, num_layers=2, num_heads=2, max_position_embeddings=32,
                      attention_types=[[["global", "local"], 1]], bos_token_id=0, eos_token_id=0), GPTNeoForCausalLM),
    ],
    ids=["one key for all heads", "local windows"],
)  # fmt: skip
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_model_that_keeps_other_keys_takes_no_prefix(
    config: Any, model_fn: Any, device: str
) -> None:
    with torch.device(device):
        base = models.PretrainedModel(
            name="m", model=model_fn(config), tokenizer=None, weight_hash=""
        )
        with pytest.raises(ValueError, match=r"model\.adapter\.type must fit 'm', got 'prefix'"):
            adapters.attach_adapter(base, PREFIX)


def test_a_model_whose_embeddings_are_narrower_than_its_layers_takes_no_soft_prompt() -> None:
    config = OPTConfig(vocab_size=50, hidden_size=16, word_embed_proj_dim=8, num_hidden_layers=1, ffn_dim=8,
                       num_attention_heads=2, max_position_embeddings=16)  # fmt: skip
    narrow = models.PretrainedModel(
        name="opt", model=OPTForCausalLM(config), tokenizer=None, weight_hash=""
    )
    with pytest.raises(
        ValueError, match=r"model\.adapter\.type must fit 'opt', .* width 16 .* width 8"
    ):
        adapters.attach_adapter(narrow, PROMPT)


@pytest.mark.extensions("prefix")
@pytest.mark.parametrize(
    "adapter",
    [ADAPTER, PROMPT, PREFIX, IA3, BESIDE, DORA, *WHOLE.values()],
    ids=["lora", "soft prompt", "prefix", "ia3", "lora and lm_head", "dora", *WHOLE],
)
def test_the_base_model_can_be_had_back_for_a_moment(
    base: models.PretrainedModel, adapter: AdapterSpec
) -> None:
    untrained = logits(base.model)
    model = adapters.attach_adapter(base, adapter)
    parameters = adapters.trainable_parameters(model, adapter)
    weights = adapters.starting_values(model, adapter) if adapter.trains_base else {}
    with torch.no_grad():
        for parameter in parameters.values():
            parameter += 0.1
    trained = logits(model)
    loaded = models.LoadedModel(model=model, tokenizer=base.tokenizer, base_weights=weights)
    with loaded.base() as untrained_model:
        torch.testing.assert_close(logits(untrained_model.model), untrained)
        with untrained_model.base() as its_own:
            torch.testing.assert_close(logits(its_own.model), untrained)
        torch.testing.assert_close(
            logits(untrained_model.model), untrained, msg="after asking for the base's base"
        )
    assert torch.equal(logits(model), trained)
    assert not torch.allclose(trained, untrained)


@pytest.mark.extensions("prefix")
@pytest.mark.parametrize(
    "adapter",
    [ADAPTER, PROMPT, PREFIX, IA3, BESIDE],
    ids=["lora", "soft prompt", "prefix", "ia3", "lora and lm_head"],
)
def test_a_saved_adapter_is_pefts_own_and_names_no_path(
    base: models.PretrainedModel, tmp_path: Path, adapter: AdapterSpec
) -> None:
    model = adapters.attach_adapter(base, adapter)
    parameters = adapters.trainable_parameters(model, adapter)
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.fill_(0.02)
    adapters.save_trained(model, base.tokenizer, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert (
        json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"]
        == "tiny"
    )
    fresh = PeftModel.from_pretrained(models.load_base(ModelSpec(name="tiny")).model, tmp_path)
    torch.testing.assert_close(logits(fresh), logits(model), rtol=0, atol=0)
    assert not torch.equal(logits(fresh), logits(models.load_base(ModelSpec(name="tiny")).model))


def test_ia3_scales_as_in_its_paper_and_computes_as_peft(
    base: models.PretrainedModel, tmp_path: Path
) -> None:
    """Keys and values by their outputs, the feed-forward layer by its inputs (Liu et al. 2022,
    section 3.3)."""
    model = adapters.attach_adapter(base, IA3)
    parameters = adapters.trainable_parameters(model, IA3)
    assert {name.split(".ia3_l")[0].rpartition(".")[2] for name in parameters} == {
        "k_proj",
        "v_proj",
        "down_proj",
    }
    adapters.initialise(parameters, IA3, {}, seed=3)
    assert all((p == 1).all() for p in parameters.values())
    config = adapters.causal_model(model).config
    widths = {n.split(".ia3_l")[0].rpartition(".")[2]: p.numel() for n, p in parameters.items()}
    assert widths["down_proj"] == config.intermediate_size, "the inputs of down_proj"
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.uniform_(0.5, 2, generator=generator)
    model.save_pretrained(str(tmp_path))
    pefts = PeftModel.from_pretrained(
        models.load_base(ModelSpec(name="tiny")).model, str(tmp_path)
    ).eval()
    assert not any(type(layer) is ScaledLinear for layer in pefts.modules())
    assert torch.equal(logits(pefts), logits(model))
    upper = adapters.attach_adapter(
        models.load_base(ModelSpec(name="tiny")),
        IA3.model_copy(update={"layers_to_transform": (1,)}),
    )
    assert {
        name.split(".layers.")[1][0] for name, _ in upper.named_parameters() if ".ia3_l." in name
    } == {"1"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dora_computes_and_saves_as_pefts_own(dtype: str, tmp_path: Path) -> None:
    spec = ModelSpec(name="tiny", dtype=dtype)
    model = adapters.attach_adapter(models.load_base(spec), DORA)
    parameters = adapters.trainable_parameters(model, DORA)
    adapters.initialise(parameters, DORA, adapters.starting_values(model, DORA), seed=0)
    assert {name.rpartition(".lora_")[2].partition(".")[0] for name in parameters} == {
        "A",
        "B",
        "magnitude_vector",
    }
    assert {p.dtype for p in parameters.values()} == {torch.float32}
    base = logits(models.load_base(spec).model)
    close = {"rtol": 0, "atol": 1e-4 if dtype == "float32" else 0.1}
    start = {"rtol": 0, "atol": 1e-4 if dtype == "float32" else 0.01}
    torch.testing.assert_close(logits(model), base, **start, msg="at its start it is the base")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.add_(
                0.3 * torch.randn(parameter.shape, generator=generator) * (".lora_A." not in name)
            )
    model.save_pretrained(str(tmp_path))
    pefts = PeftModel.from_pretrained(models.load_base(spec).model, str(tmp_path)).eval()
    assert not any(type(layer) is NarrowLinear for layer in pefts.modules())
    torch.testing.assert_close(logits(model), logits(pefts), **close)
    assert not torch.allclose(logits(model), base, atol=0.5)
    ours = logits(model)
    model.merge_adapter()
    torch.testing.assert_close(
        logits(model), ours, rtol=0, atol=1e-4 if dtype == "float32" else 0.5
    )


def test_a_module_to_save_is_the_one_that_is_named(base: models.PretrainedModel) -> None:
    """peft itself would take every module whose name ends so."""
    adapter = AdapterSpec(r=2, modules_to_save=("norm",))
    trained = adapters.trainable_parameters(adapters.attach_adapter(base, adapter), adapter)
    assert [n for n in trained if "modules_to_save" in n] == [
        "base_model.model.model.norm.modules_to_save.default.weight"
    ]


def test_dora_refuses_transposed_layers() -> None:
    gpt2 = models.PretrainedModel(name="gpt2", model=plain_gpt2(), tokenizer=None, weight_hash="")
    with pytest.raises(
        ValueError,
        match=r"must fit the layers of 'gpt2': use_dora must be false for layers of type Conv1D",
    ):
        adapters.attach_adapter(gpt2, AdapterSpec(use_dora=True, target_modules=("c_attn",)))


def test_bitfit_trains_biases_and_norms_alone(base: models.PretrainedModel) -> None:
    adapter = WHOLE["bitfit"]
    trained = adapters.trainable_parameters(adapters.attach_adapter(base, adapter), adapter)
    kinds = {name.split(".")[-2] for name in trained}
    assert kinds == {"input_layernorm", "post_attention_layernorm", "norm"}, "tiny has no biases"
    gpt2 = models.PretrainedModel(name="gpt2", model=plain_gpt2(), tokenizer=None, weight_hash="")
    adapters.attach_adapter(gpt2, adapter)
    named = {n for n, p in gpt2.model.named_parameters() if p.requires_grad}
    assert named == {
        n for n, _ in gpt2.model.named_parameters() if n.endswith("bias") or ".ln_" in n
    }


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (
            AdapterSpec(modules_to_save=("head",)),
            r"modules_to_save must name .*got \['head'\]\. There are .*lm_head",
        ),
        (
            AdapterSpec(type="ia3", target_modules=("k_proj", "mlp_x")),
            r"target_modules must .* got \['mlp_x'\]",
        ),
    ],
)
def test_an_adapter_that_does_not_fit_the_model_is_refused(
    adapter: AdapterSpec, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        models.check(ModelSpec(name="tiny", adapter=adapter))


@pytest.mark.parametrize(
    ("targets", "module", "layers", "refused"),
    [
        (["q_proj"], "self_attn", None, True),
        ("all-linear", "gate_proj", None, True),
        ("all-linear", "lm_head", None, False),
        (["lm_head"], "model.embed_tokens", None, False),
        (["q_proj"], "model.layers.0.self_attn", [1], False),
    ],
)
def test_a_layer_is_trained_as_a_whole_or_with_an_adapter(
    targets, module: str, layers, refused: bool
) -> None:
    section = {
        "r": 2,
        "target_modules": targets,
        "modules_to_save": [module],
        "layers_to_transform": layers,
    }
    model = ModelSpec.model_validate({"name": "tiny", "adapter": section})
    with (
        pytest.raises(
            ValueError,
            match=rf"not hold layers of target_modules, got '{module}' with model\.layers",
        )
        if refused
        else nullcontext()
    ):
        models.check(model)


def test_a_name_in_both_lists_is_refused() -> None:
    with pytest.raises(
        ValueError, match="must not hold layers of target_modules, got q_proj in both"
    ):
        AdapterSpec(target_modules=("q_proj", "v_proj"), modules_to_save=("q_proj",))


@pytest.mark.extensions
def test_a_network_of_classification_has_no_tokenizer() -> None:
    with pytest.raises(ValueError, match=r"got the network mlp:1x8x8:10\. Name a language model"):
        models.load_tokenizer("mlp:1x8x8:10")
    assert models.tokenizer_if_any("mlp:1x8x8:10") is None


def test_a_model_can_be_checked_without_its_weights(tmp_path: Path) -> None:
    tokenizer, weight_hash = models.check(ModelSpec(name="tiny"))
    assert weight_hash == models.load_base(ModelSpec(name="tiny")).weight_hash
    assert len(tokenizer) == 768
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ValueError, match=r"model\.name must"):
        models.check(ModelSpec(name=str(tmp_path)))


def test_skipping_layers_starts_in_the_middle(base: models.PretrainedModel) -> None:
    backbone, layers = adapters.decoder_layers(base.model)
    entered = []
    handle = layers[1].register_forward_pre_hook(lambda module, args: entered.append(args[0]))
    whole = logits(base.model)
    handle.remove()
    with adapters.skipping_layers(base.model, 1), torch.inference_mode():
        assert torch.equal(base.model(inputs_embeds=entered[0], use_cache=False).logits, whole)
    assert backbone.layers is layers


def test_fields_named_as_in_peft_mean_the_same(base: models.PretrainedModel) -> None:
    """`lora_alpha`, `use_rslora` and `target_modules: all-linear`."""
    spec = AdapterSpec.model_validate(
        {"r": 4, "lora_alpha": 8, "use_rslora": True, "target_modules": "all-linear"}
    )
    model = adapters.attach_adapter(base, spec)
    layers = {
        name.rpartition(".")[2]: layer
        for name, layer in model.named_modules()
        if type(layer) is NarrowLinear
    }
    assert set(layers) == {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    }
    assert {layer.scaling["default"] for layer in layers.values()} == {8 / 4**0.5}
    upper = AdapterSpec(target_modules="all-linear", layers_to_transform=(1,))
    chosen = adapters.attach_adapter(models.load_base(ModelSpec(name="tiny")), upper)
    assert {
        name.split(".layers.")[1][0] for name, _ in chosen.named_parameters() if "lora_A" in name
    } == {"1"}
    plain = {
        "type": "lora",
        "r": 8,
        "alpha": 16.0,
        "target_modules": ["q_proj", "v_proj"],
        "layers_to_transform": None,
    }
    assert AdapterSpec().model_dump(mode="json") == plain, "the identity of earlier runs"
    assert AdapterSpec(type="none").model_dump(mode="json") == {**plain, "type": "none"}
    assert AdapterSpec(type="bitfit").model_dump(mode="json") == {"type": "bitfit"}


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        ({"alpha": 8, "lora_alpha": 8}, "must be given once, got lora_alpha too"),
        (
            {"target_modules": "q_proj"},
            r"a list of names or 'all-linear', got 'q_proj'\. Write \[q_proj\]",
        ),
        ({"target_modules": []}, "at least 1 item"),
        ({"type": "none", "use_rslora": True}, "use_rslora must be left out with type 'none'"),
        ({"type": "ia3", "lora_dropout": 0.1}, "lora_dropout must be left out with type 'ia3'"),
        (
            {"feedforward_modules": ["q_proj"]},
            r"must be left out with type 'lora', .* use type 'ia3'",
        ),
        (
            {"type": "ia3", "target_modules": ["k_proj"], "feedforward_modules": ["up_proj"]},
            "among target_modules",
        ),
        ({"lora_dropout": 1.0}, "less than 1"),
    ],
)
def test_an_adapter_that_is_ambiguous_is_refused(adapter: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdapterSpec.model_validate(adapter)


def test_feedforward_layers_that_the_model_lacks_are_refused(base: models.PretrainedModel) -> None:
    """With all-linear only the model itself knows which layers there are."""
    adapter = AdapterSpec(
        type="ia3", target_modules="all-linear", feedforward_modules=("down_proj", "fc_in")
    )
    with pytest.raises(
        ValueError, match=r"feedforward_modules must be linear layers of the model .*, got fc_in\."
    ):
        adapters.attach_adapter(base, adapter)


def test_modules_beside_an_adapter_are_trained_in_float32() -> None:
    with pytest.raises(
        ValueError,
        match=r"model\.dtype must be float32 with adapter\.modules_to_save, got bfloat16",
    ):
        ModelSpec(name="tiny", adapter=BESIDE, dtype="bfloat16")


@pytest.mark.parametrize(
    "adapter", [AdapterSpec(r=2), AdapterSpec(type="soft_prompt", num_virtual_tokens=4)]
)
def test_examples_that_would_change_the_positions_of_a_whole_batch_are_refused(
    tmp_path: Path, adapter: AdapterSpec
) -> None:
    """Phi-3 has two sets of rotary positions, and the longest row of a batch decides which one all
    rows get."""
    rotary = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "rope_theta": 10000.0,
    }
    config = Phi3Config(
        hidden_size=32, num_attention_heads=4, max_position_embeddings=64, original_max_position_embeddings=16,
        pad_token_id=0, rope_parameters=rotary,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    spec = ModelSpec(name=str(tmp_path), adapter=adapter)
    models.check_length(spec, 16 - adapter.virtual_tokens)
    with pytest.raises(
        ValueError, match=r"at most 16 tokens to .*longrope.*no ε would hold.*task\.max_length"
    ):
        models.check_length(spec, 17 - adapter.virtual_tokens)


def test_sections_share_a_base_model_only_in_one_type_of_weights() -> None:
    """Full fine-tuning keeps its weights in 32 bits whatever `dtype` says."""
    lora = {"type": "lora", "r": 2, "target_modules": ["q_proj"]}
    sections = [
        ModelSpec.model_validate({"name": "tiny", "dtype": "bfloat16", "adapter": adapter})
        for adapter in (lora, {"type": "none"}, {**lora, "r": 4})
    ]
    loaded: sharing.Loaded = {}
    shared = sharing.base_models(sections, new_tokens=0, loaded=loaded)
    again = sharing.base_models(sections[:1], new_tokens=0, loaded=loaded)
    types = {
        name: {dtype for _, kind, dtype, _ in model.arrays if kind == "own"}
        for name, model in shared.items()
    }
    assert "bfloat16" in types["bfloat16"]
    assert "bfloat16" not in types["float32"]
    assert again["bfloat16"] is shared["bfloat16"]
    assert len(loaded) == 2
