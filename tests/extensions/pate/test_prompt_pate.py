"""PromptPATE: teachers are one frozen model behind demonstrations of their own, and one example is
still one vote."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from raydp.extensions.classification.label_words import PADDING, read_once
from raydp.extensions.classification.labelled import ClassificationTask
from raydp.extensions.pate import prompted
from raydp.extensions.pate.method import PATE
from raydp.extensions.pate.prompted import Prompting, prompted_logits
from raydp.extensions.pate.teachers import collect_votes, teacher_of
from raydp.extensions.pate.with_public import WithPublicTask
from raydp.models.adapters import attach_adapter, initialise, trainable_parameters
from raydp.models.base_models import PretrainedModel, load_base
from raydp.selftest.ranks import on_ranks
from raydp.spec.reading import load_spec
from raydp.spec.sections import AdapterSpec
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import make_plan
from raydp.sweep.store.transfer import SharedFolder
from raydp.testing.models import byte_tokenizer, llama
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm, LocalComm
from raydp.training.noise.stream import KeyedStream
from raydp.training.trial import Paused, TrainingContext
from raydp.training.trial_plan import TrialPlan
from tests.builders.models import gpt2
from tests.builders.specs import small_spec

TOKENIZER = byte_tokenizer()
ADAPTERS = {
    "lora": AdapterSpec(r=2),
    "soft_prompt": AdapterSpec(type="soft_prompt", num_virtual_tokens=3),
    "none": AdapterSpec(type="none"),
}
PROMPTING = Prompting(num_teachers=6, num_demonstrations=2)
KEY = bytes(range(32))
PLAN = TrialPlan(
    run_id="pate",
    batch_size=10,
    num_steps=12,
    learning_rate=0.01,
    seed=0,
    num_examples=24,
    noise_multiplier=0.5,
)
STREAM = KeyedStream(key=KEY, run_id=PLAN.run_id)


@pytest.fixture(scope="module")
def task() -> ClassificationTask:
    """Texts of up to 20 bytes: two demonstrations and a query fit gpt2's 64 positions."""
    of = {
        "name": "text_classification",
        "num_reviews": 200,
        "max_length": 20,
        "template": "{text}?",
    }
    words = {"negative": "-", "positive": "+"}
    whole = WithPublicTask(of={**of, "label_words": words, "data_seed": 1}).build(TOKENIZER)
    return whole.subset(np.arange(24))


def context(kind: str = "lora", **options: Any) -> TrainingContext:
    """Its adapter is away from its start: no teacher may know of it."""
    base = PretrainedModel(
        name="llama", model=llama(len(TOKENIZER)), tokenizer=TOKENIZER, weight_hash=""
    )
    model = attach_adapter(base, ADAPTERS[kind])
    parameters = trainable_parameters(model, ADAPTERS[kind])
    if kind != "none":
        initialise(parameters, ADAPTERS[kind], {}, 0)
        with torch.no_grad():
            for parameter in parameters.values():
                parameter += 1
    return TrainingContext(model=model, parameters=parameters, **options)


def votes_of(task: ClassificationTask, comm: Comm | None = None, **options: Any) -> np.ndarray:
    queries, store = task.public.select(np.arange(12)), options.pop("store", None)
    return collect_votes(
        PLAN, PROMPTING, context(**options), task, queries, comm or LocalComm(), KEY, store
    )


def mistral(vocab_size: int) -> MistralForCausalLM:
    """A sliding window: its cache cannot be cut."""
    config = MistralConfig(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, sliding_window=16,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MistralForCausalLM(config).eval()


@pytest.mark.parametrize(("model_fn", "shares"), [(llama, True), (gpt2, True), (mistral, False)])
@pytest.mark.parametrize("num_shown", [0, 1, 2])
def test_the_cache_changes_nothing(
    task: ClassificationTask,
    model_fn: Callable[[int], torch.nn.Module],
    shares: bool,
    num_shown: int,
) -> None:
    """Logits are those of a plain pass over each query's whole text, which is written out here by
    hand."""
    model, words, shown = (
        model_fn(len(TOKENIZER)),
        task.label_words,
        task.train.select(np.arange(num_shown)),
    )
    queries = task.public.select(np.arange(8))
    assert words.opening == (0,), "which stands once, at the start"
    with torch.inference_mode():
        assert (read_once(model, [0, 5, 6]) is not None) == shares
        found = prompted_logits(model, task, shown, queries)
        for query, logits in zip(queries.inputs, found, strict=True):
            text = "".join(
                TOKENIZER.decode(row[row != PADDING], skip_special_tokens=True)
                + "-+"[label]
                + "\n\n"
                for row, label in zip(shown.inputs, shown.labels, strict=True)
            ) + TOKENIZER.decode(query[query != PADDING], skip_special_tokens=True)
            ids = TOKENIZER(text, return_tensors="pt")["input_ids"]
            assert words.longest(num_shown, 20, 20) >= ids.shape[1]
            expected = model(input_ids=ids).logits[0, -1, list(words.token_ids)]
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_queries_are_read_without_the_demonstrations_again(
    task: ClassificationTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, read = llama(len(TOKENIZER)), []
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    with torch.inference_mode():
        prompted_logits(
            model, task, task.train.select(np.arange(2)), task.public.select(np.arange(8))
        )
        once, read[:] = sum(read), []
        monkeypatch.setattr(prompted, "read_once", lambda *arguments: None)
        prompted_logits(
            model, task, task.train.select(np.arange(2)), task.public.select(np.arange(8))
        )
    # the opening stands once, a word and a blank line after each
    demonstrations, query = (1 + 2 * (19 + 1 + 2), 19)
    assert once == demonstrations + 8 * query
    assert sum(read) == 8 * (demonstrations + query)


@pytest.mark.parametrize("kind", ADAPTERS)
def test_teachers_are_the_base_whatever_the_student_is(task: ClassificationTask, kind: str) -> None:
    one = context(kind)
    before = {name: p.detach().clone() for name, p in one.parameters.items()}
    votes = collect_votes(
        PLAN, PROMPTING, one, task, task.public.select(np.arange(12)), LocalComm(), KEY, None
    )
    assert votes.tolist() == votes_of(task).tolist()
    assert all(
        torch.equal(before[name], p) and p.requires_grad for name, p in one.parameters.items()
    )
    assert (votes.sum(axis=1) == 6).all()
    assert len(set(map(tuple, votes.tolist()))) > 1, "they do not agree on everything"


def test_one_example_changes_one_teacher_and_one_vote_of_a_query_at_most(
    task: ClassificationTask,
) -> None:
    """Counts move by sqrt(2) and the largest by 1 at most, where an example is left out; and some
    does move a vote. What every other teacher shows stays the same, byte for byte."""
    whole, shown = votes_of(task), shown_by(task)
    teachers, moved = teacher_of(task.train, 6, STREAM), 0
    for left_out in range(0, 24, 3):
        fewer = task.subset(np.delete(np.arange(24), left_out))
        less, now = votes_of(fewer), shown_by(fewer)
        assert (np.linalg.norm(whole - less, axis=1) <= math.sqrt(2)).all()
        assert (np.abs(whole.max(axis=1) - less.max(axis=1)) <= 1).all()
        assert [t for t in range(6) if now[t] != shown[t]] in ([], [teachers[left_out]])
        moved += bool((whole != less).any())
    assert moved


def shown_by(task: ClassificationTask) -> list[list[bytes]]:
    teachers = teacher_of(task.train, 6, STREAM)
    return [
        PROMPTING.shown(task.train.select(np.flatnonzero(teachers == t)), STREAM).contents()
        for t in range(6)
    ]


def test_a_teacher_shows_the_first_of_its_own_in_a_keyed_order(task: ClassificationTask) -> None:
    few = task.train.select(np.arange(9))
    shown = PROMPTING.shown(few, STREAM).contents()
    assert len(shown) == 2
    assert PROMPTING.shown(few.select(np.arange(9)[::-1]), STREAM).contents() == shown, (
        "not in that of the file"
    )
    others = [
        PROMPTING.shown(few, KeyedStream(key=KEY, run_id=f"{i}")).contents() for i in range(5)
    ]
    assert any(other != shown for other in others)
    assert PROMPTING.shown(few.select(np.array([4])), STREAM).contents() == [few.contents()[4]], (
        "it has no more"
    )
    assert len(PROMPTING.shown(few.select(np.array([], np.int64)), STREAM)) == 0
    copies = PROMPTING.shown(few.select(np.repeat(np.arange(9), 3)), STREAM).contents()
    assert copies == [shown[0]] * 2, "copies are one teacher's, side by side"


def test_without_an_example_a_teacher_answers_from_the_template_alone(
    task: ClassificationTask,
) -> None:
    queries = task.public.select(np.arange(12))
    one = context()
    zero = PROMPTING.choices(one, task, np.array([], np.int64), queries, [0, 0], STREAM)
    logits, _ = task.outputs(llama(len(TOKENIZER)), queries)
    assert zero.tolist() == logits.argmax(dim=1).tolist()


def test_two_workers_and_a_pause_collect_the_same_votes(
    task: ClassificationTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = votes_of(task)
    for votes in on_ranks(2, lambda comm: votes_of(task, comm)):
        assert votes.tolist() == alone.tolist()
    asked: list[int] = []
    choices = Prompting.choices

    def counted(self: Prompting, *arguments: Any) -> torch.Tensor:
        asked.append(arguments[4][1])
        return choices(self, *arguments)

    monkeypatch.setattr(Prompting, "choices", counted)
    store = CheckpointStore(folder=tmp_path, run_id="pate")
    with pytest.raises(Paused, match="paused after 4 of 6 teachers"):
        votes_of(task, store=store, pause_fn=lambda: len(asked) == 4)
    assert votes_of(task, store=store).tolist() == alone.tolist()
    assert asked == list(range(6))


def test_the_student_learns_the_answers(
    task: ClassificationTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A soft prompt, from votes that are right."""
    exact = np.eye(2, dtype=np.int64)[task.public.labels[:12]] * 1000
    monkeypatch.setattr("raydp.extensions.pate.method.collect_votes", lambda *arguments: exact)
    one = context("soft_prompt")
    student = replace(PLAN, batch_size=12, num_steps=60, learning_rate=0.1)
    method = PATE(teachers="prompted", num_queries=12, num_teachers=6)
    trained = method.train(student, one, task, LocalComm(), KEY, None)
    logits, labels = task.outputs(one.model, task.public.select(np.arange(12)))
    assert (logits.argmax(dim=1) == labels).double().mean() > 0.9
    assert trained.details["answered"] == 12
    assert trained.history[-1]["loss"] < trained.history[0]["loss"]


def test_trained_teachers_are_as_they_were() -> None:
    """Their serialised form, and with it the identity of the runs of before."""
    assert PATE().model_dump(mode="json") == {
        "num_teachers": 50, "num_queries": 100, "teacher_steps": 100, "teacher_learning_rate": 0.01,
    }  # fmt: skip
    written = PATE(teachers="prompted").model_dump(mode="json")
    assert written == {
        "teachers": "prompted",
        "num_teachers": 50,
        "num_queries": 100,
        "num_demonstrations": 4,
    }
    assert PATE.model_validate(written).model_dump(mode="json") == written
    assert PATE.model_validate({"teachers": "trained"}).model_dump(
        mode="json"
    ) == PATE().model_dump(mode="json")


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            {"teachers": "prompted", "teacher_steps": 100},
            "teacher_steps must be left out with teachers prompted, got 100",
        ),
        (
            {"teachers": "prompted", "teacher_batch_size": 3},
            "teacher_batch_size must be left out with teachers prompted",
        ),
        (
            {"teachers": "prompted", "teacher_learning_rate": 0.1},
            "teacher_learning_rate must be left out with teachers prompted, got 0.1",
        ),
        (
            {"num_demonstrations": 4},
            "num_demonstrations must be left out with teachers trained, got 4",
        ),
        ({"teachers": "asked"}, "Input should be 'trained' or 'prompted'"),
    ],
)
def test_fields_that_do_not_apply_are_refused(method: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PATE.model_validate(method)


def spec_of(folder: Path, **changes: Any) -> dict[str, Any]:
    words = {"negative": "-", "positive": "+"}
    reviews = {"name": "text_classification", "num_reviews": 400, "label_words": words}
    return small_spec(
        folder,
        **{
            "task": {"name": "with_public", "of": reviews},
            "method": {
                "name": "pate",
                "teachers": "prompted",
                "num_queries": 20,
                "num_demonstrations": 2,
            },
            "space": {"points": [[10, 3, 0.01]]},
            "scores": [{"name": "mia_outputs"}],
            "select": {"score": "mia_outputs"},
            **changes,
        },
    )


def test_unfit_settings_are_refused_before_training(tmp_path: Path) -> None:
    task, weights = build_task(load_spec(spec_of(tmp_path)))
    plan = make_plan(load_spec(spec_of(tmp_path)), task.facts(), weights)
    (record,) = plan.privacy.values()
    assert "50 prompted teachers of 2 demonstrations, noise of std" in str(
        record.procedure.description
    )
    digits = {"task": {"name": "with_public", "of": {"name": "digits"}}, "model": {
        "name": "linear:1x8x8:10", "adapter": {"type": "none"},
    }}  # fmt: skip
    with pytest.raises(
        ValueError, match=r"task\.name must be a task of text classification for prompted teachers"
    ):
        build_task(load_spec(spec_of(tmp_path, **digits)))
    with pytest.raises(
        ValueError, match=r"task\.name must be a task with public inputs for method pate"
    ):
        build_task(load_spec(spec_of(tmp_path, task=spec_of(tmp_path)["task"]["of"])))
    many = {"name": "pate", "teachers": "prompted", "num_queries": 20, "num_demonstrations": 4}
    with pytest.raises(
        ValueError,
        match=r"num_demonstrations must leave room for a query in the 256 positions of 'tiny', got 4, which may",
    ):
        build_task(load_spec(spec_of(tmp_path, method=many)))
    with pytest.raises(
        ValueError, match=r"cluster\.sharding must be none for method pate, got full"
    ):
        build_task(
            load_spec(spec_of(tmp_path, cluster={"sharding": "full", "workers_per_trial": 2}))
        )


SPEC = Path(__file__).parents[3] / "docs" / "specs" / "prompt_pate.yaml"


@pytest.mark.slow
@pytest.mark.parametrize("teachers", ["prompted", "trained"])
def test_a_run_of_the_spec(teachers: str, tmp_path: Path) -> None:
    """As a worker does it, in this process: with the spec's teachers, and with trained adapters in
    their place."""
    written = load_spec(SPEC).model_dump(mode="json") | {"storage": str(tmp_path)}
    if teachers == "trained":
        written["method"] = {
            "name": "pate", "num_teachers": 2, "num_queries": 40, "teacher_steps": 30, "teacher_batch_size": 32,
            "teacher_learning_rate": 0.03,
        }  # fmt: skip
    spec = load_spec(written)
    task, weight_hash = build_task(spec)
    plan = make_plan(spec, task.facts(), weight_hash)
    trial = plan.trials[0]
    record = plan.privacy[trial.run_id]
    assert (
        0.98 * spec.privacy.target_epsilon < record.accounted.epsilon <= spec.privacy.target_epsilon
    )
    runner = TrialRunner(
        spec, task, load_base(spec.model), LocalComm(torch.device("cpu")), bytes(32)
    )
    result = runner.run(
        trial, SharedFolder(folder=tmp_path / "run", run_id=trial.run_id), "attempt-1"
    )
    assert result.status == "finished"
    votes = np.array(result.details["votes"])
    assert (votes.sum(axis=1) == spec.method.params.num_teachers).all()
    right = (votes.argmax(axis=1) == task.public.labels[: len(votes)]).mean()
    if teachers == "trained":
        assert right >= 0.65, "chance is 0.5"
