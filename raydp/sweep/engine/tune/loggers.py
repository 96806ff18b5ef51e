"""The loggers that `tracking.loggers` names: callbacks of Ray Tune for TensorBoard and Weights & Biases."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.tune import Callback
from ray.tune.logger import LoggerCallback, TBXLoggerCallback
from ray.tune.result import TIMESTEPS_TOTAL

if TYPE_CHECKING:
    import wandb
    from ray.tune.experiment import Trial

OFFLINE = "offline"
MODE = "WANDB_MODE"
"""The environment variable by which a user sends runs to a server of Weights & Biases."""


class TensorBoardLogger(TBXLoggerCallback):
    """Writes each run's events into a folder of the sweep, by the steps of the training.

    Args:
        folder: gets one folder for each run, which a resume continues.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._folder = folder
        self._steps: dict[Trial, int] = {}

    def log_trial_start(self, trial: Trial) -> None:
        """Open the run's folder."""
        name = f"{trial}_{trial.config['run_id'][:8]}"
        self._trial_writer[trial] = self._summary_writer_cls(str(self._folder / name), flush_secs=5)
        self._trial_result[trial] = {}

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Write a report at its step of the training. Utility and scores stand at the last step."""
        self._steps[trial] = int(result.get("step", self._steps.get(trial, 0)))
        super().log_trial_result(iteration, trial, {**result, TIMESTEPS_TOTAL: self._steps[trial]})


class WandbLogger(LoggerCallback):
    """Writes each run as a run of Weights & Biases, from the driver's process.

    Ray's own callback starts two actors for each run, and kills them before a file of an offline run is written whole.

    Args:
        folder: the sweep's folder, where the runs lie in `wandb`.
        sweep: the group of the runs.
    """

    def __init__(self, folder: Path, sweep: str) -> None:
        self._folder, self._sweep = folder, sweep
        self._runs: dict[Trial, wandb.Run] = {}
        self._steps: dict[Trial, int] = {}

    def log_trial_start(self, trial: Trial) -> None:
        """Begin the run."""
        import wandb

        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
        self._runs[trial] = wandb.init(
            project="raydp", group=self._sweep, name=str(trial), config=dict(trial.config), dir=str(self._folder),
            mode="offline" if os.environ.get(MODE, OFFLINE) == OFFLINE else None, reinit="create_new",
            settings=settings,
        )  # fmt: skip

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Log the numbers of a report at its step of the training. Utility and scores stand at the last step."""
        self._steps[trial] = int(result.get("step", self._steps.get(trial, 0)))
        numbers = {name: value for name, value in result.items() if _is_finite(value)}
        self._runs[trial].log(numbers, step=self._steps[trial])

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """End the run, which writes the rest of its file."""
        self._runs.pop(trial).finish(exit_code=int(failed))


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def open_loggers(names: Sequence[str], folder: Path, sweep: str) -> list[Callback]:
    """Return the callbacks of the loggers. Nothing is written before the first run.

    Args:
        names: "tensorboard" and "wandb".
        folder: the sweep's folder.
        sweep: the sweep's name.

    Raises:
        ValueError: the package of a logger is not installed.
    """
    callbacks: list[Callback] = []
    if "tensorboard" in names:
        callbacks.append(TensorBoardLogger(folder / "tensorboard"))
    if "wandb" in names:
        try:
            import wandb  # noqa: F401
        except ImportError as error:
            raise ValueError(
                "tracking.loggers must name installed loggers, got 'wandb' without its package. pip install "
                "'raydp-tune[wandb]', or remove it."
            ) from error
        callbacks.append(WandbLogger(folder, sweep))
    return callbacks
