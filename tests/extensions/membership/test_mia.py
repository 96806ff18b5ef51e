"""Membership inference on language models: signals against a plain computation, areas where the
answer is known."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from raydp.extensions.frozen_prefix.prefix import with_frozen_prefix
from raydp.extensions.membership.mia import MembershipInference, fresh
from raydp.extensions.membership.mia_signals import losses, signals, zlib_lengths
from raydp.models.adapters import attach_adapter, initialise, trainable_parameters
from raydp.models.base_models import LoadedModel, PretrainedModel
from raydp.scores.score import measured
from raydp.spec.sections import AdapterSpec
from raydp.testing.models import llama, memorise
from raydp.testing.secrets import made_up_secrets, told
from tests.builders.secrets import examples_task

ATTACKS = ("loss", "zlib", "min_k", "min_k_plus_plus", "reference")


@pytest.fixture(scope="module")
def members() -> list[str]:
    return told(made_up_secrets("verbatim", 24, seed=7))


@pytest.fixture(scope="module")
def nonmembers() -> list[str]:
    return told(made_up_secrets("verbatim", 30, seed=8))


@pytest.fixture(scope="module")
def task(members, nonmembers, tokenizer):
    return examples_task(members, nonmembers, tokenizer)


@pytest.fixture(scope="module")
def overfitted(tokenizer) -> LoadedModel:
    """A model that knows the members by heart."""
    return memorise(made_up_secrets("verbatim", 24, seed=7), tokenizer, num_steps=80)


def by_hand(
    model: torch.nn.Module, text: str, tokenizer, fraction: float
) -> tuple[float, float, float]:
    """Loss, Min-K% and Min-K%++ of one text, alone, as the papers write them."""
    ids = torch.tensor(tokenizer(text).input_ids)
    with torch.inference_mode():
        logits = model(input_ids=ids[None]).logits[0, :-1].double()
    probs = logits.softmax(dim=-1)
    of_token = probs[torch.arange(len(ids) - 1), ids[1:]].log()
    mean = (probs * probs.log()).sum(dim=-1)
    spread = ((probs * probs.log() ** 2).sum(dim=-1) - mean**2).sqrt()
    count = max(1, int(len(of_token) * fraction))
    lowest = [float(v.sort().values[:count].mean()) for v in (of_token, (of_token - mean) / spread)]
    return (-float(of_token.mean()), *lowest)


def test_signals_are_those_of_each_text_alone(untrained, task, nonmembers, tokenizer) -> None:
    chosen = np.array([3, 0, 17])
    found = signals(untrained.model, task, "heldout", chosen, fraction=0.3)
    for row, i in enumerate(chosen):
        expected = by_hand(untrained.model, nonmembers[i], tokenizer, 0.3)
        # fp32 logits of a padded batch and of one row differ by some 1e-5
        assert (found.loss[row], found.min_k[row], found.min_k_plus_plus[row]) == pytest.approx(
            expected, abs=1e-3
        )
    assert losses(untrained.model, task, "heldout", chosen) == pytest.approx(found.loss, abs=1e-5)


def test_the_zlib_signal_is_of_the_target_text(task, members, tokenizer) -> None:
    (length,) = zlib_lengths(tokenizer, task, "train", np.array([5]))
    assert length == len(zlib.compress(members[5].removesuffix("<eos>").encode()))


@pytest.mark.parametrize("kind", ["lora", "soft_prompt", "prefix"])
def test_signals_of_an_adapted_model_are_those_of_its_loss(kind, task, tokenizer, tmp_path) -> None:
    """Also from cached hidden states, and for the base within; the two ways to the loss share
    little code."""
    more = (
        {"r": 2, "alpha": 4, "layers_to_transform": (1,)}
        if kind == "lora"
        else {"num_virtual_tokens": 3}
    )
    adapter = AdapterSpec(type=kind, **more)
    base = PretrainedModel(
        name="llama", model=llama(len(tokenizer)), tokenizer=tokenizer, weight_hash=""
    )
    plain = losses(base.model, task, "train", np.arange(5))
    model = attach_adapter(base, adapter)
    parameters = trainable_parameters(model, adapter)
    initialise(parameters, adapter, {}, seed=0)
    with torch.no_grad():
        for i, parameter in enumerate(parameters.values()):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i)))
    cached = with_frozen_prefix(
        task, model, parameters, weight_hash="", folder=tmp_path, max_bytes=1e9, say=pytest.fail
    )
    assert (cached.train_hidden is not None) == (kind == "lora")
    found = signals(model, cached, "train", np.arange(5), fraction=1)
    expected = losses(model, task, "train", np.arange(5))
    assert found.loss == pytest.approx(expected, abs=1e-4)
    assert found.min_k == pytest.approx(-expected, abs=1e-4), "all tokens: the mean log-probability"
    with LoadedModel(model=model, tokenizer=tokenizer).base() as untrained:
        assert signals(
            untrained.model, cached, "train", np.arange(5), fraction=1
        ).loss == pytest.approx(plain, abs=1e-4)
    assert np.abs(expected - plain).max() > 0.1


@pytest.mark.slow
def test_every_attack_finds_memorised_examples(overfitted, task) -> None:
    details = measured(MembershipInference(), overfitted, task, seed=0).details
    for attack in ATTACKS:
        assert details[f"{attack}.auc"] > 0.9, attack
        assert details[f"{attack}.auc_low"] > 0.5
        assert details[f"{attack}.accuracy"] > 0.8
        assert details[f"{attack}.tpr_at_01pct_fpr"] is None, "30 non-members cannot tell"
    assert details["base_auc_low"] < 0.5 < details["base_auc_high"]
    assert (details["num_members"], details["num_nonmembers"]) == (24, 30)


def test_the_value_is_the_area_of_the_chosen_attack(overfitted, task) -> None:
    for attack in ATTACKS:
        found = MembershipInference(attack=attack).measure(overfitted, task, seed=0)
        assert found.value == found.details[f"{attack}.auc"]
        assert found.std_error is not None
    of_member, of_other = (
        losses(overfitted.model, task, split, np.arange(n))
        for split, n in (("train", 24), ("heldout", 30))
    )
    expected = roc_auc_score([1] * 24 + [0] * 30, -np.concatenate([of_member, of_other]))
    assert MembershipInference(attack="loss").measure(
        overfitted, task, seed=0
    ).value == pytest.approx(expected)


def test_nothing_is_found_where_nothing_was_learnt(
    members, nonmembers, untrained, tokenizer
) -> None:
    """Random halves of texts that the model never saw: each interval holds 1/2 with 95 %; four
    attacks on 5 splits miss more than 5 times with a chance of some 1e-3, less as they go
    together."""
    texts, misses = members + nonmembers, 0
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(texts))
        first, second = ([texts[i] for i in part] for part in (order[:27], order[27:]))
        details = (
            MembershipInference()
            .measure(untrained, examples_task(first, second, tokenizer), seed=0)
            .details
        )
        misses += sum(
            not details[f"{a}.auc_low"] <= 0.5 <= details[f"{a}.auc_high"] for a in ATTACKS[:4]
        )
    assert misses <= 5


def test_of_the_base_itself_the_reference_attack_finds_nothing(tokenizer, task) -> None:
    """Exactly: also in bf16, where another way to the same loss is another loss."""
    model = LoadedModel(model=llama(len(tokenizer)).bfloat16(), tokenizer=tokenizer, is_base=True)
    found = MembershipInference().measure(model, task, seed=0)
    assert found.value == 0.5
    assert found.details["loss.auc"] == found.details["base_auc"] != 0.5


def test_held_out_copies_of_training_examples_are_left_out(
    members, nonmembers, overfitted, tokenizer
) -> None:
    mixed = examples_task(members, [*nonmembers, *members[:6]], tokenizer)
    assert fresh(mixed).tolist() == list(range(30))
    found = MembershipInference().measure(overfitted, mixed, seed=0)
    assert found.details["heldout_copies_left_out"] == 6
    assert found.value == MembershipInference().measure(
        overfitted, examples_task(members, nonmembers, tokenizer), seed=0
    ).value  # fmt: skip


def test_the_sample_depends_on_the_seed_alone(overfitted, untrained, task) -> None:
    score = MembershipInference(attack="loss", num_examples=10)
    first, again, other = (score.measure(overfitted, task, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.details["base_auc"] != other.details["base_auc"]
    assert first.details["num_members"] == 10
