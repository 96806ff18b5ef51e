"""Ctrl-C in a phase of a run that lasts ten minutes ends the sweep at once, and a resume gives the
same results."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydp.sweep.store.folder import BASE_RUN
from tests.builders.specs import small_spec
from tests.conftest import start_raydp
from tests.sweep.undisturbed import FINISH_SECONDS, results, wait_until

END_SECONDS = 60
"""Far below the ten minutes of a phase, and far above the few seconds of an end on a busy
machine."""

PLUGIN = '''
import os, sys, time
from pathlib import Path

import torch
from raydp.methods.dp import DPAdam
from raydp.scores.score import Measurement, OneByOne
from raydp.sweep.engine import recorder

HERE = Path(__file__).parent


def linger(phase, *, calls=1):
    """Take ten minutes in the phase under test."""
    if (HERE / "phase").exists() and (HERE / "phase").read_text() == phase:
        (HERE / "begun").touch()
        for _ in range(calls):
            time.sleep(600 / calls)


class Lingering(OneByOne):
    """Lingers at the base model, or at a trained one."""

    def check(self, task):
        pass

    def measure(self, model, task, *, seed):
        trained = (HERE / "measured").exists()
        (HERE / "measured").touch()
        linger("score" if trained else "base model")
        linger("score of small calls" if trained else "", calls=60_000)
        return Measurement(value=0.5, std_error=None, num_samples=1)

    def expected_bounds(self):
        return 0.0, 1.0


class LingeringDP(DPAdam):
    """Lingers in its fifth step."""

    def batch_indices(self, plan, key, step):
        self.__dict__["step"] = step
        if step == 4:
            linger("step of one call")
        return super().batch_indices(plan, key, step)

    def train(self, plan, context, *further):
        def before(*args):
            if torch.is_grad_enabled() and self.__dict__["step"] == 4 and (HERE / "phase").exists():
                if (HERE / "phase").read_text() == "step of micro-batches":
                    (HERE / "begun").touch()
                    time.sleep(1)

        handle = context.model.register_forward_pre_hook(before)
        try:
            return super().train(plan, context, *further)
        finally:
            handle.remove()


def committed(self, trial, deliver=recorder.Recorder.committed):
    if (HERE / "phase").exists() and (HERE / "phase").read_text() == "delivery":
        while len(list(HERE.glob("runs/small/trials/*/attempt-*/model"))) < 1:
            time.sleep(0.1)  # the other run ends meanwhile
        time.sleep(2)
        linger("delivery")
    deliver(self, trial)


recorder.Recorder.committed = committed
'''


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], float]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        spec = written(folder, patch, {})
        driver = start_raydp(folder, "sweep", "spec.yaml")
        _, err = driver.communicate(timeout=FINISH_SECONDS)
        assert driver.returncode == 0, err
        yield measured(spec)


def written(folder: Path, patch: pytest.MonkeyPatch, cluster: dict[str, object]) -> dict[str, Any]:
    """Install the plug-in into a folder, and write a spec that uses it."""
    info = folder / "lingering-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lingering\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[raydp.scores]\nlingering = lingering:Lingering\n[raydp.methods]\nlingering_dp = "
        "lingering:LingeringDP\n"
    )
    (folder / "lingering.py").write_text(PLUGIN)
    patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    spec = small_spec(
        folder,
        method={"name": "lingering_dp", "max_grad_norm": 0.1},
        space={"batch_size": [32], "num_steps": [6, 8], "learning_rate": [0.01]},
        scores=[{"name": "vmr_exact"}, {"name": "lingering"}],
        cluster={"max_concurrent_trials": 1, "microbatch_size": 1, **cluster},
    )
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    return spec


def measured(spec: dict[str, Any]) -> dict[tuple[str, str], float]:
    """(run id, score) -> value, also of the utility."""
    known = {}
    for path in results(Path(spec["storage"]) / "small"):
        result = json.loads(path.read_text())
        known[path.parent.name, "utility"] = result["utility_loss"]
        known |= {
            (path.parent.name, name): score["value"] for name, score in result["scores"].items()
        }
    return known


@pytest.mark.parametrize(
    ("phases", "grace_seconds"),
    [
        # The first leaves no run behind, so the second one begins as on a new folder.
        pytest.param(
            {"score": 0, "delivery": 2}, 600, id="score, delivery", marks=pytest.mark.slow
        ),
        pytest.param({"base model": 0}, 600, id="base model", marks=pytest.mark.thorough),
        pytest.param(
            {"score of small calls": 0}, 600, id="score of small calls", marks=pytest.mark.thorough
        ),
        pytest.param(
            {"step of micro-batches": 0},
            600,
            id="step of micro-batches",
            marks=pytest.mark.thorough,
        ),
        pytest.param({"step of one call": 0}, 3, id="step of one call", marks=pytest.mark.thorough),
    ],
)
def test_ctrl_c_ends_a_sweep_in_a_long_phase_and_a_resume_gives_the_same_results(
    undisturbed: dict[tuple[str, str], float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    phases: dict[str, int],
    grace_seconds: int,
) -> None:
    """Each phase is interrupted in a resume of the one before, and leaves so many runs done."""
    spec = written(tmp_path, monkeypatch, {"grace_seconds": grace_seconds})
    folder = Path(spec["storage"]) / "small"
    for phase, kept in phases.items():
        for left in ("begun", "measured"):
            (tmp_path / left).unlink(missing_ok=True)
        (tmp_path / "phase").write_text(phase)
        driver = start_raydp(tmp_path, "sweep", "spec.yaml", "--start-or-resume")
        wait_until((tmp_path / "begun").exists, driver)
        driver.send_signal(signal.SIGINT)
        try:
            out, err = driver.communicate(timeout=END_SECONDS)
        finally:
            driver.kill()
        assert (driver.returncode, "Traceback" in err) == (1, False), err
        assert f"{kept} of 2 runs are done" in out
        saved = list(folder.glob("trials/*/checkpoints/step-*"))
        assert (not saved) == (phase != "step of micro-batches"), (
            "only a run that can save is waited for"
        )
        assert ("did not save its state" in err) == (phase == "step of one call")
    (tmp_path / "phase").unlink()
    driver = start_raydp(tmp_path, "sweep", "spec.yaml", "--resume")
    _, err = driver.communicate(timeout=FINISH_SECONDS)
    assert driver.returncode == 0, err
    assert measured(spec) == pytest.approx(undisturbed, abs=1e-5), "1e-5 is what fp32 explains"
    assert (folder / "trials" / BASE_RUN / "result.json").exists()
