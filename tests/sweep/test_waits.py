"""What a user waits for: each phase of a sweep's end is named, and no command loads a library that
it does not need."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from raydp.plugins.registries import own_names, resolve, summary
from raydp.spec.reading import draft_spec
from raydp.sweep.store.unchanged import remember
from tests.sweep.undisturbed import Done

pytestmark = pytest.mark.xdist_group("sweep")

HEAVY = {"torch", "transformers", "mlflow", "ray", "opacus", "sklearn"}


def loaded_by(*arguments: object) -> set[str]:
    """Which of the heavy libraries a command has loaded when it has answered."""
    code = f"import atexit, sys; atexit.register(lambda: print('loaded', *({HEAVY!r} & set(sys.modules)))); "
    code += "from raydp.cli.main import main; main()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(answer.stdout.splitlines()[-1].split()[1:])


@pytest.mark.slow
def test_a_report_of_a_sweep_loads_nothing_that_trains(done: Done, tmp_path: Path) -> None:
    """scikit-learn trains the small forest that tells the importance of each hyperparameter, and no
    model."""
    assert loaded_by("report", done.result.folder, "-o", tmp_path / "page.html") <= {"sklearn"}


@pytest.mark.slow
def test_a_resume_of_a_sweep_that_has_ended_loads_nothing_that_trains_or_tracks(
    done: Done, tmp_path: Path
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(done.spec))
    remember(draft_spec(spec))
    assert loaded_by("sweep", spec, "--resume") == set()


@pytest.mark.slow
def test_a_profile_loads_nothing_that_trains(done: Done) -> None:
    assert loaded_by("profile", done.result.folder, "--deltas", "1e-3") == set()
    run = (
        "--n",
        3000,
        "--batch-size",
        30,
        "--num-steps",
        5,
        "--noise-multiplier",
        1.8,
        "--deltas",
        "1e-3",
    )
    assert loaded_by("profile", *run) == set()


def test_a_summary_is_the_first_paragraph_of_the_class() -> None:
    for kind in ("tasks", "methods", "scores", "searches", "accountants"):
        for name in own_names(kind):
            first = str(resolve(kind, name).__doc__).partition("\n\n")[0]
            assert summary(kind, name) == " ".join(first.split())


@pytest.mark.slow
def test_each_phase_of_a_sweeps_end_is_on_the_terminal(done: Done, tmp_path: Path) -> None:
    """A sweep that has all its runs does what every sweep does at its end; a pseudo-terminal shows
    what it is at."""
    (done.result.folder / "ended.json").unlink(missing_ok=True)
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(done.spec))
    command = [
        sys.executable,
        "-c",
        "from raydp.cli.main import main; main()",
        "sweep",
        str(spec),
        "--resume",
        "--json",
    ]
    own, others = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm"}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=others, env=environment
    ) as run:
        os.close(others)
        shown = b""
        try:
            while part := os.read(own, 65536):
                shown += part
        except OSError:  # Linux says so of a pseudo-terminal whose other end is closed
            pass
    os.close(own)
    text = shown.decode()
    assert run.returncode == 0, text
    phases = [
        "reading the spec and loading the libraries",
        "writing the points table",
        "writing the joint ε onto the cards of 4 models",
        "selecting a configuration",
        "writing the report",
        "recording the end of the sweep in MLflow",
    ]
    places = [text.find(phase) for phase in phases]
    assert -1 not in places, dict(zip(phases, places, strict=True))
    assert places == sorted(places)
