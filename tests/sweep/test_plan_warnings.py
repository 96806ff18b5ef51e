"""What `plan` warns of: a guarantee, a utility or scores that say little."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydp.privacy import Caution, RDPAccountant
from raydp.privacy.records.cautions import cautions_of_few
from raydp.spec.reading import load_spec
from raydp.sweep.planning.plan import make_plan, plan_to_keep
from raydp.sweep.planning.warnings import joint_warnings
from raydp.sweep.store.state import Plan
from raydp.tasks.secret import Secret, never_trained_on
from raydp.tasks.task import TaskFacts
from tests.builders import toys
from tests.builders.specs import small_spec

PRIVATE = {"target_epsilon": 8, "accountant": "rdp"}
SPACE: dict[str, Any] = {"batch_size": [8], "num_steps": [4], "learning_rate": [0.01]}


def planned(folder: Path, facts: TaskFacts, **changes: Any) -> Any:
    spec = small_spec(
        folder, **{"privacy": PRIVATE, "space": SPACE, "method": {"name": "dp_adam"}, **changes}
    )
    return make_plan(load_spec(spec), facts, "weights")


def facts(num_units: int = 5000, **notes: Any) -> TaskFacts:
    return replace(
        toys.task(20).facts(), num_units=num_units, notes={"num_heldout_examples": 200, **notes}
    )


def test_a_sound_plan_has_no_warning(tmp_path: Path) -> None:
    plan = planned(tmp_path, facts())
    assert not plan.warnings
    assert not joint_warnings(plan.trials, list(plan.privacy.values()))


@pytest.mark.parametrize(
    ("known", "changes", "rule", "value"),
    [
        ({"num_units": 59}, {}, "privacy: delta should be at most 0.001", "0.0113"),
        ({"num_units": 59}, {}, "task: n should be at least 500", "59"),
        (
            {},
            {"privacy": {**PRIVATE, "target_delta": 0.005}},
            "privacy: delta should be at most 0.001",
            "0.005",
        ),
        (
            {},
            {"privacy": {**PRIVATE, "target_epsilon": 12}},
            "privacy: epsilon should be at most 10",
            "11.99",
        ),
        (
            {"num_heldout_examples": 17, "heldout_with_secret_removed": 39},
            {},
            "task: held-out examples should be at least 100",
            "17 (39 others held a secret and were left out)",
        ),
        (
            {"secrets_held_out": ["secret-004", "secret-017"]},
            {},
            "task.secrets should occur in what is trained on",
            "2 only in held-out rows (lines 4, 17)",
        ),
        (
            {"secrets_above_limit": ["secret-001"]},
            {},
            "task.secrets should occur in what is trained on",
            "1 in what task.max_examples_per_user leaves out (line 1)",
        ),
        (
            {"secrets_outside_loss": ["secret-002"]},
            {},
            "task.secrets should occur in what is trained on",
            "1 only in messages that are not trained on (line 2)",
        ),
        (
            {"truncated": 5},
            {},
            "task.max_length should hold most examples whole",
            "5 of 20 that are longer",
        ),
        (
            {"secrets_nowhere": ["secret-100"]},
            {},
            "task.secrets should occur in what is trained on",
            "1 in no row (line 100)",
        ),
        (
            {},
            {"space": {**SPACE, "learning_rate": [0.01, 3, 10]}},
            "space.learning_rate should be at most 0.1",
            "3, 10",
        ),
        (
            {},
            {
                "space": {**SPACE, "learning_rate": [4, 30]},
                "method": {"name": "dp_sgd", "max_grad_norm": 1.0},
            },
            "space.learning_rate should be at most 10",
            "30",
        ),
    ],
)
def test_weak_settings_are_warned_of_with_rule_value_and_remedy(
    tmp_path: Path, known: dict[str, Any], changes: dict[str, Any], rule: str, value: str
) -> None:
    plan = planned(tmp_path, facts(**known), **changes)
    fitting = [caution for caution in plan.warnings if caution.rule.startswith(rule)]
    assert [caution.value for caution in fitting] == [value]
    assert fitting[0].remedy.endswith(".")
    kept = Plan.from_json(plan_to_keep(plan, "0" * 16).to_json(), "small")
    assert kept.warnings == plan.warnings, (
        "the end of the sweep, the verdict and the report read them"
    )


@pytest.mark.parametrize(("num_examples", "helps"), [(499, False), (500, True)])
def test_protecting_examples_is_advised_only_where_they_are_enough(
    num_examples: int, helps: bool
) -> None:
    (caution,) = cautions_of_few(59, num_examples)
    assert ("protect examples" in caution.remedy) == helps
    assert not cautions_of_few(500, num_examples)


def test_the_joint_epsilon_is_named_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n = 59: each of 24 models has ε = 8, and all of them about 40."""
    space = {"batch_size": [4, 16], "num_steps": [20], "learning_rate": [0.001, 0.003, 0.01]}
    plan = planned(tmp_path, facts(num_units=59), space=space, seeds=[0, 1, 2, 3])
    (caution,) = joint_warnings(plan.trials, list(plan.privacy.values()))
    assert caution.rule.startswith(
        "privacy: the joint epsilon of all 24 planned models by accountant rdp should be at most 10"
    )
    assert 20 < float(caution.value) < 24 * 8
    assert not joint_warnings(plan.trials[:1], list(plan.privacy.values()))
    monkeypatch.setattr(
        RDPAccountant, "_bounds", None
    )  # a later plan of the same runs computes nothing
    assert joint_warnings(plan.trials, list(plan.privacy.values())) == [caution]


def test_a_secret_that_is_not_trained_on_has_its_reason() -> None:
    secrets = [Secret(prompt=f"P{k} is", continuation=f" s{k}", number=k) for k in range(1, 5)]
    notes = never_trained_on(
        secrets,
        secrets[:1],
        {
            "secrets_cut_off": ["P1 is s1", "and P2 is s2"],
            "secrets_held_out": ["P3 is s3", "P2 is s2"],
        },
    )
    assert notes == {
        "secrets_absent": ["secret-002", "secret-003", "secret-004"],
        "secrets_cut_off": ["secret-002"],
        "secrets_held_out": ["secret-003"],
        "secrets_nowhere": ["secret-004"],
    }


def test_a_warning_reads_as_an_error_does() -> None:
    caution = Caution(
        rule="privacy: delta should be at most 0.001", value="0.01", remedy="Protect more units."
    )
    assert str(caution) == "privacy: delta should be at most 0.001, got 0.01. Protect more units."
    assert Caution.from_json(caution.to_json()) == caution
    assert caution.short == "delta should be at most 0.001, got 0.01: protect more units"
