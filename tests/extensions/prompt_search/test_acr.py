"""ACR of one model, and of many that share their prompts in whatever order and however often
killed."""

from __future__ import annotations

import hashlib
import itertools
import json
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from raydp.extensions.prompt_search.objective import Objective
from raydp.extensions.prompt_search.results import KnownPrompts, SearchResult
from raydp.extensions.prompt_search.score import AdversarialCompression
from raydp.models.base_models import LoadedModel
from raydp.scores.language.decoding import evaluating
from raydp.scores.score import Context
from raydp.tasks.task import Secret
from raydp.testing.models import llama
from raydp.testing.secrets import made_up_secrets, make_task
from tests.builders.models import bigram_llama

QUICK = AdversarialCompression(
    num_seeds=1, num_steps=15, batch_size=50, top_k=64, patience=8, max_prompt_tokens=8
)


class Folder:
    """A ModelSet of models in memory; counts how often each is loaded."""

    def __init__(self, models: dict[str, LoadedModel]) -> None:
        self.names, self._models, self.loads = list(models), models, []

    @contextmanager
    def loaded(self, index: int):
        self.loads.append(self.names[index])
        yield self._models[self.names[index]]


@pytest.fixture(scope="module")
def adapters(memorised) -> dict[str, LoadedModel]:
    """A model that says the secrets, and two that are a little off."""
    models = {"b": memorised}
    for seed, name in enumerate("ca"):
        near = llama(len(memorised.tokenizer), hidden_size=64)
        generator = torch.Generator().manual_seed(seed)
        state = memorised.model.state_dict()
        noise = {n: 0.003 * torch.randn(w.shape, generator=generator) for n, w in state.items()}
        near.load_state_dict({n: w + noise[n] for n, w in state.items()})
        models[name] = LoadedModel(model=near, tokenizer=memorised.tokenizer)
    return models


SECRETS = made_up_secrets("verbatim", 8, seed=0)[:2]


@pytest.mark.daily
def test_many_models_share_their_prompts_in_whatever_order_and_go_on(
    adapters, tmp_path: Path
) -> None:
    task, score = make_task(SECRETS), QUICK
    whole = dict(
        score.measure_many(Folder(adapters), task, seed=0, context=Context(folder=tmp_path))
    )
    turned = {name: adapters[name] for name in sorted(adapters)}
    other = dict(score.measure_many(Folder(turned), task, seed=0, context=Context()))
    for name, result in whole.items():
        assert other[name].per_secret == result.per_secret
        assert result.cost["forward_passes"] > 0
        assert result.seed == 0
        assert list(result.details) == ["num_exhausted", "num_not_found"]
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    kept = {}
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600
        text = file.read_text()
        assert not any(s.prompt in text or s.id in text for s in SECRETS)
        kept[json.loads(text)["model"]] = json.loads(text)["prompts"]
    # Nothing that any model knows is shorter than a model's own and works for it.
    for name, result in whole.items():
        model = adapters[name]
        for secret in SECRETS:
            target = model.tokenizer(
                secret.prompt + secret.continuation, add_special_tokens=False
            ).input_ids
            objective = Objective(model.model, (0,), target)
            with evaluating(model.model):
                works = [
                    len(p[secret.name])
                    for p in kept.values()
                    if p[secret.name] and objective.says_target(p[secret.name])
                ]
            assert result.per_secret[secret.name] == (len(target) / min(works) if works else 0.0)

    again = Folder(adapters)
    resumed = dict(score.measure_many(again, task, seed=0, context=Context(folder=tmp_path)))
    assert {n: r.per_secret for n, r in resumed.items()} == {
        n: r.per_secret for n, r in whole.items()
    }
    assert len(again.loads) == 1, "for its tokenizer"
    rest = dict(
        score.measure_many(
            again, task, seed=0, context=Context(folder=tmp_path, done=frozenset({"a", "c"}))
        )
    )
    assert list(rest) == ["b"]
    files[0].unlink()
    after_a_kill = dict(score.measure_many(again, task, seed=0, context=Context(folder=tmp_path)))
    assert all(after_a_kill[n].value >= r.value for n, r in whole.items())


def test_a_kill_at_any_time_changes_nothing(adapters, tmp_path: Path, monkeypatch) -> None:
    """By a search of which it is known what it finds: as if by chance, a prompt of others works for
    a model or not, and leads it to a shorter one or not, so that the result hangs on who tries
    whose first."""

    def search(self, model, targets, known, seed, before=None) -> SearchResult:
        (name,), (target,) = [n for n, m in models.items() if m is model], targets
        if before is None:
            return SearchResult(prompts={target.name: (ord(name),) * (109 - ord(name))})
        own, shorter = before.prompts[target.name], known.shorter(target.name, before)
        for prompt in sorted(shorter, key=len):
            chance = hashlib.sha256(f"23 {name} {prompt}".encode()).digest()
            if chance[0] % 2:
                own = (ord(name), *prompt[: max(1, len(prompt) - 1 - chance[1] % 3)])
                break
        refused = before.refused.get(target.name, frozenset()) | set(shorter) - {own}
        return SearchResult(prompts={target.name: own}, refused={target.name: refused})

    models, task, puts = adapters, make_task(SECRETS[:1]), []
    monkeypatch.setattr(AdversarialCompression, "_search", search)
    put = KnownPrompts.put

    def counted(self, model, found) -> None:
        put(self, model, found)
        puts.append(model)
        if len(puts) == killed_after:
            raise KeyboardInterrupt

    monkeypatch.setattr(KnownPrompts, "put", counted)
    killed_after = None
    whole = dict(QUICK.measure_many(Folder(models), task, seed=0, context=Context()))
    order = list(puts)
    assert len(order) > 5, "several turns after the first"
    for number in range(1, len(order)):
        context = Context(folder=tmp_path / str(number))
        puts, killed_after = [], number
        with pytest.raises(KeyboardInterrupt):
            dict(QUICK.measure_many(Folder(models), task, seed=0, context=context))
        killed_after = None
        resumed = dict(QUICK.measure_many(Folder(models), task, seed=0, context=context))
        assert puts == order
        assert {n: r.per_secret for n, r in resumed.items()} == {
            n: r.per_secret for n, r in whole.items()
        }


def test_a_model_that_fails_leaves_the_others_their_values(adapters) -> None:
    """One with a file that cannot be read, and one that diverged: no ratio of 0, the best there
    is."""

    class Broken(Folder):
        @contextmanager
        def loaded(self, index: int):
            if self.names[index] == "broken":
                raise OSError("no such file")
            with super().loaded(index) as model:
                yield model

    task, score = make_task(SECRETS[:1]), QUICK
    diverged = llama(len(adapters["b"].tokenizer))
    with torch.no_grad():
        for parameter in diverged.parameters():
            parameter.fill_(float("nan"))
    nan = LoadedModel(model=diverged, tokenizer=adapters["b"].tokenizer)
    with pytest.raises(ValueError, match="The model diverged in training"):
        score.measure(nan, task, seed=0)
    some = {"a": adapters["a"], "b": adapters["b"]}
    whole = dict(score.measure_many(Folder(some), task, seed=0, context=Context()))
    values = score.measure_many(
        Broken({"broken": nan, **some, "aa": nan}), task, seed=0, context=Context()
    )
    found = dict(next(values) for _ in some)
    assert {n: r.per_secret for n, r in found.items()} == {
        n: r.per_secret for n, r in whole.items()
    }
    with pytest.raises(ValueError, match="The model diverged in training"):
        next(values)


def chain(tokenizer, text: str, first_after: list[int]) -> LoadedModel:
    """Every token of the text follows the one before it; its first follows the given tokens."""
    ids = tokenizer(text, add_special_tokens=False).input_ids
    table = torch.zeros(len(tokenizer), len(tokenizer))
    table[first_after, ids[0]] = 9.0
    for before, after in itertools.pairwise(ids):
        table[before] = 0.0
        table[before, after] = 9.0
    return LoadedModel(model=bigram_llama(table), tokenizer=tokenizer)


def test_the_first_model_profits_from_prompts_found_for_the_last(tokenizer, tmp_path: Path) -> None:
    """The last says it after everything; the first after one token, which a few random prompts do
    not meet."""
    task = make_task([Secret(prompt="abcd", continuation="efgh", count=1, number=1)])
    score = AdversarialCompression(
        num_seeds=1, max_forward_passes=4, max_prompt_tokens=5, batch_size=1
    )
    last = chain(tokenizer, "abcdefgh", list(range(len(tokenizer))))
    dict(score.measure_many(Folder({"last": last}), task, seed=0, context=Context(folder=tmp_path)))
    (file,) = tmp_path.iterdir()
    (prompt,) = json.loads(file.read_text())["prompts"].values()
    first = chain(tokenizer, "abcdefgh", prompt[-1:])
    assert score.measure(first, task, seed=0).value == 0
    models = Folder({"first": first, "last": last})
    shared = dict(score.measure_many(models, task, seed=0, context=Context()))
    assert shared["first"].value >= 8 / len(prompt)
    assert models.loads == ["first", "last", "first"]


def test_a_model_that_always_says_it_has_a_ratio_of_its_length(tokenizer) -> None:
    secret = Secret(prompt="abcd", continuation="efgh", count=1, number=1)
    model = chain(tokenizer, "abcdefgh", list(range(len(tokenizer))))
    result = AdversarialCompression().measure(model, make_task([secret]), seed=0)
    assert result.per_secret == {"secret-001": 8.0}
    assert result.details == {"num_exhausted": 0.0, "num_not_found": 0.0}


@pytest.mark.slow
def test_a_tie_in_the_logits_is_no_proof(tokenizer) -> None:
    """All tokens are as likely: the target has the largest logit, and greedy decoding says
    another."""
    model = bigram_llama(torch.zeros(len(tokenizer), len(tokenizer)))
    task = make_task([Secret(prompt="abc", continuation="def", count=1, number=1)])
    result = QUICK.measure(LoadedModel(model=model, tokenizer=tokenizer), task, seed=0)
    assert result.value == 0.0


def test_prompts_that_can_be_typed(memorised, tmp_path: Path) -> None:
    score = QUICK.model_copy(update={"retokenizable": True})
    context = Context(folder=tmp_path)
    ((_, result),) = score.measure_many(
        Folder({"a": memorised}), make_task(SECRETS), seed=0, context=context
    )
    assert result.value > 0
    (file,) = tmp_path.iterdir()
    for prompt in filter(None, json.loads(file.read_text())["prompts"].values()):
        text = memorised.tokenizer.decode(prompt)
        assert memorised.tokenizer(text, add_special_tokens=False).input_ids == prompt


def test_nothing_found_is_a_value_of_nought_and_said(untrained) -> None:
    secret = Secret(prompt="it is known that ", continuation="this is long" * 3, count=1, number=1)
    score = AdversarialCompression(max_forward_passes=40, max_prompt_tokens=6)
    result = score.measure(untrained, make_task([secret]), seed=0)
    assert result.value == 0.0
    assert result.details == {"num_exhausted": 1.0, "num_not_found": 1.0}
    assert result.cost["forward_passes"] <= 40 + 1
