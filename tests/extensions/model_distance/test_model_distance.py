"""Model distance against what it is by definition, computed on merged weights and on whole
softmaxes."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from raydp.extensions.later_scores.sets import TrainedModels
from raydp.extensions.model_distance.score import (
    ModelDistance,
    functional_distances,
    parameter_distances,
)
from raydp.models import base_models as models
from raydp.scores.score import Context
from raydp.spec.sections import AdapterSpec
from raydp.tasks.task import TaskFacts
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.text.token_loss import IGNORE
from tests.extensions.later_scores.test_model_sets import (
    BESIDE,
    DORA,
    FULL,
    IA3,
    LORA,
    PREFIX,
    PROMPT,
    alone,
    base,
    train,
)

NAMES = ("a", "b", "c")


@pytest.fixture
def folders(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Path]:
    for seed, name in enumerate(NAMES):
        train(tmp_path / name, request.param, seed)
    return {name: tmp_path / name for name in NAMES}


def text_task() -> LanguageModelingTask:
    """Held-out examples of different lengths, of which some start with tokens that are no
    targets."""
    rng = np.random.default_rng(0)
    examples = [rng.integers(1, 700, length).tolist() for length in (4, 9, 9, 17, 30)]
    heldout = TokenizedExamples.from_lists(examples, [1, 3, 1, 10, 2])
    facts = TaskFacts(
        num_examples=5, num_units=5, privacy_unit="example", content_hash="", num_tokens=9
    )
    return LanguageModelingTask(train=heldout, heldout=heldout, task_facts=facts)


def merged(folder: Path) -> dict[str, torch.Tensor]:
    """Every weight of a model that needs no adapter any more, in double precision."""
    model = alone(folder).double()
    model = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    "folders",
    [LORA, AdapterSpec(r=2, alpha=4, target_modules=["up_proj"]), FULL, IA3, BESIDE, DORA],
    ids=["lora", "wide lora", "full", "ia3", "lora and lm_head", "dora"],
    indirect=True,
)
@pytest.mark.parametrize("held_bytes", [2**30, 1], ids=["all in memory", "one at a time"])
def test_parameter_distance_is_that_of_the_merged_weights(
    folders: dict[str, Path], held_bytes: int
) -> None:
    found = parameter_distances(TrainedModels(base(), folders), held_bytes=held_bytes)
    weights = [merged(folder) for folder in folders.values()]
    for i, j in combinations(range(3), 2):
        expected = math.sqrt(
            sum(float((weights[i][k] - weights[j][k]).square().sum()) for k in weights[i])
        )
        assert (
            found[i, j] == found[j, i] == pytest.approx(expected, rel=1e-6)
        )  # peft rounds its sum to fp32
    assert np.diag(found).tolist() == [0, 0, 0]


@pytest.mark.parametrize("folders", [LORA], indirect=True)
def test_equal_updates_are_at_distance_zero(folders: dict[str, Path], tmp_path: Path) -> None:
    train(tmp_path / "twin", LORA, 0)
    found = parameter_distances(
        TrainedModels(base(), {"a": folders["a"], "twin": tmp_path / "twin"})
    )
    assert found[0, 1] == 0


@pytest.mark.parametrize("folders", [PROMPT, PREFIX], indirect=True, ids=["soft prompt", "prefix"])
def test_the_weights_of_virtual_tokens_are_their_embeddings(folders: dict[str, Path]) -> None:
    from safetensors.torch import load_file

    found = parameter_distances(TrainedModels(base(), folders))
    prompts = [
        load_file(folder / "adapter_model.safetensors")["prompt_embeddings"]
        for folder in folders.values()
    ]
    assert found[0, 1] == pytest.approx(float((prompts[0] - prompts[1]).norm()), rel=1e-6)  # fp32


@pytest.mark.parametrize(
    "folders",
    [LORA, PROMPT, PREFIX, FULL],
    indirect=True,
    ids=["lora", "soft prompt", "prefix", "full"],
)
@pytest.mark.parametrize("held_bytes", [2**30, 1], ids=["one batch", "one example at a time"])
def test_functional_distance_is_equation_1(folders: dict[str, Path], held_bytes: int) -> None:
    task = text_task()
    found = functional_distances(
        TrainedModels(base(), folders), task, np.arange(5), held_bytes=held_bytes
    )
    probabilities = []
    for folder in folders.values():
        model, of_model = alone(folder), []
        for i in range(5):
            batch = task.heldout_batch(np.array([i]))
            with torch.inference_mode():
                logits = model(input_ids=batch.input_ids).logits[0, -batch.input_ids.shape[1] :]
            of_model.append(logits[:-1][batch.labels[0, 1:] != IGNORE].double().softmax(dim=-1))
        probabilities.append(of_model)
    for i, j in combinations(range(3), 2):
        pairs = zip(probabilities[i], probabilities[j], strict=True)
        expected = np.mean([float((p - q).norm(dim=1).mean()) for p, q in pairs])
        assert (
            found[i, j] == found[j, i] == pytest.approx(expected, rel=1e-4)
        )  # fp32 logits of padded and plain rows


@pytest.mark.parametrize("folders", [LORA], indirect=True)
@pytest.mark.parametrize("kind", ["parameter", "functional"])
def test_a_models_value_is_its_mean_distance_to_the_others(
    folders: dict[str, Path], kind: str
) -> None:
    many, task = TrainedModels(base(), folders), text_task()
    score = ModelDistance(kind=kind, max_examples=None)
    pairwise = (
        parameter_distances(many)
        if kind == "parameter"
        else functional_distances(many, task, np.arange(5))
    )
    found = dict(score.measure_many(many, task, seed=0, context=Context(done=frozenset({"b"}))))
    assert list(found) == ["a", "c"]
    assert found["a"].value == pytest.approx((pairwise[0, 1] + pairwise[0, 2]) / 2)
    mean = (pairwise[0, 1] + pairwise[0, 2] + pairwise[1, 2]) / 3
    assert found["c"].details == {"mean_pairwise": pytest.approx(mean), "models": 3}
    low, high = score.expected_bounds()
    assert low <= found["a"].value <= high


@pytest.mark.parametrize("folders", [LORA], indirect=True)
def test_held_out_examples_are_drawn_by_the_seed(folders: dict[str, Path]) -> None:
    many, task = TrainedModels(base(), folders), text_task()

    def value(**options: object) -> float:
        seed = options.pop("seed", 0)
        return next(
            ModelDistance(**options).measure_many(many, task, seed=seed, context=Context())
        )[1].value

    assert value(max_examples=2) == value(max_examples=2)
    assert len({value(max_examples=2, seed=seed) for seed in range(4)}) > 1
    assert value(max_examples=9) == value(max_examples=None)


def test_one_model_has_no_distance() -> None:
    with pytest.raises(ValueError, match="at least two models, got 1"):
        next(
            ModelDistance().measure_many(
                TrainedModels(base(), {"a": None}), text_task(), seed=0, context=Context()
            )
        )
    one = models.LoadedModel(model=base().model, tokenizer=base().tokenizer)
    with pytest.raises(ValueError, match="must be given a set of models"):
        ModelDistance().measure(one, text_task(), seed=0)
