"""What people read of a sweep: notes about the data, the steps of a selection, commands that work
as printed."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

import raydp
from raydp.analysis.selection.selected import LEAKAGE_NOT_CHECKED, Selection, SelectionStep, Warned
from raydp.cli.show.explanation import lookup_commands, show_explanation
from raydp.cli.show.sweeps import show_result, show_status
from raydp.cli.show.verdict import show_verdict
from raydp.search_spaces import Configuration
from raydp.spec.reading import load_spec
from raydp.sweep.api import Sweep
from raydp.sweep.ending.notes import notes_of, together_notes
from raydp.sweep.ending.result import SweepResult
from raydp.sweep.store.disclosure import Disclosure
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.summary import (
    ReleasedModels,
    RunCounts,
    RunFailure,
    SelectedConfiguration,
    SweepSummary,
)
from raydp.system import output
from raydp.system.shell import command_line, shell_line
from raydp.tasks.task import TaskFacts
from tests.builders.plans import plan_of_runs, record_of
from tests.builders.specs import small_spec
from tests.conftest import Answer

FACTS = TaskFacts(
    num_examples=90,
    num_units=90,
    privacy_unit="row",
    content_hash="c0ffee",
    num_tokens=900,
    notes={
        "duplicates_removed": 3,
        "secrets_absent": ["0a1b", "2c3d"],
        "authors_unresolved": [],
        "secret_counts": [20, 20, 20, 80],
        "num_heldout_examples": 12,
        "too_short_removed": 0,
        "windows_per_text_max": 4,
        "caveats": ["n is not covered.", "A mail has two."],
    },
)
NOTES = [
    "90 examples; the unit of privacy is: row",
    "duplicates removed: 3",
    "secrets absent: 0a1b, 2c3d",
    "secret counts: 20 (3 times), 80",
    "held-out examples: 12",
    "most windows per text: 4",
    "caveat: n is not covered.",
    "caveat: A mail has two.",
]


def test_notes_about_the_data_are_sentences_and_lists_without_brackets() -> None:
    assert FACTS.sentences() == NOTES


def test_the_report_ends_with_the_notes_about_the_data() -> None:
    record = record_of(epsilon=7.9, delta=1e-3, target_epsilon=8)
    notes = notes_of(replace(plan_of_runs(privacy={"run": record}), facts=FACTS))
    assert notes[0].startswith("Each model: ε at most 8")
    assert notes[-len(NOTES) :] == NOTES


def test_released_without_a_guarantee_there_is_no_sum_to_tell() -> None:
    """released.json is strict JSON: infinity is the string."""
    document = {
        "models": 2,
        "run_ids": ["a", "b"],
        "epsilon": "inf",
        "delta": 1e-3,
        "accountant": "rdp",
    }
    without = ReleasedModels.from_json(document)
    assert without.to_json() == document
    assert together_notes(without) == []
    (told,) = together_notes(replace(without, epsilon=9.5))
    assert told.startswith("All 2 models of this sweep together: ε at most 9.5")


def test_plan_prints_the_notes_about_the_data(
    raydp: Callable[..., Answer], write_spec: Callable[..., Path]
) -> None:
    out = raydp("plan", write_spec()).out
    assert "2000 examples; the unit of privacy is: mail; synthetic: all names" in out


def test_a_step_names_the_configurations_that_it_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    points = tuple(
        Configuration(batch_size=b, num_steps=5, learning_rate=0.01) for b in range(1, 7)
    )
    steps = (
        SelectionStep(name="updates", rule="", survivors=points[:5], dropped=points[5:]),
        SelectionStep(name="compute", rule="", survivors=points[:1], dropped=points[1:5]),
    )
    chosen = Selection(
        configuration=points[0], utility_loss=1.0, score=0.5, rule="procedure", steps=steps, model_uri=None,
        explanation="The scores agree.",
    )  # fmt: skip
    missing = SelectionStep(
        name="leakage check", rule=LEAKAGE_NOT_CHECKED, survivors=points, dropped=()
    )
    alone = SelectionStep(name="individual", rule="", survivors=points[:1], dropped=())
    show_explanation(replace(chosen, steps=(missing, *steps, alone)), None, None)
    assert capsys.readouterr().out.splitlines() == [
        "selected by procedure: (b=1, T=5, η=0.01) utility_loss 1.0000, score 0.5",
        "The scores agree.",
        f"leakage check {LEAKAGE_NOT_CHECKED}",
        "updates: 1 dropped, 5 left: (b=1, T=5, η=0.01), (b=2, T=5, η=0.01), (b=3, T=5, η=0.01), "
        "...",
        "compute: 4 dropped, 1 left: (b=1, T=5, η=0.01)",
    ]


def commands(written: dict[str, Any]) -> list[str]:
    spec = load_spec(written)
    return lookup_commands(spec.tracking, spec.method.name)


@pytest.mark.parametrize(
    ("method", "alias"),
    [
        ({"name": "dp_adam", "max_grad_norm": 0.1}, "privacy-preferred"),
        ({"name": "nonprivate"}, "best-utility"),
    ],
)
def test_the_command_loads_an_alias_that_the_sweep_sets(
    tmp_path: Path, method: dict[str, object], alias: str
) -> None:
    _, load = commands(small_spec(tmp_path, method=method))
    assert f'models:/small@{alias}"' in load


STRANGE = ["a b", "$(touch x)", "it's", 'say "x"', "a;b", "`x`", "100%", "a#b"]


@pytest.mark.parametrize("name", STRANGE)
def test_printed_commands_are_quoted_for_the_shell(tmp_path: Path, name: str) -> None:
    """As the shell splits them, the words hold the names as they are."""
    store = f"sqlite:///{name}.db"
    find, load = commands(small_spec(tmp_path, tracking={"uri": store}))
    assert store in shlex.split(find)
    call = next(
        node for node in ast.walk(ast.parse(shlex.split(load)[-1])) if isinstance(node, ast.keyword)
    )
    assert ast.literal_eval(call.value) == store
    assert shlex.split(shell_line("raydp", "sweep", Path(name) / "s.yaml")) == [
        "raydp",
        "sweep",
        f"{name}/s.yaml",
    ]


def test_no_command_is_printed_without_quotes() -> None:
    """A message that fills a value into a command takes it from `shell_line`; names of sweeps need
    no quotes."""
    commands = "plan|sweep|select|audit|status|report|score|models"
    unquoted = re.compile(
        rf"[fF][\"'][^\"'\n]*raydp (?:{commands})[^\"'\n`]* \{{(?!(?:spec|score)\.name)"
    )
    sources = Path(raydp.__file__).parent.rglob("*.py")
    assert not [
        str(p) for p in sources for line in p.read_text().splitlines() if unquoted.search(line)
    ]


def programs(tmp_path: Path) -> list[str]:
    return [command.split()[0] for command in commands(small_spec(tmp_path))]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The running environment's programs, in .venv/bin."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("raydp", "python"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    return folder


def test_commands_are_names_in_an_active_environment_and_paths_elsewhere(
    tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(environment))
    assert programs(tmp_path) == ["raydp", "python"]
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    assert programs(tmp_path) == [".venv/bin/raydp", ".venv/bin/python"]
    monkeypatch.chdir("/")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # another environment's python
    assert programs(tmp_path) == [
        str(environment / "raydp").removeprefix("/"),
        str(environment / "python")[1:],
    ]


def test_without_the_script_the_module_is_called(
    tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (environment / "raydp").unlink()
    monkeypatch.setenv("PATH", "/nowhere")
    find, _ = commands(small_spec(tmp_path))
    assert find.startswith(f"{environment / 'python'} -m raydp models find ")


def test_a_printed_program_is_one_that_the_shell_finds(tmp_path: Path) -> None:
    for program in programs(tmp_path):
        assert (
            subprocess.run(["sh", "-c", f"command -v {program}"], capture_output=True).returncode
            == 0
        )


def test_a_status_names_the_next_command_or_the_result(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    configuration = Configuration(batch_size=8, num_steps=4, learning_rate=0.1)
    failure = RunFailure(configuration=configuration, seed=0, run_id="ab12", reason="a [reason]")
    counts = RunCounts(runs=3, finished=1, failed=1, stopped=0, pending=1, failures=(failure,))
    folder = SweepFolder(path=tmp_path)
    folder.spec_file.write_text(yaml.safe_dump(small_spec(tmp_path)))
    show_status(folder, counts, None)
    out = capsys.readouterr().out
    assert f"{tmp_path}: 3 runs, 1 finished, 1 failed, 0 stopped, 1 pending" in out
    assert "a [reason]" in out
    command = command_line("sweep", tmp_path / "spec.yaml", "--resume")
    assert f"If no process runs this sweep, go on with: {command}" in out
    assert "1 of 3 runs are done; all of this is kept." in out
    show_status(folder, replace(counts, finished=0, pending=2, failures=()), None)
    out = capsys.readouterr().out
    assert "0 of 3 runs are done. All begin at their first step." in out
    assert "kept" not in out
    for run_id, steps in (("cd34", (2, 3)), ("ef56", (1,))):
        checkpoints = folder.trial(run_id) / "checkpoints"
        checkpoints.mkdir(parents=True)
        for step in steps:
            (checkpoints / f"step-{step:08d}.safetensors").touch()
    show_status(folder, counts, None)
    assert (
        "1 of 3 runs are done and 2 checkpointed (at step 3, 1); all of this is kept."
        in capsys.readouterr().out
    )
    selected = {
        "batch_size": 8,
        "num_steps": 4,
        "learning_rate": 0.1,
        "utility_loss": 1.5,
        "score": 0.25,
    }
    selected |= {"rule": "procedure", "model_uri": "models:/m/1"}
    ended = replace(counts, pending=0, failures=())
    folder.summary.write(
        SweepSummary(counts=ended, selected=SelectedConfiguration.from_json(selected))
    )
    show_status(folder, ended, None)
    out = capsys.readouterr().out
    assert "selected: (b=8, T=4, η=0.1) utility_loss 1.5000, score 0.25, models:/m/1" in out
    assert f"report: {tmp_path / 'report.html'}" in out
    assert "--resume" not in out


@pytest.mark.extensions("dp_weights", "dp_mf")
@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"name": "dp_adam", "max_grad_norm": 0.1}, []),
        (
            {"name": "nonprivate"},
            ["nothing bounds what one record does, so ε is infinite, whatever δ is"],
        ),
        (
            {"name": "dp_weights"},
            [
                ") is claimed, and nothing proves it",
                "Not certified: the formula takes one record to move the trained weights by",
            ],
        ),
        (
            {"name": "dp_mf", "num_bands": 2, "max_grad_norm": 0.1},
            [
                f"noise multiplier of: banded matrix factorisation with 2 bands: {t} updates"
                for t in (6, 3)
            ],
        ),
    ],
    ids=["dp_adam", "nonprivate", "dp_weights", "dp_mf"],
)
def test_plan_names_the_unit_and_the_events_of_its_epsilon(
    raydp: Callable[..., Answer],
    write_spec: Callable[..., Path],
    method: dict[str, object],
    said: list[str],
) -> None:
    """What a DP optimizer's table says is all there is."""
    lines = raydp("plan", write_spec(method=method)).out.rstrip().splitlines()
    facts = next(i for i, line in enumerate(lines) if "examples; the unit" in line)
    after = [line for line in lines[1:facts] if not line.lstrip()[0].isdigit()]
    assert len(after) == len(said)
    for line, part in zip(after, said, strict=True):
        assert part in line


@pytest.mark.extensions("dp_weights", "dp_mf")
@pytest.mark.parametrize(
    ("method", "bound", "message"),
    [
        ({"name": "nonprivate"}, {"epsilon": 8}, "Remove it: method nonprivate has no guarantee"),
        (
            {"name": "dp_weights"},
            {"claimed_epsilon": 8},
            "select.at_most must not bound claimed_epsilon, got 8",
        ),
        ({"name": "dp_adam"}, {"epsilon": 4}, "Raise it to 8, the target"),
    ],
    ids=["nonprivate", "dp_weights", "dp_adam"],
)
def test_plan_refuses_a_bound_on_the_guarantee_that_no_run_keeps_to(
    raydp: Callable[..., Answer],
    write_spec: Callable[..., Path],
    method: dict[str, object],
    bound: dict[str, float],
    message: str,
) -> None:
    """And not the end of the sweep, when all is trained."""
    answer = raydp(
        "plan", write_spec(method=method, select={"score": "vmr_exact", "at_most": bound})
    )
    assert answer.code == 2
    assert message in answer.err


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("explain", [False, True])
def test_a_quiet_command_prints_no_warning(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    quiet: bool,
    explain: bool,
) -> None:
    chosen = Selection(
        configuration=Configuration(batch_size=1, num_steps=5, learning_rate=0.01), utility_loss=1.0, score=0.5,
        rule="procedure", steps=(), model_uri=None, cautions=(Warned("It leaks.", short="leaks"),),
    )  # fmt: skip
    monkeypatch.setattr(output.stderr, "quiet", quiet)
    if explain:
        show_explanation(chosen, None, None)
    else:
        show_verdict(chosen, None, source="points.csv", folder=None)
    lines = capsys.readouterr().out.splitlines()
    assert ("warning: It leaks." in lines) == (explain and not quiet)
    assert ("! leaks" in lines) == (not explain and not quiet)


def test_a_watched_sweep_that_nobody_runs_is_printed_once(
    raydp: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raydp.cli.commands.status.QUIET_SECONDS", 0.0)
    monkeypatch.setattr("raydp.cli.commands.status.LOOK_SECONDS", 0.0)
    counts = RunCounts(runs=3, finished=1, failed=0, stopped=0, pending=2)
    monkeypatch.setattr("raydp.sweep.store.points.counts", lambda folder: counts)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(small_spec(tmp_path)))
    out = raydp("status", tmp_path, "--watch").out
    assert out.count("3 runs, 1 finished") == 1
    assert raydp("status", tmp_path, "--watch", "--json").code == 2


@pytest.mark.parametrize("shows_runs", [True, False])
def test_end_of_a_sweep_names_failed_runs_only_where_runs_may_be_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shows_runs: bool
) -> None:
    configuration = Configuration(batch_size=8, num_steps=4, learning_rate=0.1)
    failure = RunFailure(configuration=configuration, seed=0, run_id="ab12", reason="a [reason]")
    counts = RunCounts(
        runs=3, finished=2, failed=1, stopped=0, pending=0, failures=(failure,), note="one model"
    )
    sweep = SimpleNamespace(
        folder=SimpleNamespace(disclosure=lambda: Disclosure(shows_runs=shows_runs)),
        spec=SimpleNamespace(tracking=SimpleNamespace(loggers=())),
    )
    result = SweepResult(
        folder=tmp_path, counts=counts, selected=None, best_utility=None, reason="none",
        report=None, interrupted=False,
    )  # fmt: skip
    show_result(cast("Sweep", sweep), result)
    out = capsys.readouterr().out
    assert ("a [reason]" in out) == shows_runs
    assert ("1 failed" in out) == shows_runs
    assert ("one model" in out) == (not shows_runs)
