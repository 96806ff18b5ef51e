"""Many models on one base: each as if it had been loaded alone, whatever was loaded before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from raydp.extensions.later_scores.sets import TrainedModels
from raydp.models import adapters
from raydp.models import base_models as models
from raydp.spec.sections import AdapterSpec, ModelSpec

LORA = AdapterSpec(r=2, alpha=4)
PROMPT = AdapterSpec(type="soft_prompt", num_virtual_tokens=3)
PREFIX = AdapterSpec(type="prefix", num_virtual_tokens=3)
FULL = AdapterSpec(type="none")
IA3 = AdapterSpec(type="ia3")
BESIDE = AdapterSpec(r=2, modules_to_save=("lm_head",))
BITFIT = AdapterSpec(type="bitfit")
DORA = AdapterSpec(r=2, use_dora=True)
KINDS = {
    "lora": LORA,
    "soft prompt": PROMPT,
    "prefix": PREFIX,
    "full": FULL,
    "ia3": IA3,
    "lora and lm_head": BESIDE,
    "bitfit": BITFIT,
    "dora": DORA,
}
TOKENS = torch.arange(5, 25)[None]


def base() -> models.PretrainedModel:
    return models.load_base(ModelSpec(name="tiny"))


def train(folder: Path, adapter: AdapterSpec, seed: int) -> None:
    """Random weights in the place of trained ones, saved as a trial saves them."""
    pretrained = base()
    model = adapters.attach_adapter(pretrained, adapter)
    parameters = adapters.trainable_parameters(model, adapter)
    adapters.initialise(
        parameters, adapter, {name: p.clone() for name, p in parameters.items()}, seed
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.add_(0.1 * torch.empty(parameter.shape).normal_(generator=generator))
    adapters.save_trained(model, pretrained.tokenizer, folder)


def logits(model: nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=TOKENS).logits


@pytest.fixture
def trained(tmp_path: Path) -> Callable[[AdapterSpec], dict[str, Path | None]]:
    def make(adapter: AdapterSpec) -> dict[str, Path | None]:
        for seed in (1, 2):
            train(tmp_path / f"m{seed}", adapter, seed)
        return {"base": None, "m1": tmp_path / "m1", "m2": tmp_path / "m2"}

    return make


def alone(folder: Path) -> nn.Module:
    """A model by its own library's loader."""
    if (folder / "adapter_config.json").is_file():
        from peft import PeftModel

        return PeftModel.from_pretrained(base().model, str(folder)).eval()
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("adapter", KINDS.values(), ids=KINDS)
def test_every_model_is_the_one_that_was_saved_and_its_base_the_base(
    trained, adapter: AdapterSpec
) -> None:
    folders = trained(adapter)
    expected = {
        name: logits(alone(folder)) if folder else logits(base().model)
        for name, folder in folders.items()
    }
    assert not torch.equal(expected["m1"], expected["m2"])
    many = TrainedModels(base(), folders)
    for index in (1, 0, 2, 1, 0, 0):
        with many.loaded(index) as one:
            assert torch.equal(logits(one.model), expected[many.names[index]])
            with one.base() as untrained:
                assert torch.equal(logits(untrained.model), expected["base"])
            assert torch.equal(logits(one.model), expected[many.names[index]]), (
                "also the base's own base"
            )


def test_a_set_of_other_models_shares_the_base(trained) -> None:
    folders = trained(LORA)
    many = TrainedModels(base(), folders)
    part = many.of({"m2": folders["m2"]})
    assert part.names == ("m2",)
    with part.loaded(0) as one, many.loaded(2) as same:
        assert one.model is same.model


@pytest.mark.parametrize("adapter", [LORA, FULL], ids=["lora", "full"])
def test_prompts_of_the_base_are_searched_once_for_all_models(
    trained, adapter: AdapterSpec
) -> None:
    asked: list[models.LoadedModel] = []

    def measure(untrained: models.LoadedModel) -> torch.Tensor:
        asked.append(untrained)
        return logits(untrained.model)

    many, expected = TrainedModels(base(), trained(adapter)), logits(base().model)
    for index in (1, 2, 0, 1):
        with many.loaded(index) as one:
            for key in ("a", "b"):
                assert torch.equal(one.of_base(key, measure), expected)
    assert len(asked) == 2
    assert all(model.is_base for model in asked)


@pytest.mark.parametrize("adapter", [LORA, FULL], ids=["lora", "full"])
def test_a_base_in_memory_that_is_shared_is_never_written(trained, adapter: AdapterSpec) -> None:
    pretrained = base()
    before = {name: (p, p.clone()) for name, p in pretrained.model.named_parameters()}
    storage = {name: p.data_ptr() for name, p in pretrained.model.named_parameters()}
    views = {name: p.data for name, (p, _) in before.items()}
    many = TrainedModels(pretrained, trained(adapter))
    for index in range(3):
        with many.loaded(index) as one, one.base():
            pass
    for name, view in views.items():
        assert view.data_ptr() == storage[name]
        assert torch.equal(view, before[name][1])


def test_only_the_base(trained) -> None:
    with TrainedModels(base(), {"base": None}).loaded(0) as one, one.base() as untrained:
        assert torch.equal(logits(untrained.model), logits(base().model))


def test_unfit_fields_are_refused_and_the_rest_stays_usable(trained, tmp_path: Path) -> None:
    folders = trained(LORA)
    train(tmp_path / "other", AdapterSpec(r=3, alpha=4), 3)
    (tmp_path / "empty").mkdir()
    many = TrainedModels(
        base(), {**folders, "other": tmp_path / "other", "empty": tmp_path / "empty"}
    )
    for index in (3, 4):
        with pytest.raises(ValueError, match="must h"), many.loaded(index):
            pass
    with many.loaded(1) as one:
        assert torch.equal(logits(one.model), logits(alone(tmp_path / "m1")))
