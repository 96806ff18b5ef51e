"""What a prompt search reads of a model: losses, gradient and hits are those of a plain pass,
shared or not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model

from raydp.extensions.prompt_search.objective import Objective
from raydp.extensions.prompt_search.prefixes import groups
from raydp.scores.language.decoding import evaluating
from raydp.testing.models import llama
from raydp.training.gradients.memory import recompute_layers
from tests.builders.models import gpt2
from tests.extensions.adapters.test_virtual_tokens import BEFORE, after, with_both


def lora(model: torch.nn.Module, targets: list[str], *, seed: int = 0) -> torch.nn.Module:
    """An adapter that changes every logit."""
    adapted = get_peft_model(
        model, LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM")
    ).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3, generator=generator)
    return adapted


def prompted(model: torch.nn.Module, kind: type = PromptTuningConfig) -> torch.nn.Module:
    """A soft prompt or a prefix of three virtual tokens."""
    torch.manual_seed(0)
    return get_peft_model(model, kind(num_virtual_tokens=3, task_type="CAUSAL_LM")).eval()


MODELS = {
    "llama": lambda: llama(300),
    "gpt2, tied": lambda: gpt2(300),
    "lora": lambda: lora(llama(300), ["q_proj", "v_proj", "down_proj"]),
    "soft prompt": lambda: prompted(llama(300)),
    "prefix": lambda: prompted(llama(300), PrefixTuningConfig),
    "prefix, positions": lambda: prompted(gpt2(300), PrefixTuningConfig),
}


def plain_logits(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """[N, L, V] logits by the model's own forward, which puts the virtual tokens in front of what
    it returns."""
    return model(input_ids=rows).logits[:, -rows.shape[1] :]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("before", [(), (0,)])
def test_losses_gradient_and_decoding_are_those_of_a_plain_pass(
    name: str, before: tuple[int, ...]
) -> None:
    model, rng = MODELS[name](), np.random.default_rng(0)
    target, prompt = rng.integers(2, 300, 9), tuple(rng.integers(2, 300, 6).tolist())
    objective = Objective(model, before, target.tolist())
    neighbours = np.tile(np.array(prompt), (40, 1))
    neighbours[np.arange(39), rng.integers(6, size=39)] = rng.integers(
        2, 300, 39
    )  # and the prompt itself
    with evaluating(model):
        gradient, shared = objective.gradient(prompt)
        cached = objective.evaluate(neighbours, shared, prompt)
        whole = objective.evaluate(neighbours)
    rows = torch.from_numpy(
        np.concatenate([np.tile([*before], (40, 1)), neighbours, np.tile(target, (40, 1))], axis=1)
    )
    with torch.no_grad():
        logits = plain_logits(model, rows.long())[:, -10:-1]
    labels = torch.from_numpy(target).expand(40, -1)
    expected = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), labels, reduction="none"
    ).mean(dim=1)
    # fp32: another batch shape changes the last digits of logits of order 10.
    assert cached.losses == pytest.approx(expected.numpy(), abs=1e-5)
    assert whole.losses == pytest.approx(expected.numpy(), abs=1e-5)
    assert shared is not None
    if name == "soft prompt":
        return  # peft's own forward takes no one-hot rows
    embedding = model.get_input_embeddings().weight
    one_hot = torch.nn.functional.one_hot(rows[-1:].long(), 300).float().requires_grad_()
    output = model(inputs_embeds=one_hot @ embedding).logits[0, -10:-1]
    (by_row,) = torch.autograd.grad(torch.nn.functional.cross_entropy(output, labels[0]), one_hot)
    expected = by_row[0, len(before) : len(before) + 6]
    # fp32 sums in another order, relative to the largest entry: small entries are differences of
    # large ones.
    torch.testing.assert_close(gradient, expected, atol=1e-4 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_a_search_on_a_model_that_computes_layers_again_is_the_same(name: str) -> None:
    """Its shared beginning stands in a cache, which a layer would extend twice."""
    model = MODELS[name]()
    with evaluating(model):
        before = Objective(model, (0,), [3, 4, 5]).gradient((7, 8))[0]
        recompute_layers(model)
        assert torch.equal(Objective(model, (0,), [3, 4, 5]).gradient((7, 8))[0], before)


@pytest.mark.parametrize("name", MODELS)
def test_a_hit_equals_the_text_of_generate(name: str) -> None:
    """Greedy decoding of as many tokens as the target has, by transformers itself."""
    model, rng = MODELS[name](), np.random.default_rng(1)
    prompt = rng.integers(2, 300, 4).tolist()
    model.generation_config.eos_token_id = None
    said = model.generate(
        input_ids=torch.tensor([[0, *prompt]]),
        attention_mask=torch.ones(1, 5),
        max_new_tokens=8,
        do_sample=False,
    )[0, -8:].tolist()
    for target, expected in ((said, True), ([*said[:-1], said[-1] ^ 1], False)):
        objective = Objective(model, (0,), target)
        with evaluating(model):
            assert objective.evaluate(np.array([prompt])).hits[0] == expected
            assert objective.says_target(prompt) is expected


def test_groups_are_a_partition_that_costs_least() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        changed, overhead = rng.integers(5, size=12), float(rng.integers(0, 40))

        def cost(parts: list[list[int]], changed=changed, overhead=overhead) -> float:
            return sum(overhead + len(p) * (9 - min(changed[i] for i in p)) for p in parts)

        found = [g.tolist() for g in groups(changed, 9, overhead)]
        assert sorted(itertools.chain(*found)) == list(range(12))
        order = np.argsort(changed, kind="stable").tolist()
        cuts = (c for r in range(5) for c in itertools.combinations(range(1, 12), r))
        best = min(cost([order[a:b] for a, b in itertools.pairwise((0, *c, 12))]) for c in cuts)
        assert cost(found) == pytest.approx(best)


@with_both
def test_a_search_behind_a_prefix_is_that_of_the_prompt_after_its_tokens(build) -> None:
    target, prompts, model = [4, 9, 17], np.array([[5, 6, 7], [5, 8, 7], [9, 6, 7]]), build(60)
    prefixed = after(model)
    with evaluating(prefixed):
        plain, behind = Objective(model, BEFORE, target), Objective(prefixed, (), target)
        (gradient, shared), (expected, _) = behind.gradient([5, 6, 7]), plain.gradient([5, 6, 7])
        torch.testing.assert_close(
            gradient, expected, rtol=0, atol=1e-4 * float(expected.abs().max())
        )
        losses = behind.evaluate(prompts, shared, [5, 6, 7]).losses
        assert losses == pytest.approx(plain.evaluate(prompts).losses, abs=1e-5)
