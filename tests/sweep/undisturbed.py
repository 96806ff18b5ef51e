"""A real sweep that nobody disturbed, and what others are compared with it by."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from raydp import Sweep
from raydp.sweep.store.folder import BASE_RUN
from tests.builders.specs import small_spec

SPACE = {"batch_size": [64], "num_steps": [20, 40], "learning_rate": [0.01, 0.02]}
SCORES = [{"name": "vmr_exact"}, {"name": "vmr"}]
FINISH_SECONDS = 240


def spec_of(folder: Path) -> dict[str, Any]:
    return small_spec(folder, space=SPACE, scores=SCORES, cluster={"checkpoint_seconds": 0.0})


class Done:
    """A sweep that nobody disturbed."""

    def __init__(self, folder: Path) -> None:
        self.spec = spec_of(folder)
        self.uri = self.spec["tracking"]["uri"]
        self.sweep = Sweep(self.spec)
        self.result = self.sweep.run()
        self.points = self.sweep.points()


def results(folder: Path) -> list[Path]:
    """The results of the runs, without that of the untrained model."""
    return [path for path in folder.glob("trials/*/result.json") if path.parent.name != BASE_RUN]


def wait_until(condition: Callable[[], Any], driver: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + FINISH_SECONDS
    while not condition():
        assert driver.poll() is None, driver.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def assert_same_points(actual: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Same topology, so equal but for the last bits; 1e-5 in utility is what fp32 explains (1e-4 in
    vmr_exact)."""
    key = ["batch_size", "num_steps", "learning_rate", "seed"]
    own = ["model_uri", "alias", "train_seconds", "score_seconds"]
    pd.testing.assert_frame_equal(
        actual.sort_values(key, ignore_index=True).drop(columns=own),
        expected.sort_values(key, ignore_index=True).drop(columns=own),
        rtol=0,
        atol=1e-5,
    )
    assert actual["model_uri"].is_unique


def runs_in(uri: str) -> dict[str, int]:
    """What the MLflow database holds, read without MLflow and without the ledger's runs."""
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as database:
        active = (
            "select count(*) from runs where lifecycle_stage = 'active' and run_uuid not in "
            "(select run_uuid from tags where key = 'raydp.ledger.id')"
        )
        children = (
            f"{active} and run_uuid in (select run_uuid from tags where key = 'mlflow.parentRunId')"
        )
        (total,), (child,) = (database.execute(query).fetchone() for query in (active, children))
        (versions,) = database.execute("select count(*) from model_versions").fetchone()
    return {"parents": total - child, "children": child, "versions": versions}
