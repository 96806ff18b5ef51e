"""Makes what an earlier version leaves: specs with identities of their runs, and killed sweeps.

    python -m tests.sweep.earlier planned FILE    adds specs, and the identities of their runs
    python -m tests.sweep.earlier read FILE       adds specs that are only read
    python -m tests.sweep.earlier sweep FILE NAME makes the folder tests/data/NAME of a killed sweep

FILE is YAML: a spec, or name -> the sections in which a spec differs from the first one of
`identities.json`. Nothing that exists is written anew: a later version must read what the earlier
one wrote.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.planning.plan import drawn, make_plan
from raydp.sweep.store.folder import SweepFolder
from raydp.tasks.task import TaskFacts
from raydp.training.noise.stream import TEST_KEY
from tests.conftest import start_raydp
from tests.sweep.undisturbed import FINISH_SECONDS, results, wait_until

DATA = Path(__file__).parents[1] / "data"
IDENTITIES = DATA / "identities.json"
FACTS = TaskFacts(
    num_examples=20_000,
    num_units=20_000,
    privacy_unit="mail",
    content_hash="c0ffee",
    num_tokens=900_000,
    utility_is_public=True,
    num_reference=500,
)
SWEEP_FOLDER = Path("runs", "earlier")
LEFT_OUT = shutil.ignore_patterns("ray", "*.lock", "progress.json")
"""Files that no resume reads."""


def runs_of(spec: SweepSpec) -> dict[str, list[object]]:
    """Return run_id -> batch size, steps, learning rate, seed and settings, in the plan's order."""
    plan = drawn(make_plan(spec, FACTS, "weights"), spec, "weights", TEST_KEY)
    return {
        t.run_id: [t.batch_size, t.num_steps, t.learning_rate, t.seed, t.settings.text]
        for t in plan.trials
    }


def add_specs(file: Path, *, planned: bool) -> None:
    """Add the specs of a file, each with what this version reads and plans."""
    known: dict[str, Any] = json.loads(IDENTITIES.read_text())
    base = known["base"]
    for name, sections in yaml.safe_load(file.read_text()).items():
        assert name not in known, f"{name!r} exists, and stays as it is"
        spec = load_spec({**base["spec"], **sections})
        dumped = spec.model_dump(mode="json")
        # Keep the sections as a sweep's folder has them: with every field.
        written = {key: value for key, value in dumped.items() if value != base["written"][key]}
        known[name] = {"spec": sections, "written": written}
        if planned:
            known[name]["runs"] = runs_of(spec)
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in known.items()]
    IDENTITIES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def add_sweep(file: Path, name: str) -> None:
    """Make the folder of a killed sweep, and the points of the same sweep without a kill."""
    kept = DATA / name
    assert not kept.exists(), f"{kept} exists, and stays as it is"
    with tempfile.TemporaryDirectory() as scratch:
        killed, undisturbed = Path(scratch, "killed"), Path(scratch, "undisturbed")
        for folder in (killed, undisturbed):
            folder.mkdir()
            shutil.copy(file, folder / "spec.yaml")
        _kill(killed)
        command = [sys.executable, "-m", "raydp.cli.main", "sweep", "spec.yaml"]
        subprocess.run(command, cwd=undisturbed, check=True)
        shutil.copytree(killed / "runs", kept / "runs", ignore=LEFT_OUT)
        _check(SweepFolder(path=kept / SWEEP_FOLDER))
        shutil.copy(file, kept / "spec.yaml")
        shutil.copy(undisturbed / SWEEP_FOLDER / "points.csv", kept)


def _kill(folder: Path) -> None:
    """Start a sweep, and kill its driver when a run has ended and the next one has begun."""
    sweep = SweepFolder(path=folder / SWEEP_FOLDER)
    driver = start_raydp(folder, "sweep", "spec.yaml")
    wait_until(
        lambda: results(sweep.path) and max(sweep.checkpointed().values(), default=0) >= 5, driver
    )
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate(timeout=FINISH_SECONDS)


def _check(sweep: SweepFolder) -> None:
    """Check that a run was killed between two steps, and keep its newest checkpoint alone."""
    ((begun, step),) = sweep.checkpointed().items()
    (num_steps,) = [t.num_steps for t in sweep.plan().trials if t.run_id == begun]
    assert step < num_steps, "the kill came after the last step. Remove the folder, and try again"
    for old in sorted((sweep.trial(begun) / "checkpoints").iterdir())[:-1]:
        old.unlink()


if __name__ == "__main__":
    what, file, *names = sys.argv[1:]
    if what == "sweep":
        add_sweep(Path(file), *names)
    else:
        add_specs(Path(file), planned=what == "planned")
