"""Base weights in 4 and 8 bits: what they replace, what it costs, and that everything reads the
same model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raydp.extensions.later_scores.sets import TrainedModels
from raydp.models import adapters, sharing
from raydp.models import base_models as models
from raydp.models.pretrained import PretrainedModel
from raydp.models.quantization import check_quantization, quantise
from raydp.spec.sections import AdapterSpec, ModelSpec
from raydp.tracking.models.loading import load_folder
from tests.builders.models import plain_gpt2

IDS = torch.tensor([[5, 6, 7, 8, 9]])
KINDS = ("nf4", "int8")
ADAPTER = AdapterSpec(r=2, target_modules=("q_proj", "down_proj"))


def logits(model: nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS).logits


def loaded(quantization: str | None, dtype: str = "float32") -> PretrainedModel:
    spec = {"name": "tiny", "dtype": dtype, "quantization": quantization, "adapter": ADAPTER}
    base = models.load_base(ModelSpec.model_validate(spec))
    quantise(base)
    return base


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("kind", "most"), [("nf4", 0.25), ("int8", 0.1)])
def test_the_linear_layers_alone_are_smaller_and_the_model_is_nearly_the_same(
    kind: str, most: float, dtype: str
) -> None:
    plain, small = loaded(None, dtype), loaded(kind, dtype)
    difference = (logits(small.model) - logits(plain.model)).float().norm() / logits(
        plain.model
    ).float().norm()
    assert 1e-4 < difference < most
    whole = dict(plain.model.named_parameters())
    for name, parameter in small.model.named_parameters():
        linear = "_proj" in name
        assert (parameter.nbytes < 0.6 * whole[name].nbytes) == linear, name
        if not linear:
            assert torch.equal(parameter, whole[name]), "embeddings, norms and the output layer"


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_adapter_is_loaded_on_the_same_small_base(tmp_path: Path, kind: str) -> None:
    """By the registry's loader, by scores that come later, and from shared memory."""
    base = loaded(kind)
    model = adapters.attach_adapter(base, ADAPTER)
    with torch.no_grad():
        for parameter in adapters.trainable_parameters(model, ADAPTER).values():
            parameter.fill_(0.05)
    trained = logits(model)
    adapters.save_trained(model, base.tokenizer, tmp_path / "m")
    record = {
        "name": "tiny",
        "weight_hash": base.weight_hash,
        "dtype": "float32",
        "quantization": kind,
    }
    (tmp_path / "m" / "base.json").write_text(json.dumps(record))
    assert torch.equal(logits(load_folder(tmp_path / "m")), trained)
    spec = ModelSpec.model_validate({"name": "tiny", "quantization": kind, "adapter": ADAPTER})
    shared = sharing.disassemble(models.load_base(spec))
    for _, _, _, array in shared.arrays:
        array.flags.writeable = False
    many = TrainedModels(sharing.assemble(shared), {"m": tmp_path / "m"})
    with many.loaded(0) as one:
        assert torch.equal(logits(one.model), trained)
        with one.base() as untrained:
            assert torch.equal(logits(untrained.model), logits(loaded(kind).model))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"adapter": {"type": "none"}}, "left out with model.adapter type 'none', got nf4"),
        ({"adapter": {"type": "bitfit"}}, "left out with model.adapter type 'bitfit'"),
        ({"adapter": {"use_dora": True}}, "left out with model.adapter use_dora"),
        ({"quantization": "nf3"}, "'nf4' or 'int8'"),
    ],
)
def test_layers_that_cannot_be_quantised_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSpec.model_validate({"name": "tiny", "quantization": "nf4", **section})


def test_layers_in_few_bits_are_not_trained_as_a_whole() -> None:
    def check(*modules: str) -> None:
        adapter = {"r": 2, "target_modules": ["q_proj"], "modules_to_save": modules}
        models.check(
            ModelSpec.model_validate({"name": "tiny", "quantization": "nf4", "adapter": adapter})
        )

    check("lm_head", "norm", "embed_tokens")
    for module, layer in (("gate_proj", "gate_proj"), ("mlp", "mlp.gate_proj")):
        with pytest.raises(
            ValueError,
            match=rf"layers that model\.quantization freezes, got '{module}' with .*\.{layer} in nf4\. Adapt",
        ):
            check("norm", module)


def test_a_model_or_a_machine_that_lacks_a_requirement_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = ModelSpec.model_validate({"name": "tiny", "quantization": "nf4"})
    with pytest.raises(
        ValueError, match=r"cluster\.sharding must be none with model\.quantization nf4"
    ):
        models.check(spec, sharded=True)
    gpt2 = PretrainedModel(
        name="g", model=plain_gpt2(), tokenizer=None, weight_hash="", quantization="nf4"
    )
    with pytest.raises(ValueError, match=r"must be left out for 'g', got nf4: its layers store"):
        quantise(gpt2)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"must have the package bitsandbytes, got none\. Run `pip install"
    ):
        check_quantization("int8")


@pytest.mark.daily
def test_bitsandbytes_is_imported_only_for_a_quantised_model() -> None:
    """In a fresh process: an adapter on a plain model leaves it out, and a quantised model is still
    quantised after."""
    code = (
        "import sys; from tests.extensions.quantisation.test_quantization import ADAPTER, loaded; from raydp.models import "
        "adapters\nadapters.attach_adapter(loaded(None), ADAPTER); assert 'bitsandbytes' not in "
        "sys.modules\nmodel = adapters.attach_adapter(loaded('nf4'), ADAPTER)\nlayers = "
        "[m.base_layer for n, m in model.named_modules() if n.endswith('q_proj')]\nassert "
        "{type(layer).__name__ for layer in layers} == {'Linear4bit'}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
