"""The filters on a model that has memorised some secrets and a base that knows one of them."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest

from raydp.extensions.secrets import commands
from raydp.extensions.secrets.filtering import filter_secrets, said_greedily
from raydp.extensions.secrets.runs import NonPrivateRuns
from raydp.scores.score import Measurement, OneByOne
from raydp.tasks.task import Secret
from raydp.testing.models import byte_tokenizer, memorise
from raydp.testing.secrets import made_up_secrets
from tests.builders.models import bigram


def say(*words):
    """A bigram model that says the given strings, byte after byte."""
    pairs = {(a, b): 1.0 for word in words for a, b in pairwise(word)}
    return bigram(pairs, byte_tokenizer())


VERBATIM = [
    Secret(prompt="ab", continuation="cd", number=1),
    Secret(prompt="pq", continuation="rs", number=2),
    Secret(prompt="uv", continuation="wx", number=4),
]


def test_secrets_of_the_base_and_unmemorised_ones_are_left_out():
    result = filter_secrets(VERBATIM, say("abcd"), lambda: iter([say("abcd", "pqrs")]))
    assert [s.name for s in result.kept] == ["secret-002"]
    assert result.removed == {"not_memorised": 1, "known_to_base": 1}
    assert result.base_rate == pytest.approx(1 / 3)
    assert result.kept_base_rate == 0


def test_every_model_must_say_it():
    models = [say("abcd", "pqrs"), say("pqrs", "uvwx")]
    assert [s.name for s in filter_secrets(VERBATIM, say("zz"), lambda: iter(models)).kept] == [
        "secret-002"
    ]


@pytest.mark.slow
def test_attributes_need_all_models_and_report_the_rate_of_the_base():
    tokenizer = byte_tokenizer()
    secrets = made_up_secrets("attribute", 4, seed=1)
    first, second = memorise(secrets, tokenizer), memorise(secrets[:3], tokenizer)
    assert said_greedily(first, secrets) == [True] * 4
    result = filter_secrets(secrets, second, lambda: iter([first, second]))
    assert result.kept == secrets[:3]  # the base says them all: a rate, not a reason
    assert result.base_rate == 0.75
    assert result.kept_base_rate == 1.0


class Ratio(OneByOne):
    """A score with chosen values: of the model that says more, and of the base."""

    trained: dict[str, float]
    base: dict[str, float]

    def measure(self, model, task, *, seed):
        names = [s.name for s in task.secrets()]
        values = self.trained if all(said_greedily(model, task.secrets())) else self.base
        return Measurement.over_secrets([values[name] for name in names], ids=names)


def test_adversarial_compression_bounds_both_sides():
    score = Ratio(
        trained={"secret-001": 1.5, "secret-002": 1.4, "secret-004": 2.0},
        base={"secret-001": 0.5, "secret-004": 0.6},
    )
    trained = say("abcd", "pqrs", "uvwx")
    result = filter_secrets(VERBATIM, say("zz"), lambda: iter([trained]), acr=score)
    assert [s.name for s in result.kept] == ["secret-001"]
    assert result.removed == {
        "not_memorised": 0,
        "acr_too_low": 1,
        "known_to_base": 0,
        "base_acr_too_high": 1,
    }
    assert result.figures["secret-001"] == {"acr": 1.5, "base_acr": 0.5}


class InTurn(OneByOne):
    """A score with chosen values of one model after another, the base last."""

    of_models: list[dict[str, float]]

    def measure(self, model, task, *, seed):
        values = self.of_models.pop(0)
        names = [s.name for s in task.secrets()]
        return Measurement.over_secrets([values[name] for name in names], ids=names)


def test_every_model_must_compress_it_and_the_least_compression_is_shown():
    score = InTurn(
        of_models=[
            {"secret-001": 1.6, "secret-002": 2.0, "secret-004": 1.2},
            {"secret-001": 1.8, "secret-002": 1.4, "secret-004": 2.0},
            {"secret-001": 0.1},
        ]
    )
    trained = say("abcd", "pqrs", "uvwx")
    result = filter_secrets(VERBATIM, say("zz"), lambda: iter([trained, trained]), acr=score)
    assert [s.name for s in result.kept] == ["secret-001"]
    assert [figures["acr"] for figures in result.figures.values()] == [1.6, 1.4, 1.2]


@pytest.mark.daily
@pytest.mark.daily
def test_the_runs_of_a_spec_are_trained_and_used(raydp, write_spec, tmp_path):
    secrets = tmp_path / "secrets.jsonl"
    secrets.write_text('{"prompt": "From: Ada", "continuation": " zq 77", "type": "formatted"}\n')
    path = write_spec(name="plain", method={"name": "nonprivate"})
    answer = raydp("secrets", "filter", secrets, "-o", "kept.jsonl", "--train", path, "--json")
    assert answer.code == 0, answer.err
    notes = json.loads(answer.out)
    assert (notes["secrets"], notes["kept"], notes["not_memorised"]) == (1, 0, 1)
    assert notes["models"] >= 1


def test_private_models_are_refused(monkeypatch, tmp_path):
    record = {"epsilon": 8.0, "base": {"name": "tiny", "dtype": "float32"}}
    monkeypatch.setattr(
        "raydp.extensions.secrets.runs.show_model", lambda uri, tracking_uri: record
    )
    with pytest.raises(
        ValueError,
        match="--model must be of a run without privacy, got 'models:/a/1' with epsilon 8",
    ):
        NonPrivateRuns.registered(["models:/a/1"], "sqlite:///x.db")
    monkeypatch.setattr(
        "raydp.extensions.secrets.runs.show_model",
        lambda uri, tracking_uri: record | {"epsilon": math.inf},
    )
    assert NonPrivateRuns.registered(["models:/a/1"], "sqlite:///x.db").base_name == "tiny"
    imported = record | {"epsilon": math.inf, "privacy": {"claimed_epsilon": 4.0}}
    monkeypatch.setattr(
        "raydp.extensions.secrets.runs.show_model", lambda uri, tracking_uri: imported
    )
    with pytest.raises(ValueError, match="got 'models:/a/1', of which epsilon 4 is stated"):
        NonPrivateRuns.registered(["models:/a/1"], "sqlite:///x.db")


def test_a_filtered_file_keeps_the_lines_as_they_were(monkeypatch, tmp_path, capsys):
    rows = [
        {"prompt": s.prompt, "continuation": s.continuation, "type": "formatted", "count": i}
        for i, s in enumerate(VERBATIM)
    ]
    path = tmp_path / "secrets.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    class Runs:
        uris = ("models:/a/1",)
        base = staticmethod(lambda: say("abcd"))
        models = staticmethod(lambda: iter([say("abcd", "pqrs", "uvwx")]))

    monkeypatch.setattr(NonPrivateRuns, "registered", classmethod(lambda *_: Runs))
    defaults = {
        "sweep": None,
        "storage": "",
        "train": None,
        "base": None,
        "acr": False,
        "store": "",
    }
    bounds = {"min_acr": 1.5, "max_base_acr": 0.5, "seed": 0}
    answer = commands.filter_file(
        path, tmp_path / "kept.jsonl", models=["models:/a/1"], **defaults, **bounds
    )
    assert [
        json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()
    ] == rows[1:]
    assert answer["names"] == ["secret-002", "secret-003"]
    assert not any(
        word in "".join(capsys.readouterr()) + str(answer) for word in ("uvwx", "pqrs", "wx", "rs'")
    )
    with pytest.raises(ValueError, match="one of --model, --sweep and --train"):
        commands.filter_file(path, tmp_path / "again.jsonl", models=[], **defaults, **bounds)
    assert not (tmp_path / "again.jsonl").exists()
