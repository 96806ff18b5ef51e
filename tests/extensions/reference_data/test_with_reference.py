"""Tasks with reference data: which examples they are, for classifiers and for language models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from raydp.extensions.classification.digits import DigitsTask
from raydp.extensions.membership.half import HalfTask
from raydp.extensions.membership.mia import MembershipInference, ReferenceMembershipInference
from raydp.extensions.reference_data.task import WithReferenceTask, _select
from raydp.extensions.reference_data.weighted import WeightedDPAdam
from raydp.extensions.reference_data.werm import WeightedRiskMinimization
from raydp.models import adapters
from raydp.models import base_models as models
from raydp.plugins.described import resolve_plugin
from raydp.privacy import stated
from raydp.spec.reading import load_spec
from raydp.spec.sections import AdapterSpec, ModelSpec
from raydp.sweep.planning.inputs import build_task
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.users import Users
from raydp.training.comm import LocalComm
from raydp.training.trial import TrainingContext
from raydp.training.trial_plan import TrialPlan
from tests.builders import toys
from tests.builders.specs import SMALL_TASK
from tests.marks import slow_after

DIGITS = {"name": "digits"}
SPEC = {
    "name": "reference",
    "task": {"name": "with_reference", "of": DIGITS, "fraction": 0.25},
    "model": {"name": "mlp:1x8x8:10", "adapter": {"type": "none"}},
    "method": {"name": "dp_sgd", "reference_weight": 0.5},
    "privacy": {"target_epsilon": 8, "delta_exponent": 1.1, "accountant": "pld"},
    "space": {"batch_size": [64], "num_steps": [10], "learning_rate": [0.5]},
    "scores": [{"name": "mia_outputs"}, {"name": "mia_outputs_of_reference"}],
    "select": {"score": "mia_outputs"},
}


@pytest.fixture(scope="module")
def tokenizer():
    return models.load_tokenizer("tiny")


def rows(examples) -> list[bytes]:
    return examples.contents()


@pytest.mark.parametrize("of", slow_after(1, [DIGITS, SMALL_TASK]), ids=["digits", "text"])
def test_a_share_of_the_training_examples_becomes_reference_data(of: dict, tokenizer) -> None:
    whole = resolve_plugin("tasks", "task", of, []).params.build(tokenizer)
    task, other = (
        WithReferenceTask(of=of, fraction=0.3, data_seed=s).build(tokenizer) for s in (0, 1)
    )
    facts = task.facts()
    count = facts.num_reference
    assert abs(count - 0.3 * len(whole.train)) < 4 * (0.21 * len(whole.train)) ** 0.5, (
        "four standard deviations"
    )
    assert sorted(rows(task.train)) == sorted(rows(whole.train))
    assert facts.num_units == facts.num_examples == len(whole.train)
    assert facts.num_training == len(whole.train) - count
    assert facts.num_tokens == whole.facts().num_tokens
    assert rows(task.heldout) == rows(whole.heldout)
    assert task.secrets() == whole.secrets()
    assert len({t.facts().content_hash for t in (whole, task, other)}) == 3
    chosen = [set(rows(t.train)[-count:]) for t in (task, other)]
    assert 0 < len(chosen[0] & chosen[1]) < count, "drawn, and otherwise by another seed"
    assert not chosen[0] & set(rows(task.train)[:-count]), "copies are in one set"
    assert rows(WithReferenceTask(of=of, fraction=0.3).build(tokenizer).train) == rows(task.train)


@pytest.mark.parametrize(
    ("of", "reference"),
    [(DIGITS, {**DIGITS, "data_seed": 1}), (SMALL_TASK, {**SMALL_TASK, "data_seed": 1})],
    ids=["digits", "text"],
)
def test_reference_data_of_another_task_come_after_the_training_data(
    of: dict, reference: dict, tokenizer
) -> None:
    task = WithReferenceTask(of=of, reference=reference).build(tokenizer)
    first, second = (
        resolve_plugin("tasks", "task", t, []).params.build(tokenizer) for t in (of, reference)
    )
    held = set(rows(first.heldout))
    assert rows(task.train) == rows(first.train) + [
        row for row in rows(second.train) if row not in held
    ]
    assert not held & set(rows(task.train)[len(first.train) :]), (
        "else the held-out data would be trained on"
    )
    assert task.facts().num_reference == len(task.train) - len(first.train) > 0
    left_out = task.facts().notes["reference_examples_held_out"]
    assert left_out == len(second.train) - task.facts().num_reference
    assert (left_out > 0) == (of == DIGITS), "the same digits, divided otherwise; other texts"
    assert rows(task.heldout) == rows(first.heldout)


def test_whose_examples_are_whose_goes_with_them() -> None:
    users = Users.named([f"user {i // 3}" for i in range(9)], "user")
    whole = LanguageModelingTask(
        train=TokenizedExamples.from_lists([[1, 2, 3 + i] for i in range(9)]), heldout=toys.task().heldout,
        task_facts=toys.task().task_facts, users=users,
    )  # fmt: skip
    divided = _select(whole, np.array([8, 0, 4, 1]))
    assert divided.users.of_example.tolist() == [2, 0, 1, 0]


def test_a_language_model_is_trained_and_scored_on_both_sets(tokenizer) -> None:
    """With the weight 0 the reference data have no part in the model, which is trained on the
    others all the same."""
    adapter = AdapterSpec(r=2, target_modules=("q_proj",))
    task = WithReferenceTask(of=SMALL_TASK, fraction=0.5).build(tokenizer)
    first = task.facts().num_training
    others = np.full(task.facts().num_reference, len(task.train) - 1)
    tampered = replace(task, train=task.train.select(np.concatenate([np.arange(first), others])))
    plan = TrialPlan(
        run_id="lm",
        batch_size=20,
        num_steps=3,
        learning_rate=0.01,
        seed=0,
        num_examples=2000,
        noise_multiplier=0.5,
    )
    for method in (
        WeightedDPAdam(reference_weight=0.0),
        WeightedRiskMinimization(reference_weight=0.0),
    ):
        ends = []
        for data in (task, tampered):
            base = models.load_base(ModelSpec(name="tiny", adapter=adapter))
            model = adapters.attach_adapter(base, adapter)
            parameters = adapters.trainable_parameters(model, adapter)
            adapters.initialise(parameters, adapter, {}, seed=0)
            start = {n: p.detach().clone() for n, p in parameters.items()}
            context = TrainingContext(model=model, parameters=parameters, microbatch_size=60)
            method.train(plan, context, data, LocalComm(), bytes(32), None)
            ends.append({n: p.detach().clone() for n, p in parameters.items()})
        assert all((ends[0][n] == ends[1][n]).all() for n in start), "bitwise: they are not run"
        assert any((ends[0][n] != start[n]).any() for n in start)
    for score in (MembershipInference(), ReferenceMembershipInference()):
        score.check(task)


@pytest.mark.slow
def test_a_plan_has_the_epsilon_of_each_set(monkeypatch, tmp_path) -> None:
    from raydp.privacy import PrivacyCard, card_markdown, guarantee
    from raydp.sweep.planning.plan import make_plan

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = load_spec(SPEC)
    task, weights = build_task(spec)
    plan = make_plan(spec, task.facts(), weights)
    (record,), (row,) = plan.privacy.values(), plan.rows()
    sets, epsilon = record.part, record.accounted.epsilon
    own = {name: one.epsilon for name, one in sets.epsilons.items()}
    facts = task.facts()
    assert (sets.num_training, sets.num_reference) == (
        facts.num_training,
        facts.num_reference,
    )
    assert epsilon == max(own["training"], own["reference"]) <= 8
    assert own["reference"] == epsilon, "fewer examples with the same weight: theirs is larger"
    assert own["training"] < 0.5 * epsilon
    assert (row["epsilon_training"], row["epsilon_reference"]) == (own["training"], epsilon)
    event = spec.method.params.event(plan.trials[0], plan.trials[0].noise_multiplier)
    card = card_markdown(PrivacyCard(record=record, guarantee=guarantee(event, "pld")))
    assert f"| ε of the training data | {stated(own['training'])} |" in card


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"task": {"name": "with_reference", "of": DIGITS}},
            "task.reference must be given, or else task.fraction",
        ),
        (
            {
                "task": {
                    "name": "with_reference",
                    "of": DIGITS,
                    "fraction": 0.5,
                    "reference": DIGITS,
                }
            },
            "task.reference must be given, or else task.fraction, got both",
        ),
        (
            {"task": {"name": "with_reference", "of": DIGITS, "reference": DIGITS, "data_seed": 3}},
            "task.data_seed must be left out",
        ),
        (
            {"task": {"name": "with_reference", "of": DIGITS, "fraction": 0.0001}},
            "task.fraction must leave examples",
        ),
        (
            {"task": {"name": "with_reference", "of": SPEC["task"], "fraction": 0.5}},
            "task.of must be a task of classification or language modelling without reference data",
        ),
        (
            {"task": {"name": "with_reference", "of": DIGITS, "reference": {"name": "digit"}}},
            "Did you mean 'digits'",
        ),
        (
            {"task": DIGITS},
            "method.reference_weight must be left out for a task without reference data",
        ),
        (
            {"task": DIGITS, "method": {"name": "werm", "reference_weight": 0.5}},
            "without reference data",
        ),
        (
            {"task": DIGITS, "method": {"name": "mmd", "strength": 0.5}},
            "must be a classification task with reference",
        ),
        (
            {
                "method": {"name": "dp_sgd"},
                "task": DIGITS,
                "scores": [{"name": "mia_outputs"}, SPEC["scores"][1]],
            },
            "task must have reference data for a score",
        ),
        (
            {"privacy": {**SPEC["privacy"], "accountant": "rdp", "tuning": "private_selection"}},
            "method.reference_weight must be left out with privacy.tuning",
        ),
        ({"privacy": {**SPEC["privacy"], "unit": "user"}}, "privacy.unit must be example"),
    ],
)
def test_refused_before_anything_is_trained(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        build_task(load_spec({**SPEC, **change}))


def test_other_tasks_are_not_made_of_one_with_reference_data(tokenizer) -> None:
    of = {"name": "with_reference", "of": SMALL_TASK, "fraction": 0.5}
    with pytest.raises(ValueError, match=r"task\.of must be a task without reference data"):
        HalfTask(of=of).build(tokenizer)
    with pytest.raises(ValueError, match=r"privacy\.unit must be example with reference data"):
        WithReferenceTask(of=SMALL_TASK, fraction=0.5).build(tokenizer).by_user()
    with pytest.raises(
        ValueError, match=r"task\.reference must have examples of the kind of task\.of"
    ):
        WithReferenceTask(of=DIGITS, reference=SMALL_TASK).build(tokenizer)
    assert DigitsTask().build(None).facts().num_reference == 0
