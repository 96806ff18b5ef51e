"""Every mechanism's own spec in docs, as a user runs it: points, guarantee, registered models,
report, audit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import torch
import yaml

from raydp import load_model, load_points
from raydp.cli.show.sweeps import show_result
from raydp.extensions.auditing.audits import DEFAULT_CANARIES, audit_spec, conclude
from raydp.extensions.auditing.source import AuditSubject
from raydp.extensions.classification.labelled import LabelledExamples
from raydp.models import base_models as models
from raydp.plugins import registries
from raydp.privacy import PrivacyRecord
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.api import Sweep
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import make_plan
from raydp.sweep.store.transfer import SharedFolder
from raydp.tasks.task import task_of
from raydp.tracking import show_model
from raydp.training.comm import LocalComm
from tests.extensions.auditing.audited import trained
from tests.marks import slow_unless
from tests.sweep.trained import TrainedSpec

SPECS = Path(__file__).parents[1] / "docs" / "specs" / "mechanisms"
NAMES = sorted(path.stem for path in SPECS.glob("*.yaml"))
WHOLE = ("dp_mf", "dp_weights", "output_perturbation")
"""What is run as a whole sweep: the others go the same ways, and PATE in
tests/sweep/test_fields.py."""
WITH_RAY = "dp_weights"
"""The runs of the other sweeps are trained in this process."""
WITHOUT_GUARANTEE = {"advreg", "advreg_rt", "dp_weights", "mmd", "nonprivate", "werm"}


def in_folder(name: str, folder: Path) -> dict[str, Any]:
    """A spec with its results in a folder; one learning rate and one seed are enough."""
    spec = yaml.safe_load((SPECS / f"{name}.yaml").read_text())
    spec["seeds"] = [0]
    spec["space"]["learning_rate"] = spec["space"]["learning_rate"][-1:]
    spec["space"]["num_steps"] = spec["space"]["num_steps"][-1:]
    spec["storage"] = str(folder / "runs")
    spec["tracking"] = {**spec.get("tracking", {}), "uri": f"sqlite:///{folder}/mlflow.db"}
    return spec


def test_every_method_has_a_spec() -> None:
    """But `imported`, which reads what others trained (tests/extensions/imported)."""
    named = {load_spec(SPECS / f"{name}.yaml").method.name for name in NAMES}
    assert named == set(registries.names("methods")) - {"imported"}


@pytest.mark.parametrize(
    "name", slow_unless(("dp_sgd", "dp_mf", "nonprivate", "output_perturbation"), NAMES)
)
def test_a_run_of_the_mechanism(name: str, tmp_path: Path) -> None:
    """As a worker does it, in this process; and its record says what it guarantees."""
    spec = load_spec(in_folder(name, tmp_path))
    task, weight_hash = build_task(spec)
    plan = make_plan(spec, task.facts(), weight_hash)
    trial = plan.trials[0]
    _check_record(spec, name, plan.privacy[trial.run_id])
    runner = TrialRunner(
        spec, task, models.load_base(spec.model), LocalComm(torch.device("cpu")), bytes(32)
    )
    result = runner.run(
        trial, SharedFolder(folder=tmp_path / "run", run_id=trial.run_id), "attempt-1"
    )
    assert result.status == "finished"
    assert result.loss < 0.3, "chance is 0.9"


def _check_record(spec: SweepSpec, name: str, record: PrivacyRecord) -> None:
    if name in WITHOUT_GUARANTEE:
        assert record.accounted.epsilon == math.inf
        assert not record.certified
        return
    assert record.certified, record.not_certified_because
    assert (
        0.98 * spec.privacy.target_epsilon < record.accounted.epsilon <= spec.privacy.target_epsilon
    )


@pytest.mark.daily("docs/specs/mechanisms", "raydp/methods")
@pytest.mark.parametrize("name", WHOLE)
def test_a_sweep_of_the_mechanism(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = load_spec(in_folder(name, tmp_path))
    if name != WITH_RAY:
        TrainedSpec(spec)
    sweep = Sweep(spec)
    result = sweep.run(resume=name != WITH_RAY)
    capsys.readouterr()
    show_result(sweep, result)
    lacking = (
        "no guarantee: ε is infinite, so privacy-preferred is not set" in capsys.readouterr().out
    )
    assert lacking == (name in WITHOUT_GUARANTEE)
    points = load_points(result.folder / "points.csv")
    assert set(points["status"]) == {"finished"}
    assert set(points["method"]) == {spec.method.name}
    assert points["utility_loss"].min() < 0.7, (
        "chance is 0.9; the noisiest, output_perturbation, has 0.15 to 0.58"
    )
    assert (result.folder / "report.html").is_file()
    for uri in points["model_uri"]:
        privacy = show_model(uri, tracking_uri=spec.tracking.uri)["privacy"]
        _check_record(spec, name, PrivacyRecord.from_json(privacy))
    selected = str((result.selected or result.best_utility).model_uri)
    _predicts(spec.tracking.uri, selected, points, task_of(spec, None).heldout)


def _predicts(uri: str, model_uri: str, points: Any, heldout: LabelledExamples) -> None:
    """The selected model is as good as its point says, loaded and as MLflow serves it."""
    loss = points.set_index("model_uri")["utility_loss"][model_uri]
    with torch.inference_mode():
        logits = load_model(model_uri, tracking_uri=uri)(torch.from_numpy(heldout.inputs))
    assert (logits.argmax(dim=1).numpy() != heldout.labels).mean() == pytest.approx(loss, abs=1e-9)
    mlflow.set_tracking_uri(uri)
    served = mlflow.pyfunc.load_model(model_uri).predict(heldout.inputs)
    assert np.asarray(served).argmax(axis=1).tolist() == logits.argmax(dim=1).tolist()


@pytest.mark.slow
def test_a_classifier_is_audited_with_classes_of_its_own_for_canaries(tmp_path: Path) -> None:
    """No bound above the stated ε; and the canaries that were in are found far more often than by
    chance. The runs are in this process: tests/extensions/auditing/test_audits.py has the command with Ray."""
    spec = load_spec({**in_folder("dp_sgd", tmp_path), "space": {"points": [[128, 100, 2.0]]}})
    source = AuditSubject(spec=spec)
    folder = trained(
        audit_spec(
            source,
            name="audit",
            coins=3,
            num_canaries=DEFAULT_CANARIES,
            confidence=0.95,
            seeds=(0,),
        )
    )
    (run,) = conclude(source, folder).runs
    assert run["correct"] > 0.7 * run["guesses"]
    assert 0 < run["epsilon_hat"] < 8
    assert folder.plan().facts.num_examples > 1438
