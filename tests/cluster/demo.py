"""The embedded demo on several hosts, compared with the same on one.

    python -m tests.cluster.demo raydp_runs/demo

The folder is that of the demo as this machine has run it by itself (make demo).
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import yaml

from raydp import Sweep, load_points
from raydp.sweep.api import DEMO
from tests.cluster.ray_hosts import ray_hosts
from tests.sweep.undisturbed import assert_same_points


def main(expected: Path) -> None:
    """Run it on a head without CPUs and two nodes of one, and compare every value of every
    point."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = yaml.safe_load(DEMO.read_text(encoding="utf-8"))
        spec["storage"], spec["tracking"]["uri"] = (
            str(folder / "runs"),
            f"sqlite:///{folder}/mlflow.db",
        )
        with ray_hosts(folder / "hosts", [0, 1, 1]) as hosts:
            spec["cluster"] |= {"address": hosts.address, "max_concurrent_trials": None}
            (folder / "spec.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
            begun = time.monotonic()
            driver = hosts.raydp(folder, "sweep", "spec.yaml", "--json")
            _, err = driver.communicate()
            assert driver.returncode == 0, err
            seconds = time.monotonic() - begun
        points, alone = (load_points(f / "points.csv") for f in (Sweep(spec).folder.path, expected))
        assert_same_points(points, alone)
        apart = _numbers(points) - _numbers(alone)
        print(
            f"{len(points)} points of two nodes in {seconds:.0f} s are those of one host; "
            f"the largest difference of any value is {apart.abs().max().max():.1e}"
        )


def _numbers(points: pd.DataFrame) -> pd.DataFrame:
    return points.set_index("run_id").sort_index().select_dtypes("number")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
