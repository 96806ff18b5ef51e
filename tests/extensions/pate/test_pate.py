"""PATE as a method: one example is one vote, the noise is what is accounted, the student sees the
answers alone."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from raydp.extensions.budget.measure import measure_cost
from raydp.extensions.classification.label_words import PADDING
from raydp.extensions.classification.labelled import ClassificationTask, LabelledExamples
from raydp.extensions.pate import teachers
from raydp.extensions.pate.checks import vote_checks
from raydp.extensions.pate.method import PATE
from raydp.extensions.pate.teachers import Teaching, collect_votes, teacher_of
from raydp.extensions.pate.votes_cost import pate_cost
from raydp.extensions.pate.with_public import WithPublicTask
from raydp.privacy import PrivacyCard, RDPAccountant, card_markdown, guarantee
from raydp.selftest.ranks import on_ranks
from raydp.spec.reading import load_spec
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import make_plan
from raydp.testing.points import network_context
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm, LocalComm
from raydp.training.noise.stream import TEST_KEY, KeyedStream
from raydp.training.trial import Paused
from raydp.training.trial_plan import TrialPlan
from tests.builders.specs import public_digits_spec
from tests.marks import slow_after

KEY, OTHER_KEY = bytes(range(32)), bytes(range(100, 132))
TEACHING = Teaching(num_teachers=5, num_steps=25, batch_size=None, learning_rate=0.02)
PLAN = TrialPlan(
    run_id="pate",
    batch_size=10,
    num_steps=12,
    learning_rate=0.01,
    seed=0,
    num_examples=80,
    noise_multiplier=0.5,
)


@pytest.fixture(scope="module")
def task() -> ClassificationTask:
    whole = WithPublicTask(of={"name": "digits"}).build(None)
    return whole.subset(np.arange(80))


def votes_of(task: ClassificationTask, comm: Comm | None = None, **options: Any) -> np.ndarray:
    queries = task.public.select(np.arange(40))
    store = options.pop("store", None)
    return collect_votes(
        PLAN, TEACHING, network_context(**options), task, queries, comm or LocalComm(), KEY, store
    )


def test_every_teacher_votes_on_every_query(task: ClassificationTask) -> None:
    votes = votes_of(task)
    assert votes.shape == (40, 10)
    assert (votes.sum(axis=1) == TEACHING.num_teachers).all()
    assert (votes.argmax(axis=1) == task.public.labels[:40]).mean() > 0.5, (
        "they have learnt something"
    )


@pytest.mark.parametrize("left_out", [0, 17, 41, 79])
def test_one_example_moves_one_vote_of_a_query_at_most(
    task: ClassificationTask, left_out: int
) -> None:
    """By sqrt(2) in all counts and by 1 in the largest: what the accounted sensitivity is."""
    whole, less = votes_of(task), votes_of(task.subset(np.delete(np.arange(80), left_out)))
    assert (np.linalg.norm(whole - less, axis=1) <= math.sqrt(2)).all()
    assert (np.abs(whole.max(axis=1) - less.max(axis=1)) <= 1).all()


def test_some_example_does_move_a_vote(task: ClassificationTask) -> None:
    """Else the test above could not fail."""
    whole = votes_of(task)
    moved = [(whole != votes_of(task.subset(np.delete(np.arange(80), i)))).any() for i in range(8)]
    assert any(moved)


def test_an_example_more_or_less_leaves_the_teachers_of_the_others(
    task: ClassificationTask,
) -> None:
    stream = KeyedStream(key=KEY, run_id="a")
    whole = teacher_of(task.train, 7, stream)
    assert set(whole) == set(range(7))
    kept = np.delete(np.arange(80), 30)
    assert teacher_of(task.train.select(kept), 7, stream).tolist() == whole[kept].tolist()
    twice = task.train.select(np.repeat(np.arange(80), 2))
    assert teacher_of(twice, 7, stream).tolist() == np.repeat(whole, 2).tolist(), (
        "copies are one teacher's"
    )
    assert teacher_of(task.train, 7, KeyedStream(key=KEY, run_id="b")).tolist() != whole.tolist()


def test_a_teacher_without_an_example_votes_as_it_starts(task: ClassificationTask) -> None:
    few = task.subset(np.arange(2))
    start = network_context()
    logits, _ = few.outputs(start.model, few.public.select(np.arange(40)))
    votes = votes_of(few)
    assert (votes[np.arange(40), logits.argmax(dim=1).numpy()] >= TEACHING.num_teachers - 2).all()


def test_two_workers_collect_the_votes_of_one_and_leave_the_start(task: ClassificationTask) -> None:
    alone = votes_of(task)
    for votes in on_ranks(2, lambda comm: votes_of(task, comm)):
        assert votes.tolist() == alone.tolist()
    one = network_context()
    before = {name: p.detach().clone() for name, p in one.parameters.items()}
    collect_votes(PLAN, TEACHING, one, task, task.public, LocalComm(), KEY, None)
    assert all(torch.equal(before[name], p) for name, p in one.parameters.items())


def test_a_pause_between_teachers_loses_none(
    task: ClassificationTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught: list[int] = []
    teach = teachers._teach

    def counted(*arguments: Any) -> None:
        taught.append(arguments[-1][1])
        teach(*arguments)

    monkeypatch.setattr(teachers, "_teach", counted)
    expected = votes_of(task)
    taught.clear()
    store = CheckpointStore(folder=tmp_path, run_id="pate")
    with pytest.raises(Paused, match="paused after 3 of 5 teachers"):
        votes_of(task, store=store, pause_fn=lambda: len(taught) == 3)
    assert votes_of(task, store=store).tolist() == expected.tolist()
    assert taught == [0, 1, 2, 3, 4]
    assert votes_of(task, store=store).tolist() == expected.tolist(), (
        "what the student resumes with"
    )
    assert len(taught) == 5


@pytest.mark.parametrize("check", [{}, {"threshold": 6.0, "threshold_noise": 1.7}])
def test_the_accounted_event_costs_as_much_as_the_data_independent_analysis(
    check: dict[str, float],
) -> None:
    """By another room's formulas: α/σ² a query and α/(2 σ1²) a check (Papernot et al. 2018)."""
    method, multiplier, delta = PATE(num_queries=30, num_teachers=12, **check), 0.83, 1e-4
    sigma = method.answer_noise(multiplier)
    votes = np.tile([9, 2, 1], (30, 1))
    known = {} if not check else {"threshold": 6.0, "sigma1": 1.7 * sigma}
    cost = pate_cost(votes, sigma=sigma, delta=delta, **known)
    accounted = RDPAccountant().epsilon(method.event(PLAN, multiplier), delta)
    assert accounted == pytest.approx(cost.independent.epsilon, rel=1e-9)
    assert cost.dependent.epsilon < accounted


def test_answers_are_the_largest_count_after_noise_of_the_accounted_size() -> None:
    """Of two classes the second wins with probability Φ((v2 - v1) / (sqrt(2) σ)); noise of twice or
    half the size would be seen. Binomial interval of 1e-6."""
    method = PATE(num_queries=4000)
    sigma = method.answer_noise(PLAN.noise_multiplier)
    votes = np.tile([30, 30 - round(sigma)], (4000, 1))
    answers, answered = method.released(PLAN, votes, KEY)
    assert answered.all()
    gap = round(sigma) / (math.sqrt(2) * sigma)
    low, high = stats.binom.ppf([5e-7, 1 - 5e-7], 4000, stats.norm.cdf(-gap))
    assert low <= answers.sum() <= high
    for factor in (0.5, 2.0):
        assert not low <= 4000 * stats.norm.cdf(-gap / factor) <= high


@pytest.mark.parametrize("part", ["answers", "check"])
def test_released_answers_to_the_same_votes_depend_on_the_key(part: str) -> None:
    """The noise on the counts and the noise of the check both come from the key, which is not the
    public test key."""
    method = PATE(num_queries=400, num_teachers=60, threshold=30.0, threshold_noise=0.5)
    votes = np.full((400, 6), 30)

    def released(key: bytes) -> list[int]:
        answers, answered = method.released(PLAN, votes, key)
        return (answers if part == "answers" else answered).tolist()

    assert released(KEY) == released(KEY)
    assert len({str(released(key)) for key in (KEY, OTHER_KEY, TEST_KEY)}) == 3


def test_the_check_has_one_noise_on_the_largest_count() -> None:
    """One on every class and then the largest would pass far more often."""
    method = PATE(num_queries=4000, num_teachers=60, threshold=30.0, threshold_noise=0.5)
    sigma1 = 0.5 * method.answer_noise(PLAN.noise_multiplier)
    votes = np.full((4000, 6), round(30 - sigma1))
    _, answered = method.released(PLAN, votes, KEY)
    low, high = stats.binom.ppf([5e-7, 1 - 5e-7], 4000, stats.norm.sf((30 - votes[0, 0]) / sigma1))
    assert low <= answered.sum() <= high


def test_the_check_and_the_answers_have_streams_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The accounted cost is that of independent noises."""
    drawn: list[tuple[int, str, str]] = []
    bits = KeyedStream.bits

    def recorded(
        self: KeyedStream, count: int, *, step: int, purpose: str, name: str = "", start: int = 0
    ) -> Any:
        drawn.append((step, purpose, name))
        return bits(self, count, step=step, purpose=purpose, name=name, start=start)

    monkeypatch.setattr(KeyedStream, "bits", recorded)
    votes = np.full((7, 3), 20)
    PATE(num_queries=7).released(PLAN, votes, KEY)
    of_answers = set(drawn)
    drawn.clear()
    PATE(num_queries=7, num_teachers=60, threshold=30.0, threshold_noise=0.5).released(
        PLAN, votes, KEY
    )
    assert len(of_answers) == 1
    assert len(set(drawn)) == 2, "one stream more: the check's own"


def test_the_student_knows_nothing_but_the_answers(
    task: ClassificationTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same votes two disjoint data sets give the same student, and without noise a good
    one."""
    exact = np.eye(10, dtype=np.int64)[task.public.labels[:60]] * 1000
    monkeypatch.setattr("raydp.extensions.pate.method.collect_votes", lambda *arguments: exact)
    method, found = PATE(num_queries=60), []
    for half in (np.arange(40), np.arange(40, 80)):
        one = network_context()
        trained = method.train(
            replace(PLAN, num_steps=60), one, task.subset(half), LocalComm(), KEY, None
        )
        found.append({name: p.detach().clone() for name, p in one.parameters.items()})
        assert trained.details["answered"] == 60
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert task.utility(one.model) < 0.35, "sixty right answers"


def test_no_answer_at_all_is_an_error(
    task: ClassificationTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "raydp.extensions.pate.method.collect_votes",
        lambda *arguments: np.zeros((60, 10), np.int64),
    )
    method = PATE(num_queries=60, num_teachers=50_000, threshold=50_000.0, threshold_noise=1.0)
    with pytest.raises(ValueError, match=r"method\.threshold must be lower than 50000"):
        method.train(PLAN, network_context(), task, LocalComm(), KEY, None)


def spec_of(folder: Path, **method: Any) -> dict[str, Any]:
    return public_digits_spec(
        folder, method={"name": "pate", **method}, space={"points": [[20, 10, 0.01]]}
    )


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"threshold": 20.0}, "method.threshold and method.threshold_noise must be given together"),
        (
            {"num_teachers": 10, "threshold": 20.0, "threshold_noise": 1.0},
            "method.threshold must be <= num_teachers 10",
        ),
    ],
)
def test_contradictory_options_are_refused(
    tmp_path: Path, method: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_spec(spec_of(tmp_path, **method))


def test_settings_that_do_not_fit_the_data_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"method\.num_queries must be <= the task's \d+ public inputs, got 5000"
    ):
        build_task(load_spec(spec_of(tmp_path, num_queries=5000)))
    with pytest.raises(
        ValueError,
        match=r"task\.name must be a task with public inputs for method pate, got 'digits'",
    ):
        build_task(load_spec({**spec_of(tmp_path), "task": {"name": "digits"}}))
    with pytest.raises(
        ValueError, match=r"method\.num_teachers must be <= num_examples 1438, got 2000"
    ):
        build_task(load_spec(spec_of(tmp_path, num_teachers=2000)))
    audited = {"name": "audited", "of": spec_of(tmp_path)["task"], "num_canaries": 20, "seed": 1}
    with pytest.raises(ValueError, match="an audit would find nothing whatever leaks"):
        build_task(load_spec({**spec_of(tmp_path), "task": audited}))
    with pytest.raises(
        ValueError, match=r"space\.batch_size must be <= method\.num_queries 5, got 10"
    ):
        PATE(num_queries=5).event(PLAN, 1.0)


@pytest.mark.parametrize(
    "inputs",
    [np.random.default_rng(0).standard_normal((60, 4), np.float32), np.arange(240).reshape(60, 4)],
    ids=["numbers", "tokens"],
)
def test_neither_class_nor_padding_tells_public_examples_from_private_ones(inputs: Any) -> None:
    labels = np.arange(60) % 2
    contents = LabelledExamples(inputs=inputs, labels=labels).input_contents()
    assert len(set(contents)) == 60
    assert LabelledExamples(inputs=inputs, labels=1 - labels).input_contents() == contents
    if inputs.dtype == np.int64:
        padded = np.concatenate([inputs, np.full((60, 3), PADDING)], axis=1)
        assert LabelledExamples(inputs=padded, labels=labels).input_contents() == contents


def test_public_inputs_are_taken_from_the_held_out_ones_by_their_content() -> None:
    plain = WithPublicTask(of={"name": "digits"}, fraction=0.3).build(None)
    other = WithPublicTask(of={"name": "digits"}, fraction=0.3, data_seed=1).build(None)
    assert not set(plain.public.contents()) & set(plain.heldout.contents())
    assert plain.facts().notes["public_examples"] == len(plain.public)
    assert plain.facts().notes["heldout_examples"] == len(plain.heldout)
    assert abs(len(plain.public) - 0.3 * 359) < 4 * (0.21 * 359) ** 0.5
    assert plain.facts().content_hash != other.facts().content_hash
    half = plain.subset(np.arange(20))
    fewer = replace(plain, public=plain.public.select(np.arange(5))).subset(np.arange(20))
    assert half.facts().content_hash != fewer.facts().content_hash, (
        "a part's public inputs are of its identity too"
    )
    with pytest.raises(
        ValueError, match=r"task\.of must be a task of classification, got 'builtin'"
    ):
        WithPublicTask(of={"name": "builtin"}).build(None)


CONFIDENT = PATE(num_teachers=60, threshold=30.0, threshold_noise=1.5)


@pytest.mark.parametrize("method", [PATE(), CONFIDENT, PATE(num_teachers=500, num_queries=3)])
def test_the_self_test_passes(method: PATE) -> None:
    assert [c for c in vote_checks(method) if not c.passed] == []


class _Quiet(KeyedStream):
    """Half of the noise."""

    def normal(self, *arguments: Any, **options: Any) -> np.ndarray:
        return 0.5 * super().normal(*arguments, **options)


def _by_position(examples: Any, num_teachers: int, stream: Any) -> np.ndarray:
    return np.arange(len(examples)) % num_teachers


@pytest.mark.parametrize(
    ("target", "fault", "caught"),
    slow_after(
        2,
        [
            (
                "raydp.extensions.pate.teachers.teacher_of",
                _by_position,
                "one record (largest count)",
            ),
            (
                "raydp.extensions.pate.method.PATE.answer_noise",
                lambda self, multiplier: 10 * multiplier,
                "noise of all answers",
            ),
            ("raydp.extensions.pate.method.KeyedStream", _Quiet, "noise on the counts"),
            ("raydp.extensions.pate.method.KeyedStream", _Quiet, "noise of the threshold's check"),
        ],
    ),
)
def test_the_self_test_finds_faults(
    target: str, fault: Any, caught: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, fault)
    assert caught in {c.name for c in vote_checks(CONFIDENT) if not c.passed}


def test_the_cost_of_teachers_is_not_estimated_from_a_few_steps(tmp_path: Path) -> None:
    spec = load_spec(spec_of(tmp_path))
    task, weights = build_task(spec)
    with pytest.raises(
        ValueError, match=r"method\.name must be one whose cost is that of its steps with --measure"
    ):
        measure_cost(spec, task, make_plan(spec, task.facts(), weights).trials, num_steps=2)


def test_the_card_says_whom_the_guarantee_holds_against(tmp_path: Path) -> None:
    spec = load_spec(spec_of(tmp_path))
    task, weights = build_task(spec)
    plan = make_plan(spec, task.facts(), weights)
    trial = plan.trials[0]
    event = spec.method.params.event(trial, trial.noise_multiplier)
    card = card_markdown(
        PrivacyCard(record=plan.privacy[trial.run_id], guarantee=guarantee(event, "rdp"))
    )
    assert "knows all others and sees the noisy answers and the student" in card
    assert "sees every step" not in card
    assert "the votes stay in the sweep's folder" in card
