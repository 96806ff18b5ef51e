"""Specs and sweeps of earlier versions are read: runs keep their identity, a killed sweep goes on.

`tests.sweep.earlier` made the files in tests/data, with the version of its time.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from raydp import Sweep
from raydp.plugins.registries import Kind
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.store.folder import BASE_RUN, NOT_COMPARED, SweepFolder
from raydp.training.noise.stream import TEST_KEY
from tests.builders.registered import of_core
from tests.marks import slow_unless
from tests.sweep.earlier import DATA, IDENTITIES, SWEEP_FOLDER, runs_of
from tests.sweep.undisturbed import assert_same_points, runs_in
from tests.sweep.without_ray import train_without_ray

KNOWN: dict[str, dict[str, Any]] = json.loads(IDENTITIES.read_text())
BASE = KNOWN.pop("base")
PLANNED = [name for name, entry in KNOWN.items() if "runs" in entry]
QUICK = set(PLANNED) - {"poisson", "binomial"}
"""The calibrations of the others take seconds."""
IDENTIFYING = ("method", "model", "privacy")
"""Sections that a run's identity is a hash of."""


def forms_of(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a spec as its user wrote it, and as the sweep's folder has it: with every field."""
    return {**BASE["spec"], **KNOWN[name]["spec"]}, {**BASE["written"], **KNOWN[name]["written"]}


def needs_extension(name: str) -> bool:
    """Return whether a spec names a plug-in, a tuning or a field of an extension."""
    given, _ = forms_of(name)
    search = given["space"].get("search")
    named: list[tuple[Kind, Any]] = [
        ("tasks", given["task"]),
        ("methods", given["method"]),
        *(("scores", score) for score in given.get("scores", [])),
        *([("searches", search)] if search else []),
    ]
    return (
        any(
            (part["name"] if isinstance(part, dict) else part) not in of_core(kind)
            for kind, part in named
        )
        or given["privacy"].get("tuning") == "private_selection"
        or "reference_weight" in given["method"]
    )


OF_EXTENSIONS = pytest.mark.extensions(*(name for name in KNOWN if needs_extension(name)))


def compared(spec: SweepSpec) -> dict[str, object]:
    """Return the sections in which an earlier spec must not change, not even by a new default."""
    dumped = spec.model_dump(mode="json")
    return {key: value for key, value in dumped.items() if key not in NOT_COMPARED - {"select"}}


@OF_EXTENSIONS
@pytest.mark.parametrize("name", slow_unless(QUICK, PLANNED))
def test_runs_of_an_earlier_spec_keep_their_identity(name: str) -> None:
    given, written = forms_of(name)
    spec = load_spec(given)
    dumped = spec.model_dump(mode="json")
    assert {k: dumped[k] for k in IDENTIFYING} == {k: written[k] for k in IDENTIFYING}
    runs = runs_of(spec)
    assert runs == KNOWN[name]["runs"]
    if spec.privacy.tuning == "private_selection":
        assert list(runs) == list(KNOWN[name]["runs"]), "the draw has an order"


@OF_EXTENSIONS
@pytest.mark.parametrize("name", KNOWN)
def test_every_key_of_an_earlier_spec_is_read(name: str) -> None:
    given, written = (load_spec(form) for form in forms_of(name))
    assert compared(given) == compared(written)


class EarlierSweep:
    """A copy of the folder that a killed driver left."""

    def __init__(self, name: str, place: Path) -> None:
        self.name = name
        shutil.copytree(DATA / name, place, dirs_exist_ok=True)
        self.spec, self.folder = load_spec("spec.yaml"), SweepFolder(path=SWEEP_FOLDER)
        (self.folder.path / "sweep.key").chmod(0o600)  # git does not keep the mode
        ((self.begun, self.steps),) = self.folder.checkpointed().items()
        (self.finished,) = [
            p for p in Path("runs").rglob("result.json") if p.parent.name != BASE_RUN
        ]


@pytest.fixture(params=("earlier_sweep", "earlier_seeds"))
def earlier(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> EarlierSweep:
    monkeypatch.chdir(tmp_path)
    return EarlierSweep(request.param, tmp_path)


def test_the_folder_of_an_earlier_sweep_is_read(earlier: EarlierSweep) -> None:
    folder, plan = earlier.folder, earlier.folder.plan()
    assert compared(folder.spec()) == compared(earlier.spec)
    assert SweepFolder.resume(earlier.spec).key() == TEST_KEY
    result = folder.result(earlier.finished.parent.name)
    assert result is not None
    assert result.finished
    assert result.history
    assert set(result.scores) == {"vmr_exact", "logprob"}
    assert folder.fail_if_damaged(result.run_id) == result, (
        "its weights are the ones that were saved"
    )
    assert {result.run_id, earlier.begun} < {trial.run_id for trial in plan.trials}
    step, tensors, state = folder.files(earlier.begun).checkpoints(print).load() or (0, {}, {})
    assert step == earlier.steps == len(state["history"]) > 0
    assert tensors


@pytest.mark.daily("tests/data", "raydp/sweep/store")
def test_a_killed_earlier_sweep_is_resumed(
    earlier: EarlierSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No finished run is trained again, the checkpoint is continued, and every run ends alike.

    One of the two sweeps trains with Ray.
    """
    if earlier.name == "earlier_seeds":
        train_without_ray(monkeypatch)
    time_ns = earlier.finished.stat().st_mtime_ns
    result = Sweep(earlier.spec).run(resume=True)
    assert earlier.finished.stat().st_mtime_ns == time_ns
    continued = earlier.folder.result(earlier.begun)
    assert continued is not None
    assert continued.resumed_from == earlier.steps
    expected = pd.read_csv("points.csv").set_index("run_id", drop=False)
    points = pd.read_csv(earlier.folder.path / "points.csv").set_index("run_id", drop=False)
    # Which further seeds are run is decided anew, by today's model of the scores.
    if earlier.name == "earlier_seeds":
        run = points.index[points["status"] == "finished"]
        assert len(run) > 4, "the first pass, and a further run"
        expected, points = expected.loc[run], points.loc[run]
    assert_same_points(points[expected.columns], expected)
    selected = points["alias"].dropna().to_dict()
    assert selected == expected["alias"].dropna().to_dict()
    finished = int((expected["status"] == "finished").sum())
    assert result.counts.finished == finished
    tracked = {"parents": 1, "children": finished, "versions": finished}
    assert runs_in(earlier.spec.tracking.uri) == tracked
