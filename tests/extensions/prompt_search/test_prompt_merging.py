"""A merged adapter: the same function for the search, and afterwards, and wherever it counts, the
model itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peft import PrefixTuningConfig

from raydp.extensions.prompt_search.merging import merged_adapter
from raydp.extensions.prompt_search.objective import Objective
from raydp.scores.language.decoding import evaluating
from raydp.testing.models import llama
from tests.builders.models import gpt2

from .test_prompt_objective import lora, plain_logits, prompted

ROWS = torch.arange(24).reshape(2, 12)
ADAPTED = {
    "llama": lambda: lora(llama(300), ["q_proj", "v_proj", "down_proj"]),
    "gpt2, transposed weights": lambda: lora(gpt2(300), ["c_attn", "c_fc"]),
}


@pytest.mark.parametrize("name", ADAPTED)
def test_the_merged_model_is_the_same_function_and_comes_back_bitwise(name: str) -> None:
    model = ADAPTED[name]()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    places = {key: parameter.data_ptr() for key, parameter in model.named_parameters()}
    needed = [parameter.requires_grad for parameter in model.parameters()]
    with torch.no_grad():
        own = plain_logits(model, ROWS)
        with model.disable_adapter():
            base = plain_logits(model, ROWS)
    with merged_adapter(model) as exact_fn, evaluating(model):
        changed = [key for key, value in model.state_dict().items() if not value.equal(before[key])]
        merged = plain_logits(model, ROWS)
        with exact_fn():
            assert plain_logits(model, ROWS).equal(own)
        assert plain_logits(model, ROWS).equal(merged)
    assert all("base_layer.weight" in key for key in changed)
    assert len(changed) >= 4
    assert (own - base).abs().max() > 0.1
    assert (own - merged).abs().max() < 1e-4  # fp32 logits of some ten
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
    assert places == {key: parameter.data_ptr() for key, parameter in model.named_parameters()}
    assert needed == [parameter.requires_grad for parameter in model.parameters()]
    assert plain_logits(model, ROWS).equal(own)


def test_the_model_comes_back_after_a_failure() -> None:
    model = ADAPTED["llama"]()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(KeyboardInterrupt), merged_adapter(model):
        raise KeyboardInterrupt
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    "make",
    [
        lambda: llama(300),
        lambda: prompted(llama(300)),
        lambda: prompted(llama(300), PrefixTuningConfig),
        lambda: lora(llama(300), ["q_proj"]).bfloat16(),  # the sum would lose the adapter
    ],
    ids=["no adapter", "soft prompt", "prefix", "bf16"],
)
def test_models_that_cannot_be_merged_stay_unchanged(make) -> None:
    model = make()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with merged_adapter(model):
        assert all(value.equal(before[key]) for key, value in model.state_dict().items())


def test_an_adapter_that_is_switched_off_is_left_alone() -> None:
    model = ADAPTED["llama"]()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with model.disable_adapter(), merged_adapter(model):
        assert all(value.equal(before[key]) for key, value in model.state_dict().items())


def test_a_prompt_is_confirmed_by_the_adapted_model_itself() -> None:
    """A text that the adapted model says, and its base does not."""
    model, prompt = ADAPTED["llama"](), (5, 6, 7)
    with torch.no_grad():
        said = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False)[
            0, 3:
        ].tolist()
    with merged_adapter(model) as exact_fn, evaluating(model):
        objective = Objective(model, (), said, exact_fn=exact_fn)
        assert objective.says_target(prompt)
        assert objective.evaluate(np.array([prompt])).hits.tolist() == [True]
    with evaluating(model), model.disable_adapter():
        assert not Objective(model, (), said).says_target(prompt)
