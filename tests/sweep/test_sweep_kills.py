"""What kills do to a real sweep: nothing finished is lost, run twice or tracked twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from raydp import Sweep
from tests.conftest import start_raydp
from tests.processes import below
from tests.sweep.undisturbed import (
    FINISH_SECONDS,
    Done,
    assert_same_points,
    results,
    runs_in,
    spec_of,
    wait_until,
)

pytestmark = pytest.mark.alone


def kill(name: str) -> Callable[[subprocess.Popen[str]], None]:
    """Kill -9 one process of the sweep by the name that Ray gives it."""

    def killer(driver: subprocess.Popen[str]) -> None:
        found = below(driver.pid, name)
        assert found, f"no process {name}"
        found[0].kill()

    return killer


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param(
            "ray::TrainController", id="a worker and a controller", marks=pytest.mark.slow
        ),
        pytest.param("driver", id="the driver", marks=pytest.mark.slow),
        pytest.param("ray::ImplicitFunc", id="a trial", marks=pytest.mark.thorough),
        pytest.param("ctrl-c", id="Ctrl-C", marks=pytest.mark.thorough),
    ],
)
def test_after_a_kill_the_table_is_that_of_an_undisturbed_sweep(
    done: Done, tmp_path: Path, victim: str
) -> None:
    spec = spec_of(tmp_path)
    if victim == "ray::TrainController":
        spec["cluster"]["max_retries"] = 2  # both kills may hit the same run
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    driver = start_raydp(tmp_path, "sweep", "spec.yaml", "--json")
    folder = Path(spec["storage"]) / "small"
    wait_until(
        lambda: len(list(folder.glob("trials/*/checkpoints/step-*"))) > 0 and results(folder),
        driver,
    )
    if victim == "ray::TrainController":
        kill("ray::RayTrainWorker")(driver)
        # The controller dies at the worst moment: nothing waits that would keep its slot.
        wait_until(lambda: len({p.parent for p in folder.glob("trials/*/ledger.txt")}) == 4, driver)
    finished = {p: p.stat().st_mtime_ns for p in results(folder)}
    if victim in ("driver", "ctrl-c"):
        os.kill(driver.pid, signal.SIGKILL if victim == "driver" else signal.SIGINT)
        out, err = driver.communicate(timeout=FINISH_SECONDS)
        if victim == "ctrl-c":
            assert driver.returncode == 1, err
            assert out, err
            assert json.loads(out)["interrupted"] is True
            assert "Traceback" not in err
        driver = start_raydp(tmp_path, "sweep", "spec.yaml", "--resume", "--json")
    else:
        kill(victim)(driver)
    out, err = driver.communicate(timeout=FINISH_SECONDS)
    assert driver.returncode == 0, err
    assert json.loads(out)["counts"]["finished"] == 4
    assert all(p.stat().st_mtime_ns == time_ns for p, time_ns in finished.items()), (
        "nothing finished ran twice"
    )
    assert runs_in(spec["tracking"]["uri"]) == {"parents": 1, "children": 4, "versions": 4}
    assert_same_points(Sweep(spec).points(), done.points)
