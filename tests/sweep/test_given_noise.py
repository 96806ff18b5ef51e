"""A sweep whose σ is given: its ε is accounted and stated, and nothing is calibrated."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from raydp.privacy import AccountantError, PoissonGaussian, RDPAccountant, accounted
from raydp.spec.reading import load_spec
from raydp.sweep.ending.notes import promise_of
from raydp.sweep.planning.plan import SweepPlan, make_plan, plan_to_keep
from tests.builders import toys
from tests.builders.specs import small_spec

SIGMA = 0.9
GIVEN: dict[str, Any] = {"noise_multiplier": SIGMA, "accountant": "rdp"}
SPACE: dict[str, Any] = {"batch_size": [4, 8], "num_steps": [5, 20], "learning_rate": [0.01]}


def planned(folder: Path, privacy: dict[str, Any], **changes: Any) -> SweepPlan:
    spec = small_spec(folder, privacy=privacy, space=SPACE, method={"name": "dp_adam"}, **changes)
    return make_plan(load_spec(spec), toys.task(200).facts(), "weights")


def test_epsilon_of_a_given_noise_is_what_another_library_accounts(tmp_path: Path) -> None:
    plan = planned(tmp_path, GIVEN)
    assert {trial.noise_multiplier for trial in plan.trials} == {SIGMA}
    for trial in plan.trials:
        record = plan.privacy[trial.run_id]
        other = RdpAccountant()
        step = dp_event.PoissonSampledDpEvent(
            trial.batch_size / 200, dp_event.GaussianDpEvent(SIGMA)
        )
        other.compose(dp_event.SelfComposedDpEvent(step, trial.num_steps))
        assert record.accounted.epsilon == pytest.approx(other.get_epsilon(plan.delta), rel=1e-3)
        assert record.accounted.target_epsilon is None


def test_epsilon_differs_by_configuration_and_the_plan_warns_of_it(tmp_path: Path) -> None:
    plan = planned(tmp_path, GIVEN)
    epsilons = {plan.privacy[trial.run_id].accounted.epsilon for trial in plan.trials}
    assert len(epsilons) == 4
    (warning,) = [c for c in plan.warnings if "share one epsilon" in c.rule]
    assert f"{min(epsilons):.4g} to " in warning.value
    alone = {**SPACE, "batch_size": [4], "num_steps": [5]}
    spec = small_spec(tmp_path, privacy=GIVEN, space=alone, method={"name": "dp_adam"})
    one = make_plan(load_spec(spec), toys.task(200).facts(), "weights")
    assert not [c for c in one.warnings if "share one epsilon" in c.rule]


def test_a_sweep_promises_the_largest_epsilon_of_its_models(tmp_path: Path) -> None:
    plan = plan_to_keep(planned(tmp_path, GIVEN), "id")
    largest = max(record.accounted.epsilon for record in plan.privacy.values())
    assert plan.record.accounted.epsilon == largest
    said = float(promise_of(plan.record).split("ε at most ")[1].split()[0])
    assert largest <= said <= largest * 1.001


def test_what_is_kept_of_a_plan_reads_as_it_was_written(tmp_path: Path) -> None:
    plan = plan_to_keep(planned(tmp_path, GIVEN), "id")
    assert type(plan).from_json(json.loads(json.dumps(plan.to_json())), "plan.json") == plan


def test_a_target_that_calibrates_to_the_given_noise_gives_the_same_epsilon(
    tmp_path: Path,
) -> None:
    target = planned(tmp_path, {"target_epsilon": 3, "accountant": "rdp"})
    for trial in target.trials:
        event = PoissonGaussian(
            sample_rate=trial.batch_size / 200,
            noise_multiplier=trial.noise_multiplier,
            num_steps=trial.num_steps,
        )
        known = accounted(event, target.delta, "rdp")
        assert known.epsilon == target.privacy[trial.run_id].accounted.epsilon


def test_runs_of_a_target_keep_their_ids_and_a_given_noise_has_others(tmp_path: Path) -> None:
    target = load_spec(small_spec(tmp_path, privacy={"target_epsilon": 3, "accountant": "rdp"}))
    assert "noise_multiplier" not in target.privacy.model_dump(mode="json")
    a = {trial.run_id for trial in planned(tmp_path, GIVEN).trials}
    b = {trial.run_id for trial in planned(tmp_path, {**GIVEN, "noise_multiplier": 1.8}).trials}
    assert not a & b


def test_an_accounted_epsilon_comes_from_the_cache(tmp_path: Path) -> None:
    event = PoissonGaussian(sample_rate=0.1, noise_multiplier=1.0, num_steps=10)
    first = accounted(event, 1e-4, "rdp", cache_dir=tmp_path)
    (entry,) = tmp_path.iterdir()
    written = entry.stat().st_mtime_ns
    assert accounted(event, 1e-4, "rdp", cache_dir=tmp_path) == first
    assert entry.stat().st_mtime_ns == written
    assert first.epsilon == RDPAccountant().epsilon(event, 1e-4)
    assert accounted(event, 1e-5, "rdp", cache_dir=tmp_path).epsilon > first.epsilon


def test_a_noise_that_the_accountant_cannot_handle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AccountantError):
        planned(tmp_path, {**GIVEN, "accountant": "prv", "noise_multiplier": 1e-4})


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        ({"accountant": "rdp"}, "takes target_epsilon or noise_multiplier, got neither"),
        ({**GIVEN, "target_epsilon": 8}, "takes target_epsilon or noise_multiplier, got both"),
        ({**GIVEN, "noise_multiplier": 0}, "privacy.noise_multiplier must be greater than 0"),
        ({**GIVEN, "noise_multiplier": math.inf}, "privacy.noise_multiplier must be"),
        pytest.param(
            {**GIVEN, "tuning": "private_selection", "num_runs": {"mean": 2}},
            "privacy.noise_multiplier must be left out with tuning private_selection",
            marks=pytest.mark.extensions,
        ),
    ],
)
def test_a_wrong_target_or_noise_is_refused(
    tmp_path: Path, privacy: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        load_spec(small_spec(tmp_path, privacy=privacy))


@pytest.mark.extensions
def test_a_method_that_states_a_target_refuses_a_given_noise(tmp_path: Path) -> None:
    method = {"name": "dp_weights", "formula": "equation_3", "max_grad_norm": 1.0}
    spec = load_spec(small_spec(tmp_path, privacy=GIVEN, space=SPACE, method=method))
    with pytest.raises(ValueError, match=r"privacy\.target_epsilon must be given with method"):
        make_plan(spec, toys.task(200).facts(), "weights")
