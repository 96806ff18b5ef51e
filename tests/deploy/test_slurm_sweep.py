"""deploy/slurm/sweep.sbatch on a real Slurm: two nodes on this machine, a Ray node on each."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydp import Sweep
from tests.builders.specs import small_spec
from tests.deploy.slurm_cluster import Slurm, slurm
from tests.sweep.undisturbed import results

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.alone,
    pytest.mark.daily("deploy/slurm", "tests/deploy/slurm_cluster.py", "raydp/sweep/engine"),
]

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "sweep.sbatch"
FINISH_SECONDS = 400
STOP_SECONDS = 110
"""Less than the 120 that --signal leaves."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm(nodes=2, gpus=2) as running:
        yield running


class Job:
    """One submission of the script.

    Args:
        options: of sbatch, after those that fit these nodes.
        path: PATH of the job; by default this environment's programs are first in it.
    """

    def __init__(
        self, cluster: Slurm, folder: Path, *options: str, path: str | None = None
    ) -> None:
        self.cluster = cluster
        programs = path or f"{Path(sys.executable).parent}:{cluster.environment['PATH']}"
        said = cluster.run(
            *("sbatch", "--parsable", "--cpus-per-task=1", *options, SCRIPT, "spec.yaml"),
            folder=folder,
            PATH=programs,
        )
        self.number = said
        self._log = folder / f"raydp-{said}.log"

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def wait_for(self, *states: str, seconds: float = FINISH_SECONDS) -> dict[str, str]:
        try:
            return self.cluster.wait_for(self.number, *states, seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log}") from error

    def wait_until_it_says(self, text: str) -> None:
        deadline = time.monotonic() + FINISH_SECONDS
        while text not in self.log:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.1)

    def ended(self) -> dict[str, str]:
        return self.wait_for("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


def write(folder: Path, spec: dict[str, Any], **cluster: Any) -> dict[str, Any]:
    spec["cluster"] = {"address": "auto", **cluster}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    return spec


def leftovers(job: Job) -> list[Path]:
    return list(Path("/tmp").glob(f"raydp-{job.number}-*"))


def test_a_sweep_runs_on_all_nodes_and_leaves_nothing_behind(
    cluster: Slurm, tmp_path: Path
) -> None:
    spec = write(tmp_path, small_spec(tmp_path))
    job = Job(cluster, tmp_path, "--gpus-per-node=2")
    ended = job.ended()
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "0"), (
        job.log
    )
    assert "2 Ray nodes: 2.0 CPU,4.0 GPU" in job.log
    assert list(Sweep(spec).points()["status"]) == ["finished", "finished"]
    assert not leftovers(job)


@pytest.mark.thorough
def test_a_signal_before_the_time_limit_stops_queues_again_and_goes_on(
    cluster: Slurm, tmp_path: Path
) -> None:
    space = {"batch_size": [64], "num_steps": [10, 200], "learning_rate": [0.01, 0.02]}
    spec = write(tmp_path, small_spec(tmp_path, space=space), checkpoint_seconds=1)
    job, folder = Job(cluster, tmp_path), Path(spec["storage"]) / "small"
    deadline = time.monotonic() + FINISH_SECONDS
    while not results(folder):
        assert time.monotonic() < deadline, job.log
        time.sleep(0.05)
    cluster.run("scancel", "--batch", "--signal=TERM", job.number)
    job.wait_for("PENDING", seconds=STOP_SECONDS)
    finished = {path: path.stat().st_mtime_ns for path in results(folder)}
    assert len(finished) < 4, "it was to be stopped in the middle"
    assert "the job goes back to the queue" in job.log
    ended = job.ended()
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "1"), (
        job.log
    )
    assert list(Sweep(spec).points()["status"]) == ["finished"] * 4
    assert all(path.stat().st_mtime_ns == time_ns for path, time_ns in finished.items()), (
        "nothing finished ran twice"
    )
    assert not leftovers(job)


def test_mistakes_are_named_before_any_worker_starts(cluster: Slurm, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path)
    assert job.ended()["ExitCode"] == "2:0"
    assert "SPEC must be a file that can be read, got 'spec.yaml' in" in job.log
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(small_spec(tmp_path)))
    job = Job(cluster, tmp_path)
    assert job.ended()["ExitCode"] == "2:0"
    assert "cluster.address must be auto" in job.log
    write(tmp_path, small_spec(tmp_path))
    job = Job(cluster, tmp_path, path="/usr/bin:/bin")
    assert job.ended()["ExitCode"] == "2:0"
    assert "PATH must hold ray and raydp" in job.log


@pytest.mark.slow
def test_a_node_without_programs_a_lost_ray_node_and_a_cancellation_end_the_job(
    cluster: Slurm, tmp_path: Path
) -> None:
    """None hangs; nothing is queued again."""
    only_first = tmp_path / "only-first"
    only_first.mkdir()
    for name in ("ray", "raydp", "python"):
        program = only_first / name
        program.write_text(
            '#!/bin/bash\n[ "$SLURMD_NODENAME" = n1 ] || exit 127\nexec '
            f'{Path(sys.executable).parent}/{name} "$@"\n'
        )
        program.chmod(0o755)
    write(tmp_path, small_spec(tmp_path))
    job = Job(cluster, tmp_path, path=f"{only_first}:/usr/bin:/bin")
    assert job.ended()["ExitCode"] == "2:0"
    assert "got none on n2" in job.log
    assert not leftovers(job)

    job = Job(cluster, tmp_path)
    job.wait_until_it_says("2 Ray nodes:")
    cluster.run("scancel", "--signal=KILL", f"{job.number}.1")  # its Ray nodes, not the script
    assert job.ended()["JobState"] == "FAILED"
    assert "a Ray node ended before the sweep" in job.log
    for folder in leftovers(
        job
    ):  # of the node that was killed; the first node's script has removed its own
        shutil.rmtree(folder)

    job = Job(cluster, tmp_path)
    job.wait_until_it_says("2 Ray nodes:")
    cluster.run("scancel", job.number)
    ended = job.ended()
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0")
    assert "goes back to the queue" not in job.log
