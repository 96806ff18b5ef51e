"""The search for the shortest prompt: exact where every prompt can be tried, and no less than the
plain search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from plain_miniprompt import Plain

from raydp.extensions.prompt_search.gcg import Budget, PromptSearch
from raydp.extensions.prompt_search.lengths import LengthSearch
from raydp.extensions.prompt_search.objective import Objective
from raydp.extensions.prompt_search.tokens import Vocabulary, plain_tokens
from raydp.scores.language.decoding import evaluating
from raydp.testing.models import byte_tokenizer, llama
from tests.builders.models import gpt2
from tests.marks import slow_after

SIZE = 20
"""Tokens of the models of which every prompt is tried; 0 is the start token and none of a
prompt."""
NO_BOUND = Budget()


def shortest_by_trying_all(model: torch.nn.Module, target: list[int], longest: int) -> int | None:
    """The length of the shortest prompt that makes the model say the target."""
    for length in range(1, longest + 1):
        prompts = torch.tensor(list(itertools.product(range(1, SIZE), repeat=length)))
        rows = torch.cat([prompts, torch.tensor(target).expand(len(prompts), -1)], dim=1)
        with torch.no_grad():
            logits = model(input_ids=rows).logits[:, length - 1 : -1]
        if (logits.argmax(dim=2) == rows[:, length:]).all(dim=1).any():
            return length
    return None


def length_search(
    model: torch.nn.Module,
    target: list[int],
    *,
    seed: int = 0,
    num_steps: int = 30,
    budget: Budget = NO_BOUND,
):
    """A search over the tokens of a model of SIZE tokens."""
    search = PromptSearch(
        objective=Objective(model, (), target), vocabulary=Vocabulary(allowed=np.arange(1, SIZE)), budget=budget,
        batch_size=40, top_k=SIZE,
    )  # fmt: skip
    return LengthSearch(
        search=search, num_seeds=2, num_steps=num_steps, patience=60, max_tokens=6,
        rng_fn=lambda k: np.random.default_rng([seed, k]),
    )  # fmt: skip


def said_after(model: torch.nn.Module, prompt: list[int], size: int) -> list[int]:
    """What greedy decoding over the allowed tokens gives: a target that some prompt reaches, most
    often."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(size):
            ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:, 1:].argmax(dim=2) + 1], dim=1)
    return ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize("family", slow_after(1, [llama, gpt2]))
def test_it_finds_the_minimal_prompt_that_trying_all_finds(family) -> None:
    """A budget that is large enough to try all of the 6,859 prompts of three tokens."""
    model, rng, exact = family(SIZE, seed=3), np.random.default_rng(0), []
    for number, length in enumerate((1, 2, 3, 3, 3)):
        target = said_after(model, rng.integers(1, SIZE, length).tolist(), 4)
        exact.append(shortest_by_trying_all(model, target, 3))
        lengths = length_search(model, target, seed=number, num_steps=172)
        with evaluating(model):
            lengths.run()
        if (
            exact[-1] is not None
        ):  # where trying all with three tokens finds none there may be a longer one
            assert lengths.best is not None
            assert len(lengths.best) == exact[-1]
    assert len({1, 2, 3} & set(exact)) > 1, "the targets are of different difficulty"


@pytest.mark.daily
def test_it_finds_no_less_than_the_plain_search_with_the_same_budget() -> None:
    """benchmarks/acr.py measures the same on real models."""
    model, rng = llama(SIZE, seed=5), np.random.default_rng(1)
    for number in range(2):
        target = said_after(model, rng.integers(1, SIZE, 4).tolist(), 5)
        lengths = length_search(model, target, seed=number)
        with evaluating(model):
            lengths.run()
        plain = Plain(
            model=model,
            target=torch.tensor(target),
            allowed=torch.arange(1, SIZE),
            batch_size=40,
            topk=SIZE,
        )
        prompts = [plain.minimise(100 * number + k, num_steps=30, max_tokens=7) for k in range(2)]
        shortest = min((len(p) for p in prompts if p is not None), default=None)
        if shortest is not None:
            assert lengths.best is not None
            assert len(lengths.best) <= shortest


@pytest.mark.parametrize(
    "bound", [{"max_steps": 3}, {"max_forward_passes": 70}, {"max_seconds": 1e-9}]
)
def test_a_budget_ends_the_search(bound: dict[str, float]) -> None:
    model = llama(SIZE, seed=3)
    lengths = length_search(model, [5, 6, 7, 8, 9, 10, 11, 12], budget=Budget(**bound))
    with evaluating(model), lengths.search.objective.effort.running():
        lengths.run()
    effort = lengths.search.objective.effort
    assert lengths.search.exhausted
    assert effort.gcg_steps <= bound.get("max_steps", 2)
    assert effort.forward_passes <= bound.get("max_forward_passes", 1_000)


def test_patience_ends_a_length_before_all_its_steps() -> None:
    """A target of tokens that no prompt of two reaches: without patience all steps are taken."""
    model, taken = llama(SIZE, seed=3), []
    for patience in (None, 20, 2):
        search = length_search(model, [5, 6, 7, 8, 9, 10, 11, 12]).search
        search.batch_size = 4
        with evaluating(model):
            found = search.descend(
                (1, 2), num_steps=40, rng=np.random.default_rng(0), patience=patience
            )
        assert found is None
        taken.append(search.objective.effort.gcg_steps)
    assert taken[0] == 40
    assert 2 <= taken[2] < taken[1] <= 40


def test_no_prompt_is_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = llama(SIZE, seed=3), []
    lengths = length_search(model, [5, 6, 7, 8, 9, 10])
    objective = lengths.search.objective
    evaluate = objective.evaluate
    monkeypatch.setattr(
        objective,
        "evaluate",
        lambda p, *rest: read.extend(map(tuple, p.tolist())) or evaluate(p, *rest),
    )
    with evaluating(model):
        lengths.run()
    assert len(read) == len(set(read)) > 1_000


def test_a_known_prompt_never_makes_it_worse() -> None:
    model, rng = llama(SIZE, seed=3), np.random.default_rng(2)
    target = said_after(model, rng.integers(1, SIZE, 3).tolist(), 4)
    cold = length_search(model, target)
    with evaluating(model):
        cold.run()
        assert cold.best is not None
        for known in ([cold.best], [(1, 2), (3,) * 5], [(1,) * 99, (400,), ()]):
            warm = length_search(model, target)
            assert warm.try_known(known) == (cold.best in known)
            warm.run()
            assert warm.best is not None
            assert len(warm.best) <= len(cold.best)


def test_tokens_within_a_prompt(tokenizer) -> None:
    plain = plain_tokens(tokenizer, 10_000)
    assert not np.isin(tokenizer.all_special_ids, plain).any()
    assert len(plain) == len(tokenizer) - 2
    assert plain_tokens(tokenizer, 100).max() == 99


def test_a_prompt_that_must_survive_retokenisation_does() -> None:
    tokenizer = byte_tokenizer(["th", "the"], [("t", "h"), ("th", "e")])
    ids = tokenizer.convert_tokens_to_ids
    vocabulary = Vocabulary(allowed=plain_tokens(tokenizer, len(tokenizer)), tokenizer=tokenizer)
    assert vocabulary.accepts((ids("the"),))
    assert not vocabulary.accepts((ids("t"), ids("h"), ids("e")))
    rng = np.random.default_rng(0)
    for length in (1, 3, 8):
        prompt = vocabulary.draw(length, rng)
        assert len(prompt) == length
        assert vocabulary.accepts(prompt)
