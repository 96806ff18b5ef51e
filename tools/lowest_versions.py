"""Sweep with the lowest versions that pyproject.toml allows: `python tools/lowest_versions.py`.

A range of versions is a claim. The environment of `make install` has the newest versions (see
constraints.txt), and this one the lowest of every direct dependency. torch alone is the version of
`make install`: its lowest build for CPUs is not on the package index.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build/lowest"
SPEC = """
name: lowest
task: {name: builtin}
model: {name: tiny, adapter: {type: lora, r: 4, alpha: 8}, dtype: float32}
method: {name: dp_adam, max_grad_norm: 0.1}
privacy: {target_epsilon: 8, delta_exponent: 1.1, accountant: prv, noise_key: test}
space: {batch_size: [32, 64], num_steps: [4], learning_rate: [1.0e-2]}
seeds: [0, 1]
scores: [{name: vmr_exact}, {name: logprob}]
select: {score: logprob}
cluster: {address: local, cpus_per_worker: 1, max_concurrent_trials: 2}
tracking: {uri: "sqlite:///raydp.db", experiment: lowest, registered_model: lowest}
"""


def lowest() -> list[str]:
    """Return the lowest version of each direct dependency, as pip's constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = []
    for line in project["dependencies"]:
        match = re.fullmatch(r"([\w-]+)(?:\[[\w,-]+\])?>=([\w.]+).*", line)
        assert match is not None, f"{line}: a dependency names its lowest version first"
        name, bound = match.groups()
        found.append(f"{name}=={version('torch').partition('+')[0] if name == 'torch' else bound}")
    return found


def run(*command: str) -> None:
    """Run a command in the folder, and end if it fails."""
    subprocess.run(command, check=True, cwd=FOLDER)


def main() -> None:
    """Install the lowest versions into build/lowest, and plan and sweep with them."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    constraints, spec = FOLDER / "constraints.txt", FOLDER / "sweep.yaml"
    constraints.write_text("\n".join(lowest()) + "\n", encoding="utf-8")
    spec.write_text(SPEC, encoding="utf-8")
    run(sys.executable, "-m", "venv", str(FOLDER / "venv"))
    # Not editable: the wheel is built and installed as a user would have it.
    pip = (str(FOLDER / "venv/bin/pip"), "install", "--quiet", "--no-compile")
    run(*pip, "--constraint", str(constraints), str(ROOT))
    raydp = str(FOLDER / "venv/bin/raydp")
    run(raydp, "plan")
    run(raydp, "sweep", str(spec))
    run(raydp, "models", "find", "--uri", "sqlite:///raydp.db", "--registered-model", "lowest")


if __name__ == "__main__":
    main()
