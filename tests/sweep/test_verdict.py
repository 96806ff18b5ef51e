"""The verdict on a choice: its length and width on any table, its words, and what it looks like."""

from __future__ import annotations

import ast
import json
import re
import shlex
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydp import Selection, select
from raydp.analysis import check_points, load_points
from raydp.analysis.report.first_screen import FirstScreen, in_words
from raydp.analysis.selection.rules import rule_names
from raydp.analysis.selection.verdict import Verdict
from raydp.cli.show.verdict import MOST_LINES, WIDTH, head_of, show_verdict
from raydp.scores.words import ScoreWords
from raydp.search_spaces.settings import Settings
from raydp.sweep.store.summary import RunCounts
from raydp.system.output import stdout
from tests.analysis.point_tables import tables
from tests.conftest import Answer
from tests.sweep.undisturbed import Done

pytestmark = pytest.mark.xdist_group("sweep")

COMMANDS = ("Report", "Why", "Load")
"""The lines that a reader pastes, which are as long as the names in them."""
RULES = [name for name in rule_names() if name not in ("oracle",)]


def printed(selection: Selection, **options: Any) -> list[str]:
    with stdout.capture() as text:
        show_verdict(selection, None, source="points.csv", folder=None, **options)
    return text.get().splitlines()


def assert_short(lines: list[str]) -> None:
    assert len(lines) <= MOST_LINES
    assert not [
        line for line in lines if len(line) > WIDTH and not line.startswith((*COMMANDS, "! "))
    ]
    # A word that is longer than a line, such as a command, stays whole.
    for line in lines:
        if len(line) > WIDTH and line.startswith("! "):
            assert "raydp " in line


@settings(max_examples=10)
@given(table=tables(), rule=st.sampled_from(RULES), scored=st.booleans())
def test_a_verdict_on_any_table_fits_fourteen_lines_of_eighty_columns(
    tmp_path_factory: pytest.TempPathFactory, table: pd.DataFrame, rule: str, scored: bool
) -> None:
    path = tmp_path_factory.mktemp("table") / "points.csv"
    table.to_csv(path, index=False)
    try:
        chosen = select(path, rule=rule, min_gain_share=0.5 if scored else None)
    except ValueError:
        return
    head = head_of(RunCounts(runs=9, finished=7, failed=2, stopped=0, pending=0), 3671.0)
    lines = printed(chosen, head=head)
    assert_short(lines)
    assert lines[0].startswith("! 7 runs finished, 2 failed")
    assert lines[0].endswith("61 min 11 s")
    assert lines[1].startswith("Selected   b=")


@pytest.mark.parametrize("fields", [0, 1, 3, 12])
def test_a_verdict_names_as_many_further_fields_as_fit(fields: int) -> None:
    """The configurations differ in one of them; the runner-up is named with its probability."""
    rows = [
        {
            "batch_size": b, "num_steps": 400, "learning_rate": 0.0123, "seed": seed,
            "utility_loss": 2.0, "score": 0.2 + 0.001 * b + 0.01 * seed, "run_id": f"{b}-{seed}",
            "status": "finished", "epsilon": 8.0, "delta": 1e-5, "base_utility_loss": 2.5,
            "settings": Settings({f"method.a_long_name_of_field_{k:02d}": 0.5 for k in range(fields)}).text,
        }
        for b in (64, 65, 66) for seed in range(2)
    ]  # fmt: skip
    chosen = select(check_points(pd.DataFrame(rows)))
    lines = printed(chosen)
    assert_short(lines)
    more = [line for line in lines if " more" in line and "and " in line]
    assert bool(more) == (fields > 1)
    assert ("a_long_name_of_field_00=0.5" in lines[0]) == (fields in (1, 3))
    assert len(in_words(chosen.configuration)) <= 120


@pytest.mark.parametrize(
    ("score", "params", "value", "said"),
    [
        ("vmr_exact", {}, 0.021, "a secret is completed word for word in 2.1 % of tries"),
        (
            "logprob",
            {},
            1.5,
            "training made a secret 4.5 times as likely as texts of the same form",
        ),
        ("logprob", {"contrast": False}, 1.5, None),
        ("logprob", None, 1.5, None),
        (
            "exposure",
            {},
            10.0,
            "a planted secret is among the likeliest 1 in 1,024 of its form (by chance: 1 in 2.7)",
        ),
        (
            "acr",
            {},
            0.0,
            "a secret is 0 times as long as the shortest prompt found for it (0: none was found)",
        ),
        ("one_run_audit", {}, 0.64, "audits show an ε of at least 0.64 on average"),
        (
            "air",
            {"num_attempts": 1},
            0.0,
            "0 % of the attacks name a secret attribute, lucky guesses included",
        ),
        ("extraction", {"num_attempts": 1e12}, 0.5, None),
        ("vmr_near", {"max_distance": 0.9}, 0.5, None),
        ("vmr", {}, float("nan"), None),
        ("vmr", {}, float("inf"), None),
        ("no such score", {}, 1.0, None),
    ],
)
@pytest.mark.extensions("exposure", "acr", "extraction", "one_run_audit")
def test_a_value_is_said_as_its_score_declares(
    score: str, params: dict[str, object] | None, value: float, said: str | None
) -> None:
    assert ScoreWords.of(score, params).say(value) == said


@pytest.mark.parametrize(
    ("score", "value", "other", "said"),
    [
        ("vmr", 0.24, 0.02, "leaks 12 times as much"),
        ("vmr", 0.2, 0.2, "leaks as much"),
        ("vmr", 0.01, 0.04, "leaks 4 times less"),
        ("vmr", 1.0, 1e-9, "leaks over 1,000 times as much"),
        ("vmr", 1e-9, 1.0, "leaks over 1,000 times less"),
        ("vmr", 1.0, 0.0, None),
        ("logprob", 2.0, 2.0 - 0.6931471805599453, "leaks 2 times as much"),
        ("mia", 0.7, 0.6, "leaks 2 times as much"),
        ("mia", 0.7, 0.5, None),
        ("logprob", 2.0, -0.5, None),
        ("exposure", 3.0, 1.4, None),
        ("no such score", 0.7, 0.5, None),
        ("vmr", float("nan"), 0.5, None),
        ("logprob", float("inf"), 0.5, None),
        ("one_run_audit", 2.0, 1.0, None),
        ("model_distance", 2.0, 1.0, None),
        ("air", 0.2, 0.1, None),
    ],
)
@pytest.mark.extensions("mia", "exposure", "model_distance", "one_run_audit")
def test_a_ratio_is_of_what_exceeds_a_model_that_leaks_nothing(
    score: str, value: float, other: float, said: str | None
) -> None:
    assert ScoreWords.of(score, {}).compare(value, other) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (-0.004, "training made a secret about as likely as texts of the same form"),
        (0.04, "training made a secret about as likely as texts of the same form"),
        (0.1, "training made a secret 1.1 times as likely as texts of the same form"),
        (-0.1, "training made a secret 0.9 times as likely as texts of the same form"),
    ],
)
def test_one_time_as_likely_is_said_as_about_equal(value: float, said: str) -> None:
    assert ScoreWords.of("logprob", {}).say(value) == said


@pytest.mark.extensions
def test_one_time_as_long_is_said_as_about_equal() -> None:
    assert str(ScoreWords.of("acr", {}).say(0.98)).startswith("a secret is about as long as the")


@pytest.mark.parametrize(
    ("score", "low", "high", "said"),
    [
        ("logprob", -8.1, 9.74, "0.0003 to 17,000 times"),
        ("logprob", 0.0, 0.7, "1 to 2 times"),
        ("logprob", 0.0, 0.6, None),
        ("logprob", -1.0, float("inf"), None),
        ("vmr", 0.0, 0.9, None),
        ("exposure", 0.0, 9.0, None),
        ("acr", -0.5, 3.0, "0 to 3 times"),
        ("no such score", -8.0, 8.0, None),
    ],
)
@pytest.mark.extensions("exposure", "acr")
def test_a_wide_interval_of_a_ratio_is_said(
    score: str, low: float, high: float, said: str | None
) -> None:
    assert ScoreWords.of(score, {}).span(low, high) == said


def test_a_wide_interval_stands_beside_the_words_of_its_score(tmp_path: Path) -> None:
    values = [(64, 2.1, -5.0), (64, 2.1, 5.0), (128, 2.0, 3.0), (128, 2.0, 13.0)]
    path = tmp_path / "points.csv"
    points(values, "logprob").to_csv(path, index=False)
    chosen = select(path, score="logprob")
    said = Verdict.of(chosen, None, ScoreWords.of("logprob", {}), None).leak
    assert said is not None
    assert re.fullmatch(
        "training made a secret about as likely as texts of the same form; "
        r'"no leak" is within its 95 % interval, \S+ to \S+ times',
        said,
    )
    assert len(textwrap.wrap(said, WIDTH - 11)) == 2


def test_a_choice_of_the_best_utility_names_nothing_more_useful_instead(tmp_path: Path) -> None:
    rows = [(64, 2.0, 0.01), (64, 2.0, 0.02), (128, 2.1, 0.05), (128, 2.1, 0.06)]
    text, _ = verdict_of(tmp_path, points(rows))
    assert "it has the best utility, too" in text
    assert "best utility:" not in text


@pytest.mark.parametrize(
    ("failed", "interrupted", "start"),
    [(0, False, "✓ 3 runs"), (0, True, "3 runs"), (1, True, "! 3 runs"), (1, False, "! 3 runs")],
)
def test_an_interrupted_sweep_ends_without_a_tick(
    failed: int, interrupted: bool, start: str
) -> None:
    counts = RunCounts(runs=9, finished=3, failed=failed, stopped=0, pending=6 - failed)
    assert head_of(counts, None, interrupted=interrupted).startswith(start)


@pytest.mark.extensions("mia_outputs")
def test_no_ratio_is_said_where_no_words_hold() -> None:
    assert ScoreWords.of("mia_outputs", {"figure": "accuracy"}).compare(0.8, 0.6) is None


def points(rows: Sequence[tuple[int, float, float]], score: str = "vmr", **more: Any) -> Any:
    """Runs of (batch size, utility loss, score), in the order of their seeds."""
    return pd.DataFrame(
        [
            {
                "batch_size": size,
                "num_steps": 100,
                "learning_rate": 0.01,
                "seed": sum(one[0] == size for one in rows[:at]),
                "utility_loss": loss,
                f"score.{score}": value,
                "base_utility_loss": 2.5,
                **more,
            }
            for at, (size, loss, value) in enumerate(rows)
        ]
    )


def verdict_of(
    tmp_path: Path, table: pd.DataFrame, score: str = "vmr", **asked: Any
) -> tuple[str, str]:
    """The printed choice, and the page's first screen as one text."""
    path = tmp_path / "points.csv"
    table.to_csv(path, index=False)
    chosen = select(path, score=score, **asked)
    best = select(path, score=score, rule="best-utility")
    lines = printed(chosen)
    assert_short(lines)
    screen = FirstScreen(
        points=load_points(path, scored=False),
        headline=chosen,
        best=best,
        words=ScoreWords.of(score),
        base_score=0.001,
        base_utility_loss=2.5,
        told={},
    )
    with stdout.capture() as text:
        show_verdict(chosen, best, source="points.csv", folder=None)
    assert_short(text.get().splitlines())
    return " ".join(text.get().split()), " ".join(screen.texts(chosen).values())


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(64, 2.1, 0.01), (128, 2.0, 0.05)], False),
        ([(64, 2.1, 0.0), (64, 2.1, 0.0025), (128, 2.0, 0.003), (128, 2.0, 0.01)], False),
        ([(64, 2.1, 0.010 + s / 1e4) for s in range(4)] + [(128, 2.0, 0.05 + s / 1e4) for s in range(4)], True),
    ],
    ids=["one seed", "an interval with no leak", "known errors"],
)  # fmt: skip
def test_a_ratio_is_said_only_where_the_error_excludes_no_leak(
    tmp_path: Path, rows: list[tuple[int, float, float]], said: bool
) -> None:
    for text in verdict_of(tmp_path, points(rows)):
        assert ("times as much" in text) == said


SURE = [(64, 2.0), (128, 2.095), (256, 2.3)]
"""Batch sizes and losses, the second near a threshold of 2.1."""


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"at_most": {"batch_size": 64}}, "the only one that keeps to the constraints:"),
        ({"max_loss": 2.1}, "the only one sure to be useful enough (loss ≤ 2.1):"),
        ({"max_loss": 2.02}, "the only one useful enough (loss ≤ 2.02):"),
        ({"at_most": {"batch_size": 128}}, "of the 2 that keep to the constraints"),
    ],
)
def test_what_left_the_others_out_is_said(tmp_path: Path, asked: dict[str, Any], said: str) -> None:
    wide = 0.03 if asked.get("max_loss") == 2.1 else 0.001
    rows = [
        (size, loss + (-1) ** s * wide, 12.8 / size + s / 1e3)
        for size, loss in SURE
        for s in range(4)
    ]
    assert said in verdict_of(tmp_path, points(rows), **asked)[0]


def test_the_only_configuration_of_a_table_has_no_other_one(tmp_path: Path) -> None:
    assert "there is no other one" in verdict_of(tmp_path, points([(64, 2.0, 0.1)]))[0]


def test_a_list_among_the_fields_keeps_its_commas(tmp_path: Path) -> None:
    rows = [(size, 2.0 + size / 1e3, 0.1) for size in (64, 128)]
    modules = json.dumps({"model.adapter.target_modules": ["q_proj", "v_proj"]})
    said = verdict_of(tmp_path, points(rows, settings=modules))[0]
    assert 'target_modules=["q_proj", "v_proj"]' in said


def test_a_table_without_named_scores_says_that_it_knows_none(
    tmp_path: Path, raydp: Callable[..., Answer]
) -> None:
    path = tmp_path / "points.csv"
    points([(64, 2.0, 0.1)]).rename(columns={"score.vmr": "score"}).to_csv(path, index=False)
    assert "Known: none." in raydp("select", path, "--score", "vmr").err


def test_the_end_of_a_sweep_fits_and_its_commands_work(
    done: Done, raydp: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = done.result.folder
    monkeypatch.chdir(folder.parents[1])
    lines = raydp("select", folder).out.splitlines()
    assert_short(lines)
    by_label = {line[:11].strip(): line[11:] for line in lines}
    assert Path(by_label["Report"]).is_file()
    why = shlex.split(by_label["Why"])
    assert raydp(*why[1:]).out.startswith("selected by informed: ")
    program, option, code = shlex.split(by_label["Load"])
    assert Path(program).name.startswith("python")
    assert option == "-ic"
    call = ast.parse(code).body[-1]
    loaded: dict[str, Any] = {}
    exec(code, loaded)
    assert isinstance(call, ast.Assign)
    assert loaded["model"].config.model_type == "llama"


def test_options_of_the_choice_are_those_of_the_commands(
    done: Done, raydp: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(done.result.folder.parents[1])
    out = raydp(
        "select", done.result.folder, "--rule", "best-utility", "--at-most", "epsilon=8"
    ).out
    assert "--at-most epsilon=8 --rule best-utility --explain" in out
    best = done.result.best_utility
    assert best is not None
    assert f'load_model("{best.model_uri}", tracking_uri=' in out


OUTPUTS = {
    "sweep": ["sweep", "{spec}", "--resume"],
    "plan": ["plan", "{spec}"],
    "select": ["select", "{sweep}"],
    "select_explain": ["select", "{sweep}", "--explain"],
    "status": ["status", "{sweep}"],
    "list": ["list", "--storage", "{storage}"],
    "models_find": ["models", "find", "--uri", "{store}"],
    "spaces_list": ["spaces", "list"],
    "analyze_heuristics": ["analyze", "heuristics", "{sweep}"],
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.extensions) if name == "list" else name
        for name in OUTPUTS
    ],
)
def test_an_output_is_the_one_that_a_person_has_read(
    done: Done,
    raydp: Callable[..., Answer],
    name: str,
    as_read: Callable[[str, str], None],
    tmp_path: Path,
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text((done.result.folder / "spec.yaml").read_text())
    values = {
        "spec": spec,
        "sweep": done.result.folder,
        "storage": done.result.folder.parent,
        "store": done.uri,
    }
    answer = raydp(*[word.format(**values) for word in OUTPUTS[name]])
    assert answer.code == 0, answer.err
    as_read(name, answer.out.replace(str(done.result.folder.parents[1]), "FOLDER"))
