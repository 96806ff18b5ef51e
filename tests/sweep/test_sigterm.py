"""SIGTERM, as Slurm and spot instances send it: what runs saves its state and goes on from
there."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydp import Sweep
from raydp.sweep.store.folder import SweepFolder
from tests.conftest import start_raydp
from tests.sweep.undisturbed import (
    FINISH_SECONDS,
    Done,
    assert_same_points,
    results,
    spec_of,
    wait_until,
)

pytestmark = pytest.mark.alone


def interrupted(folder: Path) -> tuple[dict[str, Any], set[str]]:
    """The spec of a sweep that was told to stop, and its runs that saved their state."""
    folder.mkdir()
    spec = spec_of(folder)
    spec["cluster"] = {"checkpoint_seconds": 1e6}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    driver = start_raydp(folder, "sweep", "spec.yaml", "--json")
    sweep = Path(spec["storage"]) / "small"

    def steps_of_unfinished() -> dict[str, int]:
        ended = {p.parent.name for p in results(sweep)}
        ledgers = {
            p.parent.name: len(p.read_text().split()) for p in sweep.glob("trials/*/ledger.txt")
        }
        return {run_id: steps for run_id, steps in ledgers.items() if run_id not in ended}

    wait_until(lambda: any(3 <= steps < 10 for steps in steps_of_unfinished().values()), driver)
    driver.send_signal(signal.SIGTERM)
    out, err = driver.communicate(timeout=FINISH_SECONDS)
    assert (driver.returncode, json.loads(out)["interrupted"]) == (1, True), err
    assert "Traceback" not in err
    assert "runs that train save their state" in err
    return spec, {
        run
        for run in steps_of_unfinished()
        if list((sweep / "trials" / run).glob("checkpoints/step-*"))
    }


@pytest.mark.slow
def test_no_step_is_lost_by_a_sigterm(done: Done, tmp_path: Path) -> None:
    """No checkpoint is due by itself, so what is there was saved on the signal; no noisy step is
    executed twice."""
    for attempt in range(4):  # a fast worker may end its run before it hears of the signal
        folder = tmp_path / str(attempt)
        spec, paused = interrupted(folder)
        if paused:
            break
    assert paused
    driver = start_raydp(folder, "sweep", "spec.yaml", "--start-or-resume", "--json")
    _, err = driver.communicate(timeout=FINISH_SECONDS)
    assert driver.returncode == 0, err
    assert_same_points(Sweep(spec).points(), done.points)
    for run_id in paused:
        result = SweepFolder.open(Path(spec["storage"]) / "small").result(run_id)
        assert result is not None
        assert result.resumed_from > 0
        assert result.ledger["replays"] == 0
