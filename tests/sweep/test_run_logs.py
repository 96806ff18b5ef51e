"""Run logs: what TensorBoard and Weights & Biases read is what the points table says, and nothing
else leaves."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.logger import LoggerCallback, TBXLoggerCallback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from raydp import Sweep
from raydp.extensions.run_logs.loggers import RunLog, TensorBoardLog
from raydp.extensions.run_logs.packages import log_commands, logs_of
from raydp.spec.reading import load_spec
from raydp.sweep.engine.tune.callbacks import GuardedCallback, ending
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.store.folder import SweepFolder
from tests.builders.specs import small_spec
from tests.builders.wandb_files import wandb_runs
from tests.conftest import Answer
from tests.sweep.explored import LOGGERS, Explored, tracking
from tests.sweep.trained import TrainedSpec

pytestmark = pytest.mark.xdist_group("tune")

METRICS = ("utility_loss", "score", "score.vmr_exact", "score.vmr_exact.std_error")


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every curve of a folder, as TensorBoard reads it: (step, value) by tag, without the prefix of
    Tune."""
    reader = EventAccumulator(str(folder))
    reader.Reload()
    tags = reader.Tags()["scalars"]
    return {
        tag.removeprefix("ray/tune/"): [(e.step, e.value) for e in reader.Scalars(tag)]
        for tag in tags
    }


@pytest.mark.daily("raydp/extensions/run_logs")
def test_tensorboard_reads_the_values_of_the_points(explored: Explored) -> None:
    folders = {
        path.name.rpartition("-")[2]: path
        for path in logs_of(explored.folder, "tensorboard").iterdir()
    }
    assert len(folders) == 5
    assert len(explored.points) == 4, "one of the runs has failed"
    for point in explored.points:
        folder = folders[point["run_id"][:8]]
        assert folder.name.startswith(
            f"b16_T{point['num_steps']}_lr{point['learning_rate']}_seed0-"
        )
        curves = events(folder)
        for name in METRICS:
            assert curves[name] == [(point["num_steps"], pytest.approx(point[name], rel=1e-6))], (
                "fp32 in the file"
            )
        own = explored.steps(point["run_id"])
        assert all(
            own[step] == pytest.approx(loss, rel=1e-6) for step, loss in curves.get("loss", [])
        )
    long = events(folders[max(explored.points, key=lambda p: p["num_steps"])["run_id"][:8]])
    assert len(long["loss"]) > 1, "the run trained for seconds"


@pytest.mark.slow
def test_wandb_has_the_values_of_the_points(explored: Explored) -> None:
    runs = {run.config["run_id"]: run for run in wandb_runs(logs_of(explored.folder, "wandb"))}
    assert runs.keys() == {trial.run_id for trial in explored.folder.plan().trials}
    for point in explored.points:
        run = runs[point["run_id"]]
        assert (run.project, run.group) == ("small", "small")
        assert run.name == f"b16_T{point['num_steps']}_lr{point['learning_rate']}_seed0"
        assert {
            k: run.config[k]
            for k in ("batch_size", "num_steps", "learning_rate", "noise_multiplier", "seed")
        } == {
            k: point[k]
            for k in ("batch_size", "num_steps", "learning_rate", "noise_multiplier", "seed")
        }
        last = run.rows[-1]
        assert last["_step"] == point["num_steps"]
        assert {name: last[name] for name in METRICS} == {name: point[name] for name in METRICS}
        own = explored.steps(point["run_id"])
        losses = {row["_step"]: row["loss"] for row in run.rows if "loss" in row}
        assert losses == {step: own[step] for step in losses}


@pytest.mark.slow
def test_nothing_is_sent_and_the_files_hold_no_secret_key_machine_or_path(
    explored: Explored,
) -> None:
    assert explored.sent == []
    task, _ = build_task(load_spec(explored.folder.path / "spec.yaml"))
    texts = [secret.prompt for secret in task.secrets()] + ["k" * 40]
    files = [
        path
        for path in (explored.folder.path / "logs").rglob("*")
        if path.is_file() and not path.is_symlink()
    ]
    assert texts
    assert not [path for path in files if any(text.encode() in path.read_bytes() for text in texts)]
    own = {
        "_wandb",
        "trial_log_path",
        "run_id",
        "batch_size",
        "num_steps",
        "learning_rate",
        "noise_multiplier",
        "seed",
    }
    for run in wandb_runs(logs_of(explored.folder, "wandb")):
        assert str(explored.folder.path).encode() not in run.path.read_bytes()
        assert run.host == "-"
        assert set(run.config) - own == set()
        assert not list((run.path.parent / "files").iterdir()), "no list of packages, no code"


@pytest.mark.slow
def test_the_commands_are_printed_and_name_the_folders(explored: Explored) -> None:
    board, sync = log_commands(explored.folder, LOGGERS)
    assert board == f"tensorboard --logdir {explored.folder.path}/logs/tensorboard"
    assert sync == f"wandb sync {explored.folder.path}/logs/wandb/offline-run-*"
    assert len(list(logs_of(explored.folder, "wandb").glob("offline-run-*"))) == 5


@pytest.mark.daily("raydp/extensions/run_logs")
def test_a_resumed_sweep_logs_the_runs_that_were_left_and_survives_a_broken_logger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    trained = TrainedSpec(load_spec(small_spec(tmp_path)), runs=1)
    monkeypatch.setattr(TBXLoggerCallback, "log_trial_result", full)
    result = Sweep(small_spec(tmp_path, tracking=tracking(tmp_path, *LOGGERS))).run(resume=True)
    assert (result.counts.finished, result.counts.failed) == (2, 0)
    (run,) = wandb_runs(logs_of(trained.folder, "wandb"))
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
        row = {
            "status": "running",
            "loss": float(step),
            "step": step,
            "num_steps": 5,
            "training_iteration": 1,
        }
        log.on_trial_result(
            iteration=0, trials=[], trial=of, result={**row, "hostname": "mine", "pid": 3}
        )


def test_a_run_that_is_resumed_continues_its_curve(tmp_path: Path) -> None:
    """Tune counts reports from 1 again and gives the trial another id; the axis is the run's own
    step."""
    folder = SweepFolder(path=tmp_path / "small")
    first = GuardedCallback(TensorBoardLog(folder))
    report(first, trial(trial_id="t1"), 1, 3)
    first.on_trial_error(iteration=0, trials=[], trial=trial(trial_id="t1"))
    time.sleep(1.1)  # the name of a file has the second in which it was opened
    again = GuardedCallback(TensorBoardLog(folder))
    report(again, trial(trial_id="t2"), 4)
    again.on_trial_complete(iteration=0, trials=[], trial=trial(trial_id="t2"))
    (run,) = logs_of(folder, "tensorboard").iterdir()
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


@pytest.mark.parametrize(
    ("logger", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")]
)
def test_a_missing_package_is_an_error_before_anything_trains(
    raydp: Callable[..., Answer],
    write_spec: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logger: str,
    package: str,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == package else find(name, *rest),
    )
    spec = write_spec(tracking=tracking(tmp_path, logger))
    answer = raydp("sweep", spec)
    assert answer.code == 2
    remedy = f"Run `pip install '.[{logger}]'`, or leave it out."
    assert (
        f"tracking.loggers '{logger}' must have the package {package}, got none. {remedy}"
        in answer.err
    )
    assert not (tmp_path / "runs").exists()
