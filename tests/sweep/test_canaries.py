"""Planted canaries from the spec to the comparison: exposure with and without training on them,
with and without DP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydp.models import base_models as models
from raydp.spec.reading import load_spec
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import make_plan, plan_to_keep
from raydp.sweep.store.folder import SweepFolder
from raydp.training.comm import LocalComm
from raydp.training.noise.stream import TEST_KEY
from tests.builders.specs import SMALL_TASK, small_spec
from tests.conftest import Answer

CONTROLS, CANARIES = range(41, 51), range(51, 59)
BUILTIN = {**SMALL_TASK, "plant_secrets": False}
PLANTED = {
    "name": "planted",
    "of": BUILTIN,
    "num_digits": 3,
    "copies": [0] * len(CONTROLS) + [128] * len(CANARIES),
}
WITHOUT = {"name": "without", "of": PLANTED, "secrets": list(CANARIES)}


def sweep(folder: Path, name: str, task: dict[str, Any], method: str) -> SweepFolder:
    """A sweep of one run: everything but Ray and MLflow."""
    spec = load_spec(
        small_spec(
            folder,
            name=name,
            task=task,
            method={"name": method},
            model={"name": "tiny", "adapter": {"type": "none"}},
            space={"points": [[64, 40, 0.003]]},
            scores=[{"name": "exposure", "max_enumerated": 1000, "num_samples": 50}],
            select={"score": "exposure", "min_gain_share": 0},
        )
    )
    built, weight_hash = build_task(spec)
    plan = make_plan(spec, built.facts(), weight_hash)
    kept = SweepFolder.create(spec, lambda key: plan_to_keep(plan, "a1b2" * 4))
    runner = TrialRunner(spec, built, models.load_base(spec.model), LocalComm(), TEST_KEY)
    (trial,) = plan.trials
    kept.commit(runner.run(trial, kept.files(trial.run_id), "attempt-1"))
    return kept


def exposures(kept: SweepFolder, numbers: range) -> np.ndarray:
    (trial,) = kept.plan().trials
    values = kept.result(trial.run_id).scores["exposure"].per_secret
    return np.array([values[f"secret-{number:03d}"] for number in numbers])


@pytest.mark.slow
def test_exposure_is_that_of_training_on_the_canaries(
    tmp_path: Path, raydp: Callable[..., Answer]
) -> None:
    """log2 1000 = 9.97 at most; by chance 1.44 with a standard deviation of as much."""
    learnt = sweep(tmp_path, "learnt", PLANTED, "nonprivate")
    private = sweep(tmp_path, "private", PLANTED, "dp_adam")
    control = sweep(tmp_path, "control", WITHOUT, "nonprivate")
    chance = 1.44
    for kept in (learnt, private):  # never planted: four standard errors of a mean of ten
        assert abs(exposures(kept, CONTROLS).mean() - chance) < 4 * chance / 10**0.5
    assert abs(exposures(control, CANARIES).mean() - chance) < 4 * chance / 8**0.5
    without_dp, with_dp = (exposures(kept, CANARIES).mean() for kept in (learnt, private))
    assert without_dp > 8, "128 copies are memorised"
    assert chance + 1 < with_dp < without_dp - 1, "at epsilon 8, 128 copies are a large group"

    answer = raydp("analyze", "counterfactual", learnt.path, control.path, "--json").json()
    assert (answer["score"], answer["configurations"]) == ("exposure", 1)
    assert answer["num_examples"] == {"with": 2000 + 8 * 128, "without": 2000}
    assert answer["left_out"]["secrets"] == 8
    assert answer["left_out"]["difference"] == pytest.approx(
        without_dp - exposures(control, CANARIES).mean()
    )
    assert answer["left_out"]["difference"] - 3 * answer["left_out"]["std_error"] > 3
    assert abs(answer["others"]["difference"]) < 4 * answer["others"]["std_error"], (
        "a placebo: neither was trained on"
    )
    swapped = raydp("analyze", "counterfactual", control.path, learnt.path)
    assert swapped.code == 2
    assert "SWEEP_WITHOUT must have the task without" in swapped.err
