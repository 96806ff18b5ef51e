"""Canaries of new tokens: their coins, their examples, and the model that has to know their ids."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import AutoModelForCausalLM

from raydp.extensions.auditing.canaries import CanaryTask
from raydp.extensions.auditing.task import AuditedTask
from raydp.extensions.classification.digits import DigitsTask
from raydp.extensions.classification.family import NETWORKS
from raydp.models import adapters
from raydp.models import base_models as models
from raydp.spec.sections import AdapterSpec, ModelSpec
from tests.builders.specs import SMALL_TASK

FULL = ModelSpec(name="tiny", adapter=AdapterSpec(type="none"))


def build(**options: int | str) -> CanaryTask:
    options = {"num_canaries": 60, "prefix_tokens": 5, "seed": 7, **options}
    return AuditedTask.model_validate({"of": SMALL_TASK, **options}).build(
        models.load_tokenizer("tiny")
    )


@pytest.fixture(scope="module")
def task() -> CanaryTask:
    return build()


def test_the_canaries_that_are_in_are_examples_and_count(task: CanaryTask) -> None:
    inside = np.flatnonzero(task.included)
    facts = task.facts()
    assert 0 < len(inside) < 60
    assert facts.num_units == facts.num_examples == 2000 + len(inside)
    assert facts.privacy_unit.endswith("or canary")
    last = task.batch(np.arange(2000, facts.num_units))
    assert last.input_ids.tolist() == task.canaries.batch(inside).input_ids.tolist()
    assert (last.labels[:, :-1] == -100).all()
    assert (last.labels[:, -1] == last.input_ids[:, -1]).all()


def test_each_canary_has_a_token_and_a_prefix_of_its_own(task: CanaryTask) -> None:
    rows = task.canaries.batch(np.arange(60)).input_ids
    vocabulary = len(models.load_tokenizer("tiny"))
    assert rows[:, -1].tolist() == list(range(vocabulary, vocabulary + 60))
    assert len({tuple(row) for row in rows[:, :-1].tolist()}) == 60
    assert int(rows[:, :-1].min()) > 0  # never the end-of-text token
    assert int(rows[:, :-1].max()) < vocabulary
    others = task.batch(np.arange(2000)).input_ids
    assert int(others.max()) < vocabulary


@pytest.mark.parametrize("kind", ["known_token", "gradient"])
def test_canaries_of_known_tokens_need_no_new_ones(task: CanaryTask, kind: str) -> None:
    known = build(canary=kind)
    rows, facts = known.canaries.batch(np.arange(60)).input_ids, known.facts()
    assert rows[:, :-1].tolist() == task.canaries.batch(np.arange(60)).input_ids[:, :-1].tolist()
    assert 0 < int(rows.min()) <= int(rows.max()) < len(models.load_tokenizer("tiny"))
    assert (known.included == task.included).all()
    assert (facts.num_new_tokens, facts.notes["canaries"], facts.notes["canary_kind"]) == (
        0,
        60,
        kind,
    )
    assert facts.content_hash != task.facts().content_hash


def test_each_kind_of_canaries_is_a_task_of_its_own() -> None:
    """Canaries of known tokens and of gradients have the same examples, but are not trained on in
    the same way."""
    hashes = {
        build(canary=kind).facts().content_hash for kind in ("new_token", "known_token", "gradient")
    }
    assert len(hashes) == 3


@pytest.mark.parametrize("kind", ["known_token", "gradient"])
def test_canaries_of_a_classifier_may_have_its_own_classes(kind: str) -> None:
    options = {"of": {"name": "digits"}, "canary": kind, "num_canaries": 40, "seed": 5}
    task = AuditedTask.model_validate(options).build(None)
    assert (task.facts().num_new_tokens, task.facts().notes["canaries"]) == (0, 40)
    assert set(task.canaries.labels.tolist()) <= set(range(10))
    base = models.load_base(ModelSpec(name="linear:1x8x8:10", adapter=AdapterSpec(type="none")))
    logits = base.model(torch.from_numpy(task.canaries.inputs)).double()
    losses = torch.nn.functional.cross_entropy(
        logits, torch.from_numpy(task.canaries.labels), reduction="none"
    )
    assert task.canary_losses(base.model) == pytest.approx(
        losses.detach().numpy(), rel=1e-5
    )  # fp32


def test_the_seed_decides_coins_and_prefixes_and_names_the_task(task: CanaryTask) -> None:
    again, other = build(), build(seed=8)
    assert again.facts() == task.facts()
    assert (again.included == task.included).all()
    assert other.facts().content_hash != task.facts().content_hash
    assert (other.included != task.included).any()


def test_the_content_of_canaries_that_are_out_is_part_of_the_identity() -> None:
    """They are measured too: a run with other ones is another run."""
    few, more = build(num_canaries=60), build(num_canaries=61)
    assert few.facts().content_hash != more.facts().content_hash


def test_the_coins_are_fair_and_independent_of_each_other() -> None:
    """One false alarm in ten thousand seeds, each."""
    coins = build(num_canaries=4000).included
    assert stats.binomtest(int(coins.sum()), coins.size).pvalue > 1e-4
    assert stats.binomtest(int((coins[:-1] == coins[1:]).sum()), coins.size - 1).pvalue > 1e-4


def test_too_short_prefixes_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"prefix_tokens must be larger for 1000 canaries .*, got 1\. Double it"
    ):
        build(num_canaries=1000, prefix_tokens=1)


def test_canaries_among_canaries_are_refused() -> None:
    inner = {"name": "audited", "of": SMALL_TASK, "seed": 1}
    with pytest.raises(
        ValueError, match=r"task\.of must be a task without canaries, got 'audited'"
    ):
        AuditedTask.model_validate({"of": inner, "seed": 2}).build(models.load_tokenizer("tiny"))


def test_new_tokens_start_at_zero_and_leave_the_others_as_they_were() -> None:
    plain, more = models.load_base(FULL).model, models.load_base(FULL, new_tokens=60).model
    rows = plain.get_input_embeddings().num_embeddings
    assert more.config.vocab_size == rows + 60
    assert more.get_output_embeddings().weight is more.get_input_embeddings().weight  # still tied
    assert more.get_input_embeddings().weight[rows:].abs().max() == 0
    ids = torch.randint(1, rows, (3, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = more(ids).logits
        assert torch.equal(logits[..., :rows], plain(ids).logits)
    assert logits[..., rows:].abs().max() == 0


def test_an_untied_output_layer_starts_at_zero_too(tmp_path: Path) -> None:
    base = models.load_base(FULL)
    base.model.config.tie_word_embeddings = False
    untied = AutoModelForCausalLM.from_config(base.model.config)
    untied.save_pretrained(tmp_path)
    base.tokenizer.save_pretrained(tmp_path)
    model = models.load_base(
        ModelSpec(name=str(tmp_path), adapter=AdapterSpec(type="none")), new_tokens=4
    ).model
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert head is not embedding
    assert head[-4:].abs().max() == embedding[-4:].abs().max() == 0
    assert head[:-4].abs().min() > 0


def test_a_model_with_new_tokens_is_saved_and_loaded_with_them(
    tmp_path: Path, task: CanaryTask
) -> None:
    base = models.load_base(FULL, new_tokens=60)
    model = adapters.attach_adapter(base, FULL.adapter)
    with torch.no_grad():
        model.get_input_embeddings().weight[-60:] += 0.1
    adapters.save_trained(model, base.tokenizer, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    batch = task.canaries.batch(np.arange(60))
    with torch.no_grad():
        assert torch.equal(
            task.per_example_loss(loaded, batch), task.per_example_loss(model, batch)
        )


def test_canaries_of_a_classifier_have_classes_of_their_own() -> None:
    plain = DigitsTask().build(None)
    options = {"of": {"name": "digits"}, "num_canaries": 40, "seed": 5}
    task = AuditedTask.model_validate(options).build(None)
    inside = np.flatnonzero(task.included)
    assert 0 < len(inside) < 40
    facts = task.facts()
    assert facts.num_units == facts.num_examples == len(plain.train) + len(inside)
    assert facts.num_new_tokens == 40
    assert task.canaries.labels.tolist() == list(range(10, 50))
    assert set(np.unique(task.canaries.inputs)) == {0, 1}
    assert len(set(task.canaries.contents())) == 40
    last = task.batch(np.arange(len(plain.train), facts.num_units))
    assert last.labels.tolist() == (10 + inside).tolist()
    assert (task.batch(np.arange(len(plain.train))).labels < 10).all()
    assert facts.content_hash != plain.facts().content_hash
    other = AuditedTask.model_validate({**options, "seed": 6}).build(None)
    assert (other.included != task.included).any()


@pytest.mark.parametrize("architecture", ["linear", "mlp", "cnn"])
def test_new_classes_start_at_zero_and_leave_the_others_as_they_were(
    architecture: str, tmp_path: Path
) -> None:
    """So that the loss among them is ln M for every canary before training, whatever the seed."""
    task = AuditedTask.model_validate(
        {"of": {"name": "digits"}, "num_canaries": 40, "seed": 5}
    ).build(None)
    spec = ModelSpec(name=f"{architecture}:1x8x8:10", adapter=AdapterSpec(type="none"))
    plain, base = models.load_base(spec), models.load_base(spec, new_tokens=40)
    assert task.canary_losses(base.model) == pytest.approx(np.full(40, math.log(40)), rel=1e-12)
    inputs = torch.from_numpy(task.heldout.inputs)
    with torch.no_grad():
        torch.testing.assert_close(
            base.model(inputs)[:, :10], plain.model(inputs), rtol=1e-5, atol=1e-6
        )  # fp32
    assert task.utility(base.model) >= task.utility(plain.model), (
        "a class of no digit's own may win"
    )
    adapters.save_trained(base.model, None, tmp_path / "saved")
    again = models.read_model(tmp_path / "saved", torch.float32)
    with torch.no_grad():
        assert torch.equal(again(inputs), base.model(inputs))
    started = NETWORKS.initial_weights(spec.name, seed=3, num_added=40)
    assert started is not None
    assert started.keys() == dict(base.model.named_parameters()).keys()
    assert all(started[name].shape == p.shape for name, p in base.model.named_parameters())


def test_canaries_are_not_audited_again() -> None:
    once = {"name": "audited", "of": {"name": "digits"}, "num_canaries": 40, "seed": 5}
    with pytest.raises(ValueError, match="must be a task without canaries, got 'audited'"):
        AuditedTask.model_validate({"of": once, "seed": 6}).build(None)
