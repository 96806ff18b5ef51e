"""SkyPilot's task file: SkyPilot loads it, shellcheck reads its scripts, and the head's script runs
a sweep here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders.specs import small_spec

FILE = Path(__file__).parents[2] / "deploy" / "skypilot" / "sweep.yaml"
LOAD = """
import sys, sky
task = sky.Task.from_yaml(sys.argv[1])
print(task.name, task.num_nodes, sorted(task.envs), [str(r.accelerators) for r in task.resources])
"""


@pytest.fixture(scope="module")
def task() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("part", ["setup", "run"])
def test_shellcheck_finds_nothing(task: dict[str, Any], part: str) -> None:
    command = [str(Path(sys.executable).parent / "shellcheck"), "--shell=bash", "-"]
    done = subprocess.run(command, input=task[part], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_skypilot_loads_the_task(tmp_path: Path) -> None:
    """In an environment of its own: SkyPilot pins versions that raydp's other tools exclude."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "sky")], check=True)
    python = tmp_path / "sky" / "bin" / "python"
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "skypilot"], check=True, timeout=900
    )
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        "RAY_AUTH_TOKEN": "0",
    }
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(python), "-c", LOAD, str(FILE)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("raydp-sweep 2 ['RAYDP', 'SPEC'")


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_script_of_a_single_node_runs_a_sweep(task: dict[str, Any], tmp_path: Path) -> None:
    spec = small_spec(tmp_path, cluster={"address": "auto", "max_concurrent_trials": 1})
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(spec))
    (tmp_path / "raydp").mkdir()
    (tmp_path / "raydp" / "bin").symlink_to(Path(sys.executable).parent)
    environment = {
        **os.environ, "HOME": str(tmp_path), "SPEC": "sweep.yaml", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
        "SKYPILOT_NODE_IPS": "127.0.0.1", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_GPUS_PER_NODE": "0",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", task["run"]],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs" / "small" / "summary.json").is_file()
