"""Loggers of Ray Tune that write a sweep's runs into its folder.

The logs are for TensorBoard and Weights & Biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ray import tune
from ray.air.constants import TRAINING_ITERATION
from ray.tune.logger import LoggerCallback, TBXLoggerCallback
from ray.tune.result import AUTO_RESULT_KEYS

from raydp.extensions.run_logs.packages import logs_of
from raydp.spec.sections import TrackingSpec
from raydp.sweep.store.folder import SweepFolder

if TYPE_CHECKING:
    import wandb
    from ray.tune.experiment import Trial

NO_METRICS = {*AUTO_RESULT_KEYS, "done", "trial_id", "experiment_tag", "step", "num_steps"}
"""Keys of a report that are no metrics of a run.

Some name the machine, which the logs must not tell.
"""


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """A run as Tune's loggers see it, in place of Tune's trial, whose folder is temporary.

    Attributes:
        name: name of the run: its configuration and seed.
        trial_id: Tune's id of the trial; a resumed run gets a new id.
        local_path: the folder that the logger writes into.
        experiment_dir_name: name of the sweep, by which the runs are grouped.
        evaluated_params: config of the trial.
    """

    name: str
    trial_id: str
    local_path: str
    experiment_dir_name: str
    evaluated_params: dict[str, object]

    @property
    def config(self) -> dict[str, object]:
        return dict(self.evaluated_params)

    def init_local_path(self) -> None:
        """Create the run's folder."""
        Path(self.local_path).mkdir(parents=True, exist_ok=True)

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.trial_id)


class RunLog(tune.Callback):
    """Gives the runs to one of Tune's loggers, with the run's own metrics and its step as the axis.

    Args:
        logger: writes the logs.
        sweep: name of the sweep.
    """

    def __init__(self, logger: LoggerCallback, sweep: str) -> None:
        self._logger, self._sweep = logger, sweep
        self._runs: dict[str, LoggedRun] = {}

    def folder_of(self, trial: Trial) -> str:
        """Return the folder for a run's files. A logger that chooses its own folders ignores it."""
        return "."

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: object
    ) -> None:
        run = LoggedRun(
            name=str(trial),
            trial_id=trial.trial_id,
            local_path=self.folder_of(trial),
            experiment_dir_name=self._sweep,
            evaluated_params=dict(trial.config),
        )
        self._runs[trial.trial_id] = run
        self._logger.log_trial_start(cast("Trial", run))

    def on_trial_result(
        self,
        iteration: int,
        trials: list[Trial],
        trial: Trial,
        result: dict[str, object],
        **info: object,
    ) -> None:
        run = self._runs[trial.trial_id]
        self._logger.log_trial_result(iteration, cast("Trial", run), _metrics(run, result))

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: object
    ) -> None:
        self._logger.log_trial_end(cast("Trial", self._runs.pop(trial.trial_id)), failed=False)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: object
    ) -> None:
        self._logger.log_trial_end(cast("Trial", self._runs.pop(trial.trial_id)), failed=True)

    def on_experiment_end(self, trials: list[Trial], **info: object) -> None:
        """End the runs that an interruption has left in progress, and the logger."""
        for run in self._runs.values():
            self._logger.log_trial_end(cast("Trial", run), failed=True)
        self._runs.clear()
        self._logger.on_experiment_end(trials)


class TensorBoardLog(RunLog):
    """Writes event files for TensorBoard, one folder for each run.

    A resumed run continues its curves.
    """

    def __init__(self, folder: SweepFolder) -> None:
        super().__init__(TBXLoggerCallback(), folder.path.name)
        self._folder = logs_of(folder, "tensorboard").resolve()

    def folder_of(self, trial: Trial) -> str:
        """Return a folder whose name has the run's configuration and the start of its id."""
        return str(self._folder / f"{_file_name(str(trial))}-{trial.config['run_id'][:8]}")


class WandbRuns(LoggerCallback):
    """Writes each run as an offline run of Weights & Biases, from the driver's process.

    Ray's own callback starts two actors for each run and kills them at the run's end. Files of
    short offline runs were then empty, because W&B writes them a moment later.

    Args:
        folder: gets one folder for each run.
        project: W&B's project.
    """

    def __init__(self, folder: Path, project: str) -> None:
        self._folder, self._project = folder, project
        self._runs: dict[Trial, wandb.Run] = {}

    def log_trial_start(self, trial: Trial) -> None:
        """Begin a run."""
        import wandb  # takes a second

        # Nothing about the machine, the user or the code goes into the files.
        settings = wandb.Settings(
            console="off",
            silent=True,
            host="-",
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        self._runs[trial] = wandb.init(
            id=trial.trial_id,
            name=str(trial),
            project=self._project,
            group=trial.experiment_dir_name,
            config=dict(trial.config),
            dir=str(self._folder.parent),  # W&B adds the last part itself
            mode="offline",
            # Runs of several slots are open at once.
            reinit="create_new",
            settings=settings,
        )

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Log a report's numbers at its step."""
        numbers = {name: value for name, value in result.items() if isinstance(value, int | float)}
        self._runs[trial].log(numbers, step=int(result[TRAINING_ITERATION]))

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """End a run, which writes the rest of its file."""
        self._runs.pop(trial).finish(exit_code=int(failed))


class WandbLog(RunLog):
    """Writes files of Weights & Biases without login or network; `wandb sync` uploads them.

    The files hold config and metrics, and nothing about the machine, the code or the packages.
    """

    def __init__(self, folder: SweepFolder, project: str) -> None:
        logs = logs_of(folder, "wandb").resolve()
        logs.mkdir(parents=True, exist_ok=True)
        super().__init__(WandbRuns(logs, project), folder.path.name)


def run_logs(tracking: TrackingSpec, folder: SweepFolder) -> list[tune.Callback]:
    """Return the callbacks that write the run logs that a spec asks for."""
    return [
        TensorBoardLog(folder) if logger == "tensorboard" else WandbLog(folder, tracking.experiment)
        for logger in tracking.loggers
    ]


def _metrics(run: LoggedRun, result: Mapping[str, object]) -> dict[str, object]:
    """Return a report's own metrics at the run's step, which for the last report is the last."""
    step = result.get("step", run.evaluated_params["num_steps"])
    return {
        TRAINING_ITERATION: step,
        **{name: value for name, value in result.items() if name not in NO_METRICS},
    }


def _file_name(name: str) -> str:
    """Return a run's name, cut to 100 characters, as a file name that every file system takes."""
    return "".join(c if c.isalnum() or c in "._=-" else "_" for c in name)[:100]
