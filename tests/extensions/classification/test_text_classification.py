"""Texts that a language model classifies by a word for each class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from raydp.extensions.classification.label_words import (
    PADDING,
    LabelWords,
    label_words_of,
    lengths_of,
)
from raydp.extensions.classification.labelled import ClassificationTask
from raydp.extensions.classification.reviews import write_reviews
from raydp.extensions.classification.text_classification import TextClassificationTask, classify
from raydp.models.adapters import attach_adapter, initialise, trainable_parameters
from raydp.models.base_models import load_base, load_tokenizer
from raydp.plugins.registries import names, resolve
from raydp.spec.reading import load_spec
from raydp.spec.sections import AdapterSpec, ModelSpec
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import make_plan
from raydp.sweep.store.transfer import SharedFolder
from raydp.tasks.text.corpus import is_held_out
from raydp.testing.models import byte_tokenizer, llama
from raydp.training.comm import LocalComm
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.thresholds import Clipping
from tests.builders.models import gpt2
from tests.builders.specs import small_spec

WORDS = {"negative": "-", "positive": "+"}
REVIEWS = {"name": "text_classification", "num_reviews": 200, "label_words": WORDS}
ADAPTERS = {
    "lora": AdapterSpec(r=2, target_modules=("q_proj", "down_proj")),
    "soft_prompt": AdapterSpec(type="soft_prompt", num_virtual_tokens=3),
    "prefix": AdapterSpec(type="prefix", num_virtual_tokens=3),
    "none": AdapterSpec(type="none"),
}


def task_of(**options: Any) -> ClassificationTask:
    return TextClassificationTask(**{"num_reviews": 200, "label_words": WORDS, **options}).build(
        load_tokenizer("tiny")
    )


def trained_model(adapter: AdapterSpec) -> tuple[torch.nn.Module, dict[str, torch.nn.Parameter]]:
    """The tiny model with an adapter away from its start, at which LoRA's A has no gradient."""
    model = attach_adapter(load_base(ModelSpec(name="tiny")), adapter)
    parameters = trainable_parameters(model, adapter)
    if adapter.type != "none":
        initialise(parameters, adapter, {}, 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in parameters.values():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model, parameters


@pytest.mark.parametrize("kind", ADAPTERS)
def test_logits_are_those_of_each_text_alone_and_unpadded(kind: str) -> None:
    model, _ = trained_model(ADAPTERS[kind])
    task = task_of()
    found, _ = task.outputs(model, task.heldout)
    words = torch.tensor(task.label_words.token_ids)
    for row, logits in list(zip(task.heldout.inputs, found, strict=True))[:5]:
        ids = torch.from_numpy(row[row != PADDING])[None]
        with torch.inference_mode():
            expected = model(input_ids=ids).logits[
                0, -1, words
            ]  # peft puts its soft prompt in front by itself
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ADAPTERS)
def test_clipped_gradients_are_those_of_autograd_example_by_example(kind: str) -> None:
    """Also of tied embeddings, where only the last tokens go through the output layer. fp32: 1e-5
    of the norm."""
    model, parameters = trained_model(ADAPTERS[kind])
    task, c = task_of(), 0.5
    batch = task.batch(np.array([3, 0, 11, 40, 7]))
    assert len(set(lengths_of(batch.inputs).tolist())) > 1, "else padding is not tried"
    expected, norms = (
        {n: torch.zeros_like(p, dtype=torch.float64) for n, p in parameters.items()},
        [],
    )
    for row in range(5):
        alone = task.batch(np.array([[3, 0, 11, 40, 7][row]]))
        gradients = torch.autograd.grad(
            task.per_example_loss(model, alone).sum(), list(parameters.values())
        )
        norms.append(torch.sqrt(sum(g.double().square().sum() for g in gradients)))
        for name, gradient in zip(parameters, gradients, strict=True):
            expected[name] += gradient.double() * min(1.0, c / norms[-1].item())
    total = {n: torch.zeros_like(p) for n, p in parameters.items()}
    engine = ClippedGradients(model, parameters, Clipping(c))
    losses, found = engine.accumulate(lambda: task.per_example_loss(model, batch), total)
    torch.testing.assert_close(found.double(), torch.stack(norms), rtol=1e-4, atol=1e-6)
    error = sum((total[n].double() - expected[n]).square().sum() for n in expected).sqrt()
    assert error <= 1e-5 * sum(g.square().sum() for g in expected.values()).sqrt()
    logits = task.logits(model, batch.inputs)
    torch.testing.assert_close(
        losses, F.cross_entropy(logits, batch.labels, reduction="none"), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("model_fn", [llama, gpt2])
def test_other_architectures_and_an_opening_token(
    model_fn: Callable[[int], torch.nn.Module],
) -> None:
    """A tokenizer that puts a token before every text, and positions that are learnt."""
    tokenizer = byte_tokenizer()
    task = TextClassificationTask(label_words=WORDS, max_length=40, template="{text}\n?").build(
        tokenizer
    )
    assert task.label_words.opening == (0,)
    assert (task.train.inputs[:, 0] == 0).all()
    assert task.facts().notes["cut"] > 0, "bytes are many"
    assert int(task.lengths().max()) == 40
    model = model_fn(len(tokenizer))
    found, _ = task.outputs(model, task.heldout.select(np.arange(6)))
    for row, logits in zip(task.heldout.inputs, found, strict=False):
        ids = torch.from_numpy(row[row != PADDING])[None]
        assert tokenizer.decode(ids[0, -2:]) == "\n?", "a cut leaves the question"
        with torch.inference_mode():
            expected = model(input_ids=ids).logits[0, -1, list(task.label_words.token_ids)]
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_reviews_are_generated_and_named_synthetic() -> None:
    reviews = write_reviews(1000, 0)
    assert reviews == write_reviews(1000, 0) != write_reviews(1000, 1)
    assert reviews[:10] == write_reviews(10, 0), "more of them leave the first as they are"
    assert len({text for text, _ in reviews}) > 800
    assert 400 < sum(kind == "positive" for _, kind in reviews) < 600
    task = task_of(num_reviews=1000)
    facts = task.facts()
    assert (facts.num_examples, facts.privacy_unit, facts.utility_is_public) == (
        len(task.train),
        "text",
        True,
    )
    assert (
        facts.num_tokens == int((task.train.inputs != PADDING).sum()) == int(task.lengths().sum())
    )
    assert abs(len(task.heldout) - 200) < 4 * (1000 * 0.2 * 0.8) ** 0.5
    assert not set(map(bytes, task.train.contents())) & set(task.heldout.contents())


def test_the_task_hash_depends_on_every_defining_field() -> None:
    changes: list[dict[str, Any]] = [
        {}, {"data_seed": 1}, {"template": "{text} Is it good?"}, {"label_words": {"negative": "n", "positive": "p"}},
        {"label_words": {"positive": "+", "negative": "-"}}, {"max_length": 63},
    ]  # fmt: skip
    assert len({task_of(**change).facts().content_hash for change in changes}) == len(changes)
    few = task_of().subset(np.arange(3))
    assert few.facts().num_tokens == int(few.lengths().sum())
    assert few.facts().content_hash != task_of().facts().content_hash


def test_a_file_of_ones_own(write_jsonl: Callable[..., Path], tmp_path: Path) -> None:
    rows = [{"body": f"letter {i}", "topic": "tea" if i % 3 else 7} for i in range(60)]
    path = write_jsonl("letters.jsonl.gz", rows)
    words = {"tea": "t", "7": "7"}
    given = {
        "path": str(path),
        "column": "body",
        "label": "topic",
        "label_words": words,
        "num_reviews": None,
    }
    task = task_of(**given)
    assert len(task.train) + len(task.heldout) == 60
    assert not task.facts().utility_is_public
    tokenizer = load_tokenizer("tiny")
    for examples in (task.train, task.heldout):
        for row, label in zip(examples.inputs, examples.labels, strict=True):
            number = int(
                tokenizer.decode(row[row != PADDING]).split("\n")[0].removeprefix("letter ")
            )
            assert label == (0 if number % 3 else 1), "classes are in the order of label_words"
    (tmp_path / "t.csv").write_text(
        "text,label\n" + "".join(f"row {i},{'xy'[i % 2]}\n" for i in range(40))
    )
    own = {"path": str(tmp_path / "t.csv"), "num_reviews": None}
    plain = TextClassificationTask(path=own["path"], label_words={"x": "x", "y": "y"})
    before = plain.build(tokenizer)
    (tmp_path / "t.csv").write_text(
        "text,label\na new one,x\n" + "".join(f"row {i},{'xy'[i % 2]}\n" for i in range(40))
    )
    after = plain.build(tokenizer)
    assert set(before.train.contents()) <= set(after.train.contents()), "a row more moves no other"
    assert len(after.train) + len(after.heldout) == 41


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"label_words": None},
            r"must be one token each .* got \d+ for class 1 in their order",
        ),
        (
            {"label_words": {"negative": "+", "positive": "+"}},
            r"must have different tokens, got one token for classes 1 and 2",
        ),
        (
            {"label_words": {"bad": "-", "positive": "+"}},
            "must be of the classes negative, positive without task.path",
        ),
        ({"label_words": {"negative": "-"}}, "must name a word for each of two classes"),
        (
            {"label_words": {"negative": "", "positive": "+"}},
            "must name a word for each of two classes",
        ),
        ({"max_length": 3}, r"task\.max_length must be > \d+, the tokens of task\.template, got 3"),
        ({"template": "Sentiment:"}, r"must hold \{text\} once and some text after it"),
        ({"template": "{text}{text}?"}, r"must hold \{text\} once"),
        ({"template": "Which? {text} "}, r"must hold \{text\} once"),
        ({"label": "kind"}, r"task\.label must go with task\.path, got 'kind' without it"),
        ({"path": "x.csv"}, r"task\.num_reviews must be left out with task\.path, got 200"),
        ({"heldout_fraction": 1e-9}, "must leave texts to train on and others to hold out"),
    ],
)
def test_contradictory_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task_of(**options)


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        (
            {"text": "a", "label": 1.5},
            {},
            "must have a string 'label' in every row, got a number in t.jsonl, line 2",
        ),
        (
            {"label": "x"},
            {},
            "must have a string 'text' in every row, got only label in t.jsonl, line 2",
        ),
        (
            {"text": "a", "label": "z"},
            {},
            "must have a word for every class, got none for that of t.jsonl, line 2",
        ),
        (
            {"text": "a", "label": "x"},
            {"label_words": None},
            "task.label must have at least two classes, got 1",
        ),
    ],
)
def test_rows_that_are_none_are_refused(
    write_jsonl: Callable[..., Path], row: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    path = write_jsonl("t.jsonl", [{"text": "b", "label": "x"}, row])
    with pytest.raises(ValueError, match=message):
        task_of(
            path=str(path), num_reviews=None, **{"label_words": {"x": "x", "y": "y"}, **options}
        )


def spec_of(folder: Path, **changes: Any) -> dict[str, Any]:
    own = {"task": REVIEWS, "scores": [{"name": "mia_outputs"}], "select": {"score": "mia_outputs"}}
    return small_spec(folder, **{**own, "space": {"points": [[30, 30, 0.03]]}, **changes})


def test_a_network_on_texts_and_a_language_model_on_digits_are_refused(tmp_path: Path) -> None:
    task, _ = build_task(load_spec(spec_of(tmp_path)))
    assert isinstance(task, ClassificationTask)
    again, _ = build_task(load_spec(load_spec(spec_of(tmp_path)).model_dump(mode="json")))
    assert again.facts() == task.facts(), "as a sweep's folder keeps the spec"
    network = {"name": "mlp:64:2", "adapter": {"type": "none"}}
    with pytest.raises(
        ValueError, match=r"model\.name must be a language model for the task 'text_classification'"
    ):
        build_task(load_spec(spec_of(tmp_path, model=network)))
    with pytest.raises(
        ValueError, match=r"model\.name must be a language model for the task 'with_public'"
    ):
        build_task(
            load_spec(
                {**spec_of(tmp_path, model=network), "task": {"name": "with_public", "of": REVIEWS}}
            )
        )
    with pytest.raises(
        ValueError, match=r"must be a network for inputs of 1x8x8 and 10 classes, got 'tiny'"
    ):
        build_task(load_spec({**spec_of(tmp_path), "task": {"name": "digits"}}))
    long = {
        **spec_of(tmp_path),
        "task": {**REVIEWS, "max_length": 400, "template": "{text}" + "?" * 250},
    }
    with pytest.raises(
        ValueError, match=r"task must give examples that fit the 256 positions of 'tiny'"
    ):
        build_task(load_spec(long))


def test_scores_of_secrets_and_of_language_modelling_have_nothing_to_score() -> None:
    """As with digits, word for word."""
    texts, digits = task_of(), resolve("tasks", "digits")().build(None)
    for name in ("vmr", "vmr_exact", "logprob", "air", "acr", "exposure", "mia", "model_distance"):
        score = resolve("scores", name).model_validate(
            {"kind": "functional"} if name == "model_distance" else {}
        )
        with pytest.raises(ValueError, match="task") as of_texts:
            score.check(texts)
        with pytest.raises(ValueError, match="task") as of_digits:
            score.check(digits)
        assert str(of_texts.value) == str(of_digits.value)
    assert "mia_outputs" in names("scores")
    resolve("scores", "mia_outputs")().check(texts)


def test_tasks_made_of_texts() -> None:
    tokenizer = load_tokenizer("tiny")
    public = resolve("tasks", "with_public")(of=REVIEWS).build(tokenizer)
    assert len(public.public) + len(public.heldout) == len(task_of().heldout)
    half = resolve("tasks", "half")(of=REVIEWS).build(tokenizer)
    assert 0.3 < len(half.train) / len(task_of().train) < 0.7
    both = resolve("tasks", "with_reference")(of=REVIEWS, fraction=0.5).build(tokenizer)
    assert both.facts().num_reference > 0
    assert both.facts().num_tokens == task_of().facts().num_tokens
    other = {**REVIEWS, "data_seed": 1, "label_words": {"negative": "n", "positive": "p"}}
    with pytest.raises(
        ValueError, match=r"task\.reference must have examples of the kind of task\.of"
    ):
        resolve("tasks", "with_reference")(of=REVIEWS, reference=other).build(tokenizer)
    with pytest.raises(
        ValueError, match=r"task\.of must be a language modelling task, got 'text_classification'"
    ):
        resolve("tasks", "audited")(of=REVIEWS, seed=1).build(tokenizer)


def test_a_text_is_classified_as_in_training() -> None:
    model, tokenizer = load_base(ModelSpec(name="tiny")).model, load_tokenizer("tiny")
    texts = [text for text, _ in write_reviews(200, 0)]
    held = {text for text in texts if is_held_out(text, 0.2, 0)}
    logits, _ = task_of().outputs(model, task_of().heldout)
    found = classify(model, tokenizer, [text for text in texts if text in held], label_words=WORDS)
    assert [list(row) for row in found] == [["negative", "positive"]] * len(logits)
    expected = logits.double().softmax(dim=1).tolist()
    assert [list(row.values()) for row in found] == [
        pytest.approx(row, abs=1e-5) for row in expected
    ]


def test_the_words_of_demonstrations() -> None:
    words = LabelWords(token_ids=(7, 8), opening=(1,), between=(9,))
    inputs = np.array([[1, 4, 5, PADDING], [1, 6, PADDING, PADDING]])
    assert words.demonstrations(inputs, np.array([1, 0])) == [1, 4, 5, 8, 9, 6, 7, 9]
    assert words.demonstrations(inputs[:0], np.array([], np.int64)) == []
    assert words.following(inputs).tolist() == [[4, 5, PADDING], [6, PADDING, PADDING]]
    assert words.longest(2, 3, 2) == len([1, 4, 5, 8, 9, 4, 5, 8, 9, 6])
    assert label_words_of(byte_tokenizer(), WORDS).between == tuple(
        byte_tokenizer()("\n\n", add_special_tokens=False).input_ids
    )


@pytest.mark.daily
@pytest.mark.parametrize("name", ["dp_adam", "dp_sgd", "nonprivate", "werm"])
def test_methods_train_on_texts(name: str, tmp_path: Path) -> None:
    """As a worker does it, in this process."""
    method: dict[str, Any] = (
        {"name": name, "max_grad_norm": 0.5} if name.startswith("dp") else {"name": name}
    )
    spec = spec_of(tmp_path, method=method)
    if name == "werm":
        spec |= {"task": {"name": "with_reference", "of": REVIEWS, "fraction": 0.3}}
        method["reference_weight"] = 0.5
    loaded = load_spec({**spec, "privacy": {**spec["privacy"], "target_epsilon": 1000}})
    task, weight_hash = build_task(loaded)
    trial = make_plan(loaded, task.facts(), weight_hash).trials[0]
    runner = TrialRunner(
        loaded, task, load_base(loaded.model), LocalComm(torch.device("cpu")), bytes(32)
    )
    result = runner.run(
        trial, SharedFolder(folder=tmp_path / "run", run_id=trial.run_id), "attempt-1"
    )
    assert result.status == "finished"
    losses = [row["loss"] for row in result.history]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert 0 <= result.scores["mia_outputs"].value <= 1
