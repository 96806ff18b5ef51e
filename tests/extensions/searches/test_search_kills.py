"""A search whose driver is killed goes on: nothing that finished runs again, and what was being
trained is not lost."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydp import Sweep
from raydp.extensions.searches.optuna_study import FILE
from raydp.sweep.store.folder import SweepFolder
from tests.builders.specs import small_spec
from tests.conftest import start_raydp
from tests.sweep.undisturbed import FINISH_SECONDS, results, runs_in, wait_until

SPACE = {"batch_size": [64], "num_steps": [10, 20, 40], "learning_rate": [0.01, 0.02]}
NUM_CONFIGURATIONS = 6


@pytest.mark.parametrize(
    ("search", "runs"),
    [
        pytest.param(
            {"name": "optuna", "num_configurations": 4, "initial": 2},
            4,
            id="optuna",
            marks=pytest.mark.daily("raydp/extensions/searches"),
        ),
        pytest.param(
            {"name": "frugal", "num_draws": 50, "max_cost_share": 0.7},
            None,
            id="frugal",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_after_a_kill_of_the_driver_the_search_goes_on(
    tmp_path: Path, search: dict[str, Any], runs: int
) -> None:
    spec = small_spec(
        tmp_path, space={**SPACE, "search": search}, cluster={"checkpoint_seconds": 0.0}
    )
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    folder = Path(spec["storage"]) / "small"
    driver = start_raydp(tmp_path, "sweep", "spec.yaml", "--json")
    wait_until(lambda: results(folder) and begun(folder), driver)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate(timeout=FINISH_SECONDS)
    finished = {path: path.stat().st_mtime_ns for path in results(folder)}
    interrupted = begun(folder)
    assert finished
    assert not (folder / "search.json").exists()

    driver = start_raydp(tmp_path, "sweep", "spec.yaml", "--resume", "--json")
    out, err = driver.communicate(timeout=FINISH_SECONDS)
    assert driver.returncode == 0, err
    counts = json.loads(out)["counts"]
    assert all(path.stat().st_mtime_ns == time_ns for path, time_ns in finished.items()), (
        "nothing finished ran twice"
    )
    assert interrupted <= {path.parent.name for path in results(folder)}, (
        "what was begun was gone on with"
    )
    assert counts["finished"] > len(finished), "the search went on"
    assert counts["finished"] == (runs or counts["finished"])
    assert counts["pending"] == counts["failed"] == 0
    listed = {(row["num_steps"], row["learning_rate"]) for row in counts["search"]["skipped"]}
    table = Sweep(spec).points()
    ran = table[table["status"] == "finished"]
    assert not listed & set(zip(ran["num_steps"], ran["learning_rate"], strict=True))
    assert len(listed) + len(ran) == NUM_CONFIGURATIONS
    assert all(row["reason"] for row in counts["search"]["skipped"])
    assert runs_in(spec["tracking"]["uri"])["children"] == len(ran)
    if search["name"] == "optuna":
        assert recorded(folder) == {"COMPLETE": 4}


def begun(folder: Path) -> set[str]:
    """Runs with a checkpoint and no result."""
    sweep = SweepFolder(path=folder)
    names = {path.parent.parent.name for path in folder.glob("trials/*/checkpoints/step-*")}
    return {run_id for run_id in names if sweep.result(run_id) is None}


def recorded(folder: Path) -> dict[str, int]:
    """The trials of the search's study by their state, read without Optuna."""
    with sqlite3.connect(folder / FILE) as database:
        return dict(
            database.execute("select state, count(*) from trials group by state").fetchall()
        )
