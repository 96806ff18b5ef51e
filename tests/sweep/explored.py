"""A sweep of several rounds of Tune, one run of which fails, with callbacks of a user and both
kinds of run logs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ray.tune import Callback
from ray.tune.logger import JsonLoggerCallback

from raydp import Sweep
from raydp.sweep.engine.tune import rounds as tune_rounds
from raydp.sweep.store.folder import SweepFolder
from tests.builders.specs import small_spec

LONG = 400
"""Steps of a run that takes some seconds."""
LOGGERS = ["tensorboard", "wandb"]


def tracking(folder: Path, *loggers: str) -> dict[str, Any]:
    return {**small_spec(folder)["tracking"], "loggers": list(loggers)}


class Seen(Callback):
    """Keeps what a logger would send."""

    def __init__(self) -> None:
        self.configs: dict[str, dict[str, Any]] = {}
        self.results: dict[str, list[dict[str, Any]]] = {}
        self.calls: list[str] = []

    def setup(self, *args: Any, **info: Any) -> None:
        self.calls.append("setup")

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.configs[trial.config["run_id"]] = dict(trial.config)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self.results.setdefault(trial.config["run_id"], []).append(dict(result))

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self.calls.append(f"end of {len(trials)}")


class Broken(Callback):
    """Fails as a logger does whose server is away."""

    def __init__(self) -> None:
        self.asked = 0

    def on_trial_start(self, **info: Any) -> None:
        self.asked += 1
        raise ConnectionError("the logger's server is away")


@contextmanager
def silent_server() -> Iterator[tuple[int, list[bytes]]]:
    """A server that keeps the beginning of what it is sent, and never answers."""
    sent: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                connection.settimeout(5)
                sent.append(connection.recv(200))
                connection.close()

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1], sent


class Explored:
    """Five runs in three rounds: one is long enough to be seen in its course, and one fails,
    because its learning rate overflows fp32.

    Attributes:
        said: the warnings of the callbacks.
        sent: what the server of W&B and the proxy were sent.
        points: the rows of the finished runs in the points table.
    """

    def __init__(self, folder: Path) -> None:
        spec = small_spec(
            folder,
            space={
                "points": [
                    [16, 2, 0.01],
                    [16, 4, 0.01],
                    [16, LONG, 0.001],
                    [32, 3, 1e38],
                    [16, 3, 0.01],
                ]
            },
            method={"name": "dp_sgd", "max_grad_norm": 0.1},
            cluster={"max_concurrent_trials": 1, "max_retries": 0},
            tracking=tracking(folder, *LOGGERS),
        )
        self.seen, self.broken = Seen(), Broken()
        said: list[str] = []
        with silent_server() as (port, self.sent), pytest.MonkeyPatch.context() as patch:
            patch.setattr(tune_rounds, "TRIALS_PER_ROUND", 2)
            patch.setattr(tune_rounds, "ROUND_PER_SLOT", 1)
            patch.setattr(tune_rounds, "REPORT_SECONDS", 0.2)
            told = "raydp.sweep.engine.tune.callbacks.LOGGER.warning"
            patch.setattr(told, lambda text, *words: said.append(text % words))
            patch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
            patch.setenv("https_proxy", f"http://127.0.0.1:{port}")
            patch.setenv("WANDB_API_KEY", "k" * 40)
            self.result = Sweep(spec).run(callbacks=[self.broken, self.seen, JsonLoggerCallback()])
        self.said = "\n".join(said)
        self.folder = SweepFolder.open(self.result.folder)
        table = pd.read_csv(self.result.folder / "points.csv")
        self.points: list[dict[str, Any]] = table[table["status"] == "finished"].to_dict("records")

    def steps(self, run_id: str) -> dict[int, float]:
        """A run's loss in each step, as the sweep keeps it."""
        return {row["step"] + 1: row["loss"] for row in self.folder.result(run_id).history}
