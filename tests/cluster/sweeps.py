"""Sweeps on hosts of our own, and what they are compared with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from raydp import Sweep
from tests.cluster.ray_hosts import RayHosts
from tests.sweep.undisturbed import Done, assert_same_points, results, runs_in, spec_of, wait_until

FINISH_SECONDS = 400


def write_spec(folder: Path, hosts: RayHosts, **cluster: Any) -> dict[str, Any]:
    spec = spec_of(folder)
    spec["cluster"] = {"address": hosts.address, "checkpoint_seconds": 0, **cluster}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    return spec


def finish(
    driver: Any, spec: dict[str, Any], done: Done, *, finished: int = 4, without: Sequence[str] = ()
) -> pd.DataFrame:
    """All runs have finished, once each, with the points of an undisturbed sweep on one host.

    Returns the points.

    Args:
        without: columns that the undisturbed sweep does not have.
    """
    out, err = driver.communicate(timeout=FINISH_SECONDS)
    assert driver.returncode == 0, err
    assert json.loads(out)["counts"]["finished"] == finished
    assert runs_in(spec["tracking"]["uri"]) == {
        "parents": 1,
        "children": finished,
        "versions": finished,
    }
    points = Sweep(spec).points()
    assert_same_points(points.drop(columns=list(without)), done.points)
    return points


def under_way(driver: Any, spec: dict[str, Any]) -> dict[Path, int]:
    """Wait until one run has its result and others a checkpoint; returns the results with their
    times."""
    folder = Path(spec["storage"]) / "small"
    wait_until(lambda: list(folder.glob("trials/*/checkpoints/step-*")) and results(folder), driver)
    return {path: path.stat().st_mtime_ns for path in results(folder)}


def assert_kept(finished: dict[Path, int]) -> None:
    assert all(path.stat().st_mtime_ns == time_ns for path, time_ns in finished.items()), (
        "nothing finished ran twice"
    )
