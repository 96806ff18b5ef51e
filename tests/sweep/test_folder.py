"""Which runs a resume leaves alone."""

from pathlib import Path

import pytest

from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.results import RunResult, Status


@pytest.mark.parametrize(("status", "ended"), [("finished", True), ("stopped", True), ("failed", False)])
def test_what_has_ended_is_not_run_again(status: Status, ended: bool, tmp_path: Path) -> None:
    folder = SweepFolder(path=tmp_path)
    folder.commit(RunResult(run_id="run", status=status))
    assert folder.has_ended("run") == ended
