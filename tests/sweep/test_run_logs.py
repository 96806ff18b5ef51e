"""Run logs: what TensorBoard and Weights & Biases read is what the points table says, and nothing else leaves."""

from __future__ import annotations

import importlib.util
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from ray.tune.logger import LoggerCallback, TBXLoggerCallback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from raydp import Sweep
from raydp.spec.reading import load_spec
from raydp.sweep.engine.tune import rounds as tune_rounds
from raydp.sweep.engine.tune.callbacks import GuardedCallback, ending
from raydp.sweep.engine.tune.loggers import RunLog, TensorBoardLog
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.run_logs import log_commands
from raydp.sweep.store.folder import SweepFolder
from tests.builders.specs import small_spec
from tests.builders.wandb_files import wandb_runs
from tests.conftest import Answer
from tests.sweep.trained import TrainedSpec

LONG = 300
"""Steps of a run that takes some seconds."""
METRICS = ("utility_loss", "score", "score.vmr_exact", "score.vmr_exact.std_error")
LOGGERS = ["tensorboard", "wandb"]


def tracking(folder: Path, *loggers: str) -> dict[str, Any]:
    return {**small_spec(folder)["tracking"], "loggers": list(loggers)}


@contextmanager
def server() -> Iterator[tuple[int, list[bytes]]]:
    """A server that keeps the beginning of what it is sent, and never answers."""
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                connection.settimeout(5)
                seen.append(connection.recv(200))
                connection.close()

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1], seen


class Logged:
    """A sweep of two runs with both kinds of logs, one of them long enough to be seen in its course.

    Attributes:
        seen: what the server of W&B and the proxy were sent.
    """

    def __init__(self, folder: Path) -> None:
        spec = small_spec(
            folder,
            space={"points": [[16, 2, 0.01], [16, LONG, 0.01]]},
            method={"name": "dp_sgd", "max_grad_norm": 0.1},
            tracking=tracking(folder, *LOGGERS),
        )
        with server() as (port, self.seen), pytest.MonkeyPatch.context() as patch:
            patch.setattr(tune_rounds, "REPORT_SECONDS", 0.2)
            patch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
            patch.setenv("https_proxy", f"http://127.0.0.1:{port}")
            patch.setenv("WANDB_API_KEY", "k" * 40)
            self.sweep = Sweep(spec)
            self.result = self.sweep.run()
        self.folder = SweepFolder.open(self.result.folder)
        self.points: list[dict[str, Any]] = pd.read_csv(self.result.folder / "points.csv").to_dict("records")

    def steps(self, run_id: str) -> dict[int, float]:
        """A run's loss in each step, as the sweep keeps it."""
        history = self.folder.result(run_id).history
        return {row["step"] + 1: row["loss"] for row in history}


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    return Logged(tmp_path_factory.mktemp("logged"))


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every curve of a folder, as TensorBoard reads it: (step, value) by tag, without the prefix of Tune."""
    reader = EventAccumulator(str(folder))
    reader.Reload()
    tags = reader.Tags()["scalars"]
    return {tag.removeprefix("ray/tune/"): [(e.step, e.value) for e in reader.Scalars(tag)] for tag in tags}


@pytest.mark.slow
def test_tensorboard_reads_what_the_points_say(logged: Logged) -> None:
    folders = {path.name.rpartition("-")[2]: path for path in logged.folder.tensorboard_logs.iterdir()}
    assert len(folders) == len(logged.points) == 2
    for point in logged.points:
        folder = folders[point["run_id"][:8]]
        assert folder.name.startswith(f"b16_T{point['num_steps']}_lr0.01_seed0-")
        curves = events(folder)
        for name in METRICS:
            assert curves[name] == [(point["num_steps"], pytest.approx(point[name], rel=1e-6))], "fp32 in the file"
        own = logged.steps(point["run_id"])
        assert all(own[step] == pytest.approx(loss, rel=1e-6) for step, loss in curves.get("loss", []))
    long = events(folders[max(logged.points, key=lambda p: p["num_steps"])["run_id"][:8]])
    assert len(long["loss"]) > 1, "the run trained for seconds"


@pytest.mark.slow
def test_wandb_has_what_the_points_say(logged: Logged) -> None:
    runs = {run.config["run_id"]: run for run in wandb_runs(logged.folder.wandb_logs)}
    assert runs.keys() == {point["run_id"] for point in logged.points}
    for point in logged.points:
        run = runs[point["run_id"]]
        assert (run.project, run.group) == ("small", "small")
        assert run.name == f"b16_T{point['num_steps']}_lr0.01_seed0"
        assert {k: run.config[k] for k in ("batch_size", "num_steps", "learning_rate", "noise_multiplier", "seed")} == {
            k: point[k] for k in ("batch_size", "num_steps", "learning_rate", "noise_multiplier", "seed")
        }
        last = run.rows[-1]
        assert last["_step"] == point["num_steps"]
        assert {name: last[name] for name in METRICS} == {name: point[name] for name in METRICS}
        own = logged.steps(point["run_id"])
        losses = {row["_step"]: row["loss"] for row in run.rows if "loss" in row}
        assert losses == {step: own[step] for step in losses}


@pytest.mark.slow
def test_nothing_is_sent_and_the_files_hold_no_secret_key_machine_or_path(logged: Logged) -> None:
    assert logged.seen == []
    task, _ = build_task(load_spec(logged.folder.path / "spec.yaml"))
    texts = [secret.prompt for secret in task.secrets()] + ["k" * 40]
    files = [path for path in (logged.folder.path / "logs").rglob("*") if path.is_file() and not path.is_symlink()]
    assert texts
    assert not [path for path in files if any(text.encode() in path.read_bytes() for text in texts)]
    own = {"_wandb", "trial_log_path", "run_id", "batch_size", "num_steps", "learning_rate", "noise_multiplier", "seed"}
    for run in wandb_runs(logged.folder.wandb_logs):
        assert str(logged.folder.path).encode() not in run.path.read_bytes()
        assert run.host == "-"
        assert set(run.config) - own == set()
        assert not list((run.path.parent / "files").iterdir()), "no list of packages, no code"


@pytest.mark.slow
def test_the_commands_are_printed_and_name_the_folders(logged: Logged) -> None:
    board, sync = log_commands(logged.folder, LOGGERS)
    assert board == f"tensorboard --logdir {logged.folder.path}/logs/tensorboard"
    assert sync == f"wandb sync {logged.folder.path}/logs/wandb/offline-run-*"
    assert len(list(logged.folder.wandb_logs.glob("offline-run-*"))) == 2


@pytest.mark.slow
def test_a_resumed_sweep_logs_the_runs_that_were_left_and_survives_a_broken_logger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    trained = TrainedSpec(load_spec(small_spec(tmp_path)), runs=1)
    monkeypatch.setattr(TBXLoggerCallback, "log_trial_result", full)
    result = Sweep(small_spec(tmp_path, tracking=tracking(tmp_path, *LOGGERS))).run(resume=True)
    assert (result.counts.finished, result.counts.failed) == (2, 0)
    (run,) = wandb_runs(trained.folder.wandb_logs)
    assert run.config["run_id"] != trained.trials[0].run_id
    said = "TensorBoardLog failed and is not called again (OSError: no space left on device)"
    assert caplog.text.count(said) == 1


def trial(run_id: str = "a1b2c3d4e5f6", trial_id: str = "t1") -> Any:
    config = {"run_id": run_id, "batch_size": 8, "num_steps": 5, "learning_rate": 0.1, "seed": 0}

    class Trial(SimpleNamespace):
        def __str__(self) -> str:
            return "b8_T5/model.name=a b"

    return Trial(config=config, trial_id=trial_id)


def report(log: GuardedCallback, of: Any, *steps: int) -> None:
    log.on_trial_start(iteration=0, trials=[], trial=of)
    for step in steps:
        row = {"status": "running", "loss": float(step), "step": step, "num_steps": 5, "training_iteration": 1}
        log.on_trial_result(iteration=0, trials=[], trial=of, result={**row, "hostname": "mine", "pid": 3})


def test_a_run_that_is_resumed_continues_its_curve(tmp_path: Path) -> None:
    """Tune counts reports from 1 again and gives the trial another id; the axis is the run's own step."""
    folder = SweepFolder(path=tmp_path / "small")
    first = GuardedCallback(TensorBoardLog(folder))
    report(first, trial(trial_id="t1"), 1, 3)
    first.on_trial_error(iteration=0, trials=[], trial=trial(trial_id="t1"))
    time.sleep(1.1)  # the name of a file has the second in which it was opened
    again = GuardedCallback(TensorBoardLog(folder))
    report(again, trial(trial_id="t2"), 4)
    again.on_trial_complete(iteration=0, trials=[], trial=trial(trial_id="t2"))
    (run,) = folder.tensorboard_logs.iterdir()
    assert run.name == "b8_T5_model.name=a_b-a1b2c3d4"
    assert events(run) == {"loss": [(1, 1.0), (3, 3.0), (4, 4.0)]}


def test_an_interrupted_sweep_ends_the_runs_in_progress(tmp_path: Path) -> None:
    """So that what W&B has not written yet is in its file."""
    ended: list[tuple[str, bool]] = []

    class Logger(LoggerCallback):
        def log_trial_end(self, trial: Any, failed: bool = False) -> None:
            ended.append((trial.trial_id, failed))

    log = GuardedCallback(RunLog(Logger(), "small"))

    def interrupted() -> None:
        with ending([log]):
            report(log, trial(trial_id="t1"), 1)
            log.on_trial_complete(iteration=0, trials=[], trial=trial(trial_id="t1"))
            report(log, trial(trial_id="t2"), 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ended == [("t1", False), ("t2", True)]


@pytest.mark.parametrize(("logger", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_package_is_an_error_before_anything_trains(
    raydp: Callable[..., Answer],
    write_spec: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logger: str,
    package: str,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name, *rest))
    spec = write_spec(tracking=tracking(tmp_path, logger))
    answer = raydp("sweep", spec)
    assert answer.code == 2
    remedy = f"Run `pip install 'raydp-tune[{logger}]'`, or leave it out."
    assert f"tracking.loggers '{logger}' must have the package {package}, got none. {remedy}" in answer.err
    assert not (tmp_path / "runs").exists()
