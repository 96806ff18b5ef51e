"""What a sweep's commands print on a terminal, and the words by which a sweep can be named."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from itertools import pairwise
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import yaml
from rich.console import Console

from raydp.search_spaces import Configuration
from raydp.sweep.api import select
from raydp.sweep.engine.progress import FirstPass, SweepProgress, follow_start
from raydp.sweep.engine.queue import QueueStatus
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.points import counts
from raydp.sweep.store.results import RunResult
from raydp.sweep.store.state import DriverProgress
from raydp.sweep.store.summary import SelectedConfiguration, SweepSummary
from raydp.system import output
from raydp.system.table_layout import ELSEWHERE, HEADERS
from raydp.system.waiting import Waits
from tests.conftest import Answer
from tests.marks import slow_after
from tests.sweep.trained import Trained

pytestmark = pytest.mark.xdist_group("scoring")

Command = Callable[..., Answer]


class Terminal(StringIO):
    """A file that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def spec(trained: Trained, tmp_path: Path) -> Path:
    """The file that the finished sweep was started with."""
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(trained.content))
    return path


COMMANDS = (
    ["models", "find", "--uri", "URI"],
    ["models", "show", "models:/small/1", "--uri", "URI"],
    ["points", "SPEC"],
    ["plan", "SPEC"],
    ["list", "--storage", "STORAGE"],
    ["analyze", "variance", "SPEC"],
    ["analyze", "scores", "SPEC", "--resamples", "100"],
    ["analyze", "correlations", "SPEC", "--resamples", "100"],
    ["analyze", "subsets", "SPEC"],
    ["spaces", "list"],
    [
        "audit",
        "bound",
        "--canaries",
        "1000",
        "--guesses",
        "100",
        "--correct",
        "75",
        "--delta",
        "1e-4",
    ],
)


@pytest.mark.parametrize(
    "command", slow_after(3, COMMANDS), ids=lambda command: " ".join(command[:2])
)
def test_no_word_of_a_table_is_broken_at_any_width(
    raydp: Command,
    trained: Trained,
    spec: Path,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = {"SPEC": str(spec), "URI": trained.uri, "STORAGE": trained.content["storage"]}
    arguments = [words.get(word, word) for word in command]
    whole = raydp(*arguments).out
    known = {word.rstrip(",.") for word in [*whole.split(), *ELSEWHERE.split()]}
    for width in (60, 80, 100, 160):
        terminal = Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(output.stdout, "_file", terminal)
            patch.setattr(output.stdout, "_width", width)
            assert raydp(*arguments).code == 0
        shown = terminal.getvalue()
        remark = {"-", "in", "every", "row:", "Left", "out", "to", "fit", str(width), "columns:"}
        new = {word.rstrip(",.") for word in shown.split()} - known
        assert new <= remark, width
        if "Left out" not in shown:
            assert (
                known - {word.rstrip(",.") for word in [*shown.split(), *ELSEWHERE.split()]}
                == set()
            ), width


def test_headers_are_the_papers_symbols(raydp: Command, spec: Path) -> None:
    header = raydp("points", spec).out.splitlines()[1].split()
    assert header == ["b", "T", "η", "seed", "status", "loss", "score", "model_uri"]
    planned = [line.split() for line in raydp("plan", spec).out.splitlines()]
    (header,) = [words for words in planned if words[:3] == ["b", "T", "η"]]
    assert not set(HEADERS) & set(header)


@pytest.mark.extensions("subsets", "profile")
@pytest.mark.parametrize(
    "command",
    slow_after(
        5,
        ["status", "points", "select", "analyze variance", "analyze subsets", "report", "profile"],
    ),
)
def test_a_spec_is_its_sweep(raydp: Command, trained: Trained, spec: Path, command: str) -> None:
    """The same answer as by the sweep's folder, but for the report, which is a page."""
    name, *rest = command.split()
    options = (
        ["--deltas", "1e-3"]
        if name == "profile"
        else ["-o", "page.html", "--force"]
        if name == "report"
        else []
    )
    by_spec = raydp(name, *rest, spec, *options, "--json")
    assert by_spec.code == 0, by_spec.err
    assert by_spec.json() == raydp(name, *rest, trained.folder.path, *options, "--json").json()


def test_a_spec_whose_sweep_was_not_started(
    raydp: Command, trained: Trained, tmp_path: Path
) -> None:
    path = tmp_path / "new.yaml"
    path.write_text(yaml.safe_dump({**trained.content, "name": "new"}))
    answer = raydp("status", path)
    assert (answer.code, f"Start it with `raydp sweep {path}`" in answer.err) == (2, True)
    path.write_text(yaml.safe_dump({**trained.content, "name": 3}))
    assert "name must be" in raydp("status", path).err


@pytest.mark.extensions
def test_the_sweeps_of_a_storage_are_listed(
    raydp: Command, trained: Trained, tmp_path: Path
) -> None:
    assert raydp("list", "--json").json() == []
    assert "`raydp sweep SPEC` starts one" in raydp("list").out
    runs = tmp_path / "raydp_runs"
    for name in ("ended", "begun", "broken"):
        shutil.copytree(
            trained.folder.path, runs / name, ignore=shutil.ignore_patterns("summary.json")
        )
    ended, begun = SweepFolder.open(runs / "ended"), SweepFolder.open(runs / "begun")
    chosen = select(ended.path).to_dict()
    ended.summary.write(
        SweepSummary(counts=counts(ended), selected=SelectedConfiguration.from_json(chosen))
    )
    (begun.trial(trained.trials[0].run_id) / "result.json").unlink()
    (runs / "broken" / "plan.json").unlink()
    rows = {row["sweep"]: row for row in raydp("list", "--json").json()}
    assert [rows["ended"][k] for k in ("runs", "finished", "failed", "pending")] == [4, 4, 0, 0]
    assert rows["ended"]["selected"]["model_uri"] == chosen["model_uri"]
    assert rows["ended"]["began"] <= rows["ended"]["changed"]
    assert (rows["begun"]["finished"], rows["begun"]["pending"], rows["begun"]["selected"]) == (
        3,
        1,
        None,
    )
    assert rows["broken"]["note"].startswith("cannot be read")
    shown = raydp("list").out
    assert shown.splitlines()[1].split()[:5] == ["sweep", "runs", "finished", "failed", "pending"]
    assert all(f"\n{name}" in shown for name in rows)


def test_failures_and_progress_name_configurations_and_seeds(
    trained: Trained, tmp_path: Path, raydp: Command
) -> None:
    folder = SweepFolder.open(Path(shutil.copytree(trained.folder.path, tmp_path / "failed")))
    trial = trained.trials[0]
    (folder.trial(trial.run_id) / "result.json").unlink()
    folder.commit(RunResult(run_id=trial.run_id, status="failed", reason="no [memory]"))
    (failure,) = raydp("status", folder.path, "--json").json()["failures"]
    assert str(trial) == f"(b=32, T={trial.num_steps}, η=0.01) seed {trial.seed}"
    assert f"{Configuration.from_json(failure)} seed {failure['seed']}" == str(trial)
    screen = Terminal()
    names = {t.run_id: str(t) for t in trained.trials}
    retried = ((trial.run_id, "the worker group died [rank 1]"),)
    status = QueueStatus(
        running={trial.run_id: (1, 3), BASE_RUN: (0, 0)}, waiting=0, retried=retried
    )
    console = Console(file=screen, force_terminal=True, width=100, highlight=False)
    progress = SweepProgress(console, {trial.run_id: 96}, 0, lambda: status, names=names)
    progress._refresh()
    progress._refresh()
    said = f"{trial}: the worker group died [rank 1]. The run is tried again."
    assert screen.getvalue().count(said) == 1
    console.print(progress._render())
    assert f"{trial}  step 1/3" in screen.getvalue()
    assert trial.run_id not in screen.getvalue()


def test_before_the_first_run_has_ended_its_steps_tell_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr("raydp.sweep.engine.progress.time.monotonic", lambda: clock[0])
    running = {"a": (0, 0), "b": (0, 0)}
    progress = SweepProgress(
        Console(),
        {"a": 40, "b": 40, "c": 20},
        0,
        lambda: QueueStatus(running=dict(running), waiting=1),
        names={},
    )
    progress._refresh()
    assert (
        progress._line() == "0/3 done, 2 running, 0 failed, time left: known after the first steps"
    )
    clock[0] += 300.0  # the base model is loaded: this tells nothing of the steps
    running |= {"a": (1, 10)}
    progress._refresh()
    assert (
        progress._line()
        == "0/3 done, 2 running (step 1 of 10), 0 failed, time left: known after the first steps"
    )
    clock[0] += 20.0
    running |= {"a": (3, 10), "b": (2, 10)}  # 16 in 20 s; 20 of 100 are computed
    progress._refresh()
    assert progress._line().endswith(
        "2 running (step 3 of 10, 2 of 10), 0 failed, about 1 min 40 s left, scores not counted"
    )


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_last_line_counts_every_result(interrupted: bool) -> None:
    """The results come after the last line that was due.

    An interrupted sweep has runs in progress.
    """
    file = StringIO()
    status = QueueStatus(running={"b": (1, 6)}, waiting=0)
    progress = SweepProgress(Console(file=file), {"a": 60, "b": 60}, 0, lambda: status, names={})
    with suppress(KeyboardInterrupt), progress:
        for run_id in ("a", "b"):
            progress.finished(RunResult(run_id=run_id, status="stopped"))
        if interrupted:
            raise KeyboardInterrupt
    last = "" if interrupted else "2/2 done, 0 running, 0 failed, 2 stopped early\n"
    assert file.getvalue() == last


@pytest.mark.parametrize("waited", [0.0, 10.0, 29.0])
def test_a_step_that_has_not_ended_makes_the_others_no_slower(
    monkeypatch: pytest.MonkeyPatch, waited: float
) -> None:
    """Six steps of 30 s: after the second one, 120 s are left, less those of the third that have
    gone by."""
    clock = [100.0]
    monkeypatch.setattr("raydp.sweep.engine.progress.time.monotonic", lambda: clock[0])
    running = {"a": (1, 6)}
    progress = SweepProgress(
        Console(), {"a": 60}, 0, lambda: QueueStatus(running=dict(running), waiting=0), names={}
    )
    progress._refresh()
    clock[0] += 30.0
    running["a"] = (2, 6)
    progress._refresh()
    clock[0] += waited
    progress._refresh()
    left = 120 - waited
    assert (
        f"about {int(left // 60)} min {int(left % 60):02d} s left, scores not counted"
        in progress._line()
    )


def started(
    monkeypatch: pytest.MonkeyPatch, works: list[dict[int, str]]
) -> list[tuple[float, str]]:
    """The lines of a start in a file with their times: the queue answers once a second, and another
    thread speaks five times as often."""
    clock, lines, file = [0.0], list[tuple[float, str]](), StringIO()
    waits = Waits(lambda: clock[0], thread=False)
    monkeypatch.setattr("raydp.system.output.WAITS", waits)
    answers = iter(works)

    def tick(seconds: float = 1.0) -> None:
        for _ in range(int(5 * seconds)):
            clock[0] += 0.2
            waits.speak()
            new = file.getvalue().splitlines()[len(lines) :]
            lines.extend((clock[0], line) for line in new)

    def wait(seconds: float) -> bool:
        tick()
        return clock[0] > len(works)

    def poll() -> QueueStatus:
        return QueueStatus(running={}, waiting=2, preparing=next(answers))

    follow_start(
        Console(file=file, width=200), "starting the workers", poll=poll, wait=wait, slots=2
    )
    return lines


def test_the_start_names_each_workers_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    works = (
        [{}] * 3
        + [{0: "loads the base model"}] * 8
        + [{0: "waits for a run", 1: "computes the prefix, 40 %"}] * 9
    )
    lines = [line for _, line in started(monkeypatch, works)]
    assert list(dict.fromkeys(re.sub(r" \(\d+ s\)$", "", line) for line in lines)) == [
        "starting the workers (0 of 2 have started)",
        "starting the workers (1 of 2 have started; worker 0 loads the base model)",
        "starting the workers (2 of 2 have started; worker 0 waits for a run; worker 1 computes "
        "the prefix, 40 %)",
    ]


def test_a_start_of_the_workers_that_takes_long_says_so_with_its_true_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = started(monkeypatch, [{}] * 130)
    gaps = [(after, after - before) for (before, _), (after, _) in pairwise(lines)]
    assert max(gap for after, gap in gaps if after <= 60) < 10.5
    assert max(gap for after, gap in gaps) < 30.5
    times = [(after, re.search(r" \((\d+) s\)$", line)) for after, line in lines[1:]]
    assert all(said is not None and abs(after - int(said[1])) <= 1 for after, said in times)


def test_lines_of_progress_come_at_once_every_ten_seconds_and_later_every_thirty() -> None:
    file, due = StringIO(), list[int]()
    progress = SweepProgress(
        Console(file=file), {}, 0, lambda: QueueStatus(running={}, waiting=0), names={}
    )
    progress._stop = MagicMock()

    def wait(seconds: float) -> bool:
        waited = progress._stop.wait.call_count - 1
        due.extend([waited] * (file.getvalue().count("\n") - len(due)))
        return waited == 200

    progress._stop.wait.side_effect = wait
    progress._loop()
    gaps = [(after, after - before) for before, after in pairwise([0, *due])]
    assert due[0] == 2
    assert max(gap for after, gap in gaps if after <= 60) <= 10
    assert {gap for after, gap in gaps if after > 62} == {30}


def test_workers_that_still_start_are_counted() -> None:
    status = QueueStatus(running={"a": (0, 0)}, waiting=1, preparing={1: "loads the base model"})
    progress = SweepProgress(Console(), {"a": 40, "b": 40}, 0, lambda: status, names={})
    progress._refresh()
    assert "0 failed, 1 starting (loads the base model), time left" in progress._line()


def test_a_status_says_how_far_the_runs_in_progress_are(
    trained: Trained, tmp_path: Path, raydp: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only while a driver writes it: what a killed driver has left is soon out of date."""
    monkeypatch.setattr("raydp.sweep.engine.progress.RECORD_SECONDS", 1.0)
    folder = SweepFolder.open(Path(shutil.copytree(trained.folder.path, tmp_path / "running")))
    trial = trained.trials[0]
    (folder.path / "summary.json").unlink(missing_ok=True)
    for name in ("result.json", "tracked.json"):
        (folder.trial(trial.run_id) / name).unlink()
    status = QueueStatus(running={trial.run_id: (1, 3), BASE_RUN: (0, 0)}, waiting=0)
    monitored = SweepProgress(
        Console(file=StringIO()),
        {trial.run_id: 96},
        3,
        lambda: status,
        names={},
        record=folder.set_progress,
    )
    with monitored:
        for _ in range(200):
            if folder.progress() is not None:
                break
            time.sleep(0.1)
        said = raydp("status", folder.path).out
        document = raydp("status", folder.path, "--json").json()
    assert re.search(
        r"^\d s ago: 3/4 done, 2 running \(step 1 of 3\), 0 failed", said, re.MULTILINE
    )
    assert f"  {trial}  step 1/3\n  the untrained base model  step 0/?" in said
    assert "--resume" not in said
    assert document["progress"]["running"][0] == {
        "batch_size": 32, "num_steps": trial.num_steps, "learning_rate": 0.01, "seed": trial.seed,
        "run_id": trial.run_id, "step": 1,
    }  # fmt: skip
    assert folder.progress() is None, "the driver has ended"
    folder.set_progress(DriverProgress(sentence="1 running", running={}))
    os.utime(folder.path / "progress.json", (time.time() - 61, time.time() - 61))
    assert "--resume" in raydp("status", folder.path).out


def test_the_time_left_with_adaptive_seeds_is_that_of_the_first_pass_and_then_of_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr("raydp.sweep.engine.progress.time.monotonic", lambda: clock[0])
    costs = {
        "a0": 10,
        "a1": 10,
        "b0": 20,
        "b1": 20,
        "a2": 10,
        "a3": 10,
        "b2": 20,
        "b3": 20,
        "b4": 20,
    }
    first = FirstPass(run_ids=frozenset({"a0", "a1", "b0", "b1"}), further_cost=60.0)
    status = QueueStatus(running={"b0": (1, 2)}, waiting=0)
    progress = SweepProgress(
        Console(), costs, 0, lambda: status, names={}, searched=True, first_pass=first
    )
    progress.finished(RunResult(run_id="a0", status="failed", reason="no memory"))
    progress._refresh()
    clock[0] += 40.0  # 20 of 60 are computed in 40 s: the other 40 take 80 s
    assert progress._line().endswith("about 1 min 20 s left of the first pass")
    for run_id in ("a1", "b0", "b1", "b2"):
        progress.finished(RunResult(run_id=run_id, status="failed", reason="no memory"))
    status = QueueStatus(running={}, waiting=0)
    progress._refresh()
    clock[0] += (
        # 80 in 80 s; of the budget of 60 there are 40 left, which is less than all that is planned
        40.0
    )
    assert progress._line().endswith("at most about 0 min 40 s left")
