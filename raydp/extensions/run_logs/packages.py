"""Run logs for TensorBoard and Weights & Biases: their packages, and how to look at them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from raydp.sweep.store.folder import SweepFolder
from raydp.system.shell import shell_line

WRITERS = {"tensorboard": "tensorboardX", "wandb": "wandb"}
"""The package that writes the logs of each value of `tracking.loggers`."""


def check_loggers(loggers: Sequence[str]) -> None:
    """Check that the packages of the loggers are installed, before anything is trained.

    Raises:
        ValueError: a package is missing.
    """
    for logger in loggers:
        if importlib.util.find_spec(WRITERS[logger]) is None:
            raise ValueError(
                f"tracking.loggers {logger!r} must have the package {WRITERS[logger]}, got none. "
                f"Run `pip install '.[{logger}]'`, or leave it out."
            )


def logs_of(folder: SweepFolder, logger: str) -> Path:
    """Return the folder of a sweep's run logs, which Weights & Biases wants under this name."""
    return folder.path / "logs" / logger


def log_commands(folder: SweepFolder, loggers: Sequence[str]) -> list[str]:
    """Return shell commands that show the run logs of a sweep. `wandb sync` uploads them."""
    commands = []
    if "tensorboard" in loggers:
        viewer = (
            "" if importlib.util.find_spec("tensorboard") else "  # pip install '.[tensorboard]'"
        )
        commands.append(
            f"{shell_line('tensorboard', '--logdir', logs_of(folder, 'tensorboard'))}{viewer}"
        )
    if "wandb" in loggers:
        commands.append(f"{shell_line('wandb', 'sync', logs_of(folder, 'wandb'))}/offline-run-*")
    return commands
