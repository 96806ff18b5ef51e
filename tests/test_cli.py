"""The command line is a contract: exit codes, one JSON document on stdout, the names of its
fields."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ray.exceptions import OutOfMemoryError

from raydp.analysis import heuristic_accuracy, load_points, select
from raydp.analysis.selection.rules import rule_names
from raydp.analysis.tables.old_names import warn_of_old_name
from raydp.privacy import Caution
from tests.conftest import Answer
from tests.marks import slow_after

Command = Callable[..., Answer]


@pytest.fixture
def points(tmp_path: Path) -> Path:
    """A grid of 8 configurations × 2 seeds whose score grows with every hyperparameter."""
    rng = np.random.default_rng(0)
    rows = []
    for b, t, lr, seed in product([64, 128], [10, 20], [0.001, 0.002], [0, 1]):
        size = np.log(b) + np.log(t) + np.log(lr)
        noise = rng.normal(0, 0.001)
        rows.append([b, t, lr, seed, 3 - 0.1 * size + noise, 0.5 + 0.05 * size + noise])
    path = tmp_path / "points.csv"
    columns = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
    pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
    return path


def test_select_prints_the_selection_of_analysis(raydp: Command, points: Path) -> None:
    answer = raydp("select", points, "--max-loss", 3.2, "--json").json()
    expected = select(load_points(points), max_loss=3.2)
    chosen = ("batch_size", "num_steps", "learning_rate")
    assert {name: answer[name] for name in chosen} == expected.configuration.to_json()
    assert answer["rule"] == "informed"
    assert [step["name"] for step in answer["steps"]][-1] == "best utility"
    best = raydp("select", points, "--rule", "best-utility", "--json").json()
    means = load_points(points).groupby(list(chosen))["utility_loss"].mean()
    assert best["utility_loss"] == pytest.approx(means.min(), abs=1e-12)


def test_the_points_of_a_sweep_are_selected_from_as_the_sweep_does(
    raydp: Command, points: Path, write_spec: Callable[..., Path], tmp_path: Path
) -> None:
    table = pd.read_csv(points).assign(base_utility_loss=4.0)
    table.to_csv(points, index=False)
    alone = raydp("select", points, "--json").json()
    chosen = {"score": "vmr_exact", "rule": "best-utility", "max_loss": 3.3}
    assert write_spec(select=chosen).parent == points.parent
    beside = raydp("select", points, "--json").json()
    assert (alone["rule"], alone["max_loss"]) == ("informed", None)
    assert (beside["rule"], beside["max_loss"]) == ("best-utility", 3.3)
    assert beside == select(load_points(points), rule="best-utility", max_loss=3.3).to_dict()
    other = points.rename(tmp_path / "other.csv")
    assert raydp("select", other, "--json").json()["rule"] == "informed", (
        "not the sweep's own table"
    )


def test_the_package_lists_its_public_names() -> None:
    import raydp

    assert set(dir(raydp)) == {*raydp.__all__, "__version__"}


def test_an_unfiltered_full_grid_is_warned_about(raydp: Command, points: Path) -> None:
    answer = raydp("select", points, "--rule", "procedure")
    assert answer.code == 0
    assert "! the rule always selects the smallest b, T and η. Set a utility" in answer.out
    assert "b=64 T=10 η=0.001" in answer.out, "the corner"
    explained = raydp("select", points, "--rule", "procedure", "--explain").out
    assert "warning: On a full grid without a utility threshold" in explained


def test_a_threshold_below_every_point_is_an_error(raydp: Command, points: Path) -> None:
    answer = raydp("select", points, "--max-loss", 0.1)
    assert answer.code == 2
    assert "max_loss" in answer.err


@pytest.mark.extensions("regression")
@pytest.mark.parametrize("command", ["heuristics", "risk", "regression", "variance"])
def test_analyses_are_strict_json(raydp: Command, points: Path, command: str) -> None:
    answer = raydp("analyze", command, points, "--json")
    assert answer.code == 0, answer.err
    document = answer.json()
    if command == "heuristics":
        assert document == heuristic_accuracy(load_points(points))
        assert document["individual"]["accuracy"] == 1
    if command == "risk":
        assert document["layout"] == "mean"
        assert set(document["rules"]) == set(rule_names())
    if command == "regression":
        assert document["individual"]["terms"]["log_batch_size"]["coef"] == pytest.approx(
            0.05, abs=0.005
        )


@pytest.mark.extensions("regression")
@pytest.mark.parametrize("command", ["heuristics", "risk", "regression"])
def test_a_figure_of_each_group_is_that_of_its_own_table(
    raydp: Command, points: Path, tmp_path: Path, command: str
) -> None:
    """A group whose figures are not defined has the reason, and the others have theirs."""
    one = pd.read_csv(points)
    one.to_csv(tmp_path / "one.csv", index=False)
    groups = {
        "2": one,
        "1": one.assign(score=1 - one["score"]),
        "0.5": one.assign(utility_loss=99.0),
    }
    whole = pd.concat([t.assign(epsilon=float(e)) for e, t in groups.items()])
    whole.to_csv(points, index=False)
    limit = ("--max-loss", 90)
    asked = ("analyze", command, points, "--by", "epsilon", *limit)
    document = raydp(*asked, "--json").json()
    assert (document["by"], list(document["groups"])) == ("epsilon", ["0.5", "1", "2"])
    assert (
        document["groups"]["2"]
        == raydp("analyze", command, tmp_path / "one.csv", *limit, "--json").json()
    )
    assert document["groups"]["1"] != document["groups"]["2"]
    assert list(document["groups"]["0.5"]) == ["reason"]
    assert "epsilon 0.5" in raydp(*asked).out


def test_the_report_is_one_file(raydp: Command, points: Path, tmp_path: Path) -> None:
    assert raydp("report", points, "-o", tmp_path / "report.html").code == 0
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_spaces_are_listed_and_shown(raydp: Command) -> None:
    listed = {row["name"]: row["points"] for row in raydp("spaces", "list", "--json").json()}
    assert (listed["tofu-1"], listed["tofu-2"], listed["tofu-4"]) == (60, 60, 75)
    shown = raydp("spaces", "show", "tofu-4", "--json").json()
    assert len(shown["configurations"]) == 75
    assert "tofu-1" in raydp("spaces", "show", "tofu").err


@pytest.mark.parametrize(
    "arguments", [["select", "absent.csv"], ["status", "absent"], ["points", "absent"]]
)
def test_an_absent_path_is_bad_input(raydp: Command, arguments: list[str]) -> None:
    answer = raydp(*arguments)
    assert answer.code == 2
    assert "absent" in answer.err


def test_a_sweep_that_is_not_there_names_those_that_are(raydp: Command, tmp_path: Path) -> None:
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "spec.yaml").write_text("")
    assert "Sweeps in 'runs': first." in raydp("status", "fisrt", "--storage", "runs").err
    elsewhere = raydp("status", "first", "--storage", "elsewhere").err
    assert "'elsewhere/first' (nothing there). `raydp list` names them." in elsewhere


def test_plan_lists_every_configuration_with_its_noise(
    raydp: Command, write_spec: Callable[..., Path]
) -> None:
    rows = raydp("plan", write_spec(), "--json").json()
    assert [(r["batch_size"], r["num_steps"]) for r in rows] == [(32, 3), (32, 6)]
    for row in rows:
        assert row["sample_rate"] == 32 / 2000
        assert row["compute"] == row["batch_size"] * row["num_steps"]
        assert row["epsilon"] <= 8
        assert row["delta"] == 2000**-1.1


@pytest.mark.slow
def test_without_a_spec_the_embedded_sweep_is_planned(raydp: Command) -> None:
    rows = raydp("plan", "--json").json()
    assert len(rows) == 18
    assert {row["seeds"] for row in rows} == {2}, "the first pass"


@pytest.mark.slow
def test_a_named_space_leaves_out_unfit_configurations_with_a_reason(
    raydp: Command, write_spec: Callable[..., Path]
) -> None:
    answer = raydp("plan", write_spec(space={"name": "tofu-1"}))
    assert answer.code == 0
    assert "batch_size 2048 exceeds num_examples 2000" in answer.out


PATH_ERRORS = {
    FileNotFoundError: "Create its folder",
    NotADirectoryError: "no part before the last is a file",
    IsADirectoryError: "Give a file's path",
    PermissionError: "Change its permissions",
    FileExistsError: "Move away what is there",
}


@pytest.mark.parametrize("kind", PATH_ERRORS)
def test_a_path_that_cannot_be_used_is_bad_input(
    raydp: Command, monkeypatch: pytest.MonkeyPatch, kind: type[OSError]
) -> None:
    fail_with(monkeypatch, kind(1, "the system's words", "some/path"))
    answer = raydp("schema")
    assert answer.code == 2
    assert answer.err.startswith("error: path must ")
    assert "got 'some/path' (the system's words)" in answer.err
    assert PATH_ERRORS[kind] in answer.err
    assert "Traceback" not in answer.err


def test_another_failure_of_the_system_is_exit_code_1(
    raydp: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, OSError(28, "No space left on device"))
    answer = raydp("schema")
    assert (answer.code, answer.err) == (1, "error: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you "
            "tried"
        ),
        RuntimeError("can't start new thread"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        OutOfMemoryError("10 worker(s) were killed"),
    ],
    ids=lambda error: str(error)[:30],
)
def test_a_command_without_memory_ends_with_a_sentence(
    raydp: Command, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fail_with(monkeypatch, error)
    answer = raydp("schema")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: memory must suffice for the command, got too little.")
    assert "--resume" in answer.err


@pytest.mark.slow
def test_a_limit_of_memory_that_the_libraries_exceed_ends_with_a_sentence(tmp_path: Path) -> None:
    """The limit counts addresses, so that it acts on every machine alike."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (10**9, 10**9)); "
    code += "from raydp.cli.main import main; main()"
    command = [sys.executable, "-c", code, "plan"]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert answer.returncode == 1
    assert answer.stderr.splitlines()[-1].startswith(
        "error: memory must suffice for the command"
    ), answer.stderr
    assert "Traceback" not in answer.stderr


def test_ctrl_c_is_one_line_and_exit_code_1(
    raydp: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    answer = raydp("schema")
    assert (answer.code, answer.err) == (1, "interrupted\n")


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make `raydp schema` fail."""

    def failing() -> None:
        raise error

    monkeypatch.setattr("raydp.spec.reading.json_schema", failing)


@pytest.mark.parametrize(
    ("output", "remedy"), [("absent/x.html", "Create its folder"), (".", "Give a file's path")]
)
def test_a_report_that_cannot_be_written_there(
    raydp: Command, points: Path, output: str, remedy: str
) -> None:
    answer = raydp("report", points, "-o", output)
    assert answer.code == 2
    assert remedy in answer.err
    assert "Traceback" not in answer.err


def test_a_storage_that_is_a_file(
    raydp: Command, write_spec: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("")
    answer = raydp("sweep", write_spec(storage="taken"))
    assert answer.code == 2
    assert "'taken" in answer.err
    assert "is a file" in answer.err


def test_help_breaks_a_line_only_where_no_further_word_fits(
    raydp: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line break of a docstring once stood in the middle of the table of commands."""
    monkeypatch.setenv("COLUMNS", "80")
    panels = [
        [line[2:78] for line in panel.splitlines() if line.startswith("│")]
        for group in ([], ["models"], ["analyze"])
        for panel in raydp(*group, "--help").out.split("╭─ ")[1:]
        if not panel.startswith(("Options", "Arguments"))
    ]
    broken = [
        (line.rstrip(), following.split()[0])
        for lines in panels
        for line, following in pairwise(lines)
        if following.startswith("   ")
    ]
    assert broken, "no line of the help is broken"
    for line, word in broken:
        assert len(line) + 1 + len(word) > 76, line


def test_without_a_command_there_is_help_in_groups(raydp: Command) -> None:
    answer = raydp()
    assert answer.code == 0
    groups = ["Run a sweep", "Read a sweep", "Models"]
    assert [answer.out.count(f"─ {group} ─") for group in groups] == [1] * len(groups)
    assert "─ Commands ─" not in answer.out
    assert [raydp(group).code for group in ("models", "analyze", "spaces")] == [0] * 3


@pytest.mark.extensions
def test_commands_of_extensions_have_their_places_in_the_help(raydp: Command) -> None:
    shown = raydp().out
    assert [shown.count(f"─ {group} ─") for group in ("Privacy", "Data")] == [1, 1]
    assert [raydp(group).code for group in ("audit", "secrets", "data")] == [0] * 3


def test_the_version_is_the_installed_ones(raydp: Command) -> None:
    answer = raydp("--version")
    assert (answer.code, answer.out) == (0, f"raydp {version('raydp-tune')}\n")


def test_a_report_is_overwritten_only_with_force(
    raydp: Command, points: Path, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    page.write_text("mine")
    answer = raydp("report", points, "-o", page)
    assert (answer.code, "--output must be a new file" in answer.err, page.read_text()) == (
        2,
        True,
        "mine",
    )
    assert raydp("report", points, "-o", page, "--force").code == 0
    assert page.read_text() != "mine"


@pytest.mark.parametrize(
    ("answer", "code", "kept"), slow_after(1, [("n", 2, True), ("y", 0, False)])
)
def test_at_a_terminal_the_user_is_asked_before_a_report_is_overwritten(
    points: Path, tmp_path: Path, answer: str, code: int, kept: bool
) -> None:
    page = tmp_path / "report.html"
    page.write_text("mine")
    terminal, other_end = pty.openpty()
    command = [sys.executable, "-m", "raydp", "report", str(points), "-o", str(page)]
    process = subprocess.Popen(
        command, stdin=other_end, stdout=subprocess.DEVNULL, stderr=other_end, cwd=tmp_path
    )
    os.close(other_end)
    os.write(terminal, f"{answer}\n".encode())
    said = b""
    with contextlib.suppress(OSError):  # the other end is closed when the command ends
        while chunk := os.read(terminal, 4096):
            said += chunk
    assert process.wait(timeout=60) == code
    assert b"Overwrite it? [y/N]" in said
    assert (page.read_text() == "mine") == kept


def test_the_plans_document_has_the_counts_and_caveats_of_its_text(
    raydp: Command, write_spec: Callable[..., Path]
) -> None:
    spec = write_spec()
    text = " ".join(raydp("plan", spec).out.split())
    rows = raydp("plan", spec, "--json").json()
    assert len(rows) == 2
    for row in rows:
        data = row["data"]
        assert (
            f"{data['num_examples']} examples; the unit of privacy is: {data['privacy_unit']}"
            in text
        )
        assert all(f"caveat: {caveat}" in text for caveat in data["caveats"])
        assert data["caveats"]
        assert f"held-out examples: {data['heldout_examples']}" in text
        assert row["warnings"]
        assert all(f"warning: {Caution.from_json(warning)}" in text for warning in row["warnings"])
    assert raydp("sweep", spec, "--dry-run", "--json").json() == rows


ODD = (
    "where nothing runs it:",
    "Name some.",
    "What that does not cover is on each model's card",
    "on the model already, and left",
    "must have a gain to share",
)


@pytest.mark.parametrize("sentence", ODD)
def test_sentences_that_read_oddly_are_gone(sentence: str) -> None:
    root = Path(__file__).parents[1]
    files = [
        root / "README.md",
        *(f for room in ("raydp", "analysis", "docs") for f in (root / room).rglob("*")),
    ]
    texts = [f.read_text(encoding="utf-8") for f in files if f.suffix in {".py", ".md"}]
    assert not [text for text in texts if sentence in text]


def test_old_option_of_the_gain_share_is_read_with_a_warning(raydp: Command, points: Path) -> None:
    table = pd.read_csv(points).assign(base_utility_loss=9.0)
    table.to_csv(points, index=False)
    warn_of_old_name.cache_clear()
    old = raydp("select", points, "--min-utility-gain=0.9", "--json")
    assert "now called min_gain_share" in " ".join(old.err.split())
    assert old.json() == raydp("select", points, "--min-gain-share", 0.9, "--json").json()


def test_a_minimum_gain_without_any_gain_names_the_remedy(raydp: Command, points: Path) -> None:
    table = pd.read_csv(points).assign(base_utility_loss=1.0)
    table.to_csv(points, index=False)
    answer = raydp("select", points, "--min-gain-share", 0.9)
    assert answer.code == 2
    assert (
        "must be left out if no configuration is better than the base model, got 0.9"
        in " ".join(answer.err.split())
    )
