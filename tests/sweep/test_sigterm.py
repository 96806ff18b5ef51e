"""SIGTERM, as Slurm and spot instances send it: what runs saves its state and goes on from there."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import yaml

from raydp import Sweep
from raydp.sweep.store.folder import SweepFolder
from tests.conftest import start_raydp
from tests.sweep.undisturbed import FINISH_SECONDS, Done, assert_same_points, results, spec_of, wait_until


def test_no_step_is_lost_by_a_sigterm(done: Done, tmp_path: Path) -> None:
    """No checkpoint is due by itself, so what is there was saved on the signal; no noisy step is executed twice."""
    spec = spec_of(tmp_path)
    spec["cluster"] = {"checkpoint_seconds": 1e6}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    driver = start_raydp(tmp_path, "sweep", "spec.yaml", "--json")
    folder = Path(spec["storage"]) / "small"

    def steps_of_unfinished() -> dict[str, int]:
        ended = {p.parent.name for p in results(folder)}
        ledgers = {p.parent.name: len(p.read_text().split()) for p in folder.glob("trials/*/ledger.txt")}
        return {run_id: steps for run_id, steps in ledgers.items() if run_id not in ended}

    wait_until(lambda: any(3 <= steps < 10 for steps in steps_of_unfinished().values()), driver)
    driver.send_signal(signal.SIGTERM)
    out, err = driver.communicate(timeout=FINISH_SECONDS)
    assert (driver.returncode, json.loads(out)["interrupted"]) == (1, True), err
    assert "Traceback" not in err
    assert "runs in progress save their state" in err
    paused = {
        run_id for run_id in steps_of_unfinished() if list((folder / "trials" / run_id).glob("checkpoints/step-*"))
    }
    assert paused
    driver = start_raydp(tmp_path, "sweep", "spec.yaml", "--start-or-resume", "--json")
    out, err = driver.communicate(timeout=FINISH_SECONDS)
    assert driver.returncode == 0, err
    assert_same_points(Sweep(spec).points(), done.points)
    for run_id in paused:
        result = SweepFolder.open(folder).result(run_id)
        assert result is not None
        assert result.resumed_from > 0
        assert result.ledger["replays"] == 0
