"""Estimates from measured steps: the law is found in synthetic timings, and a few real steps give
hours and memory."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydp.extensions.budget import measure
from raydp.extensions.budget.costs import MeasuredSteps, StepLaw, recorded_seconds
from raydp.extensions.budget.estimate import estimate
from raydp.extensions.budget.measure import _Timed, _Timer
from raydp.spec.sections import ClusterSpec
from raydp.sweep.store.results import RunResult
from raydp.training.trial_plan import TrialPlan
from tests.conftest import Answer

Command = Callable[..., Answer]

TABLE_14 = {  # compute C -> minutes (Hu et al. 2025, Table 14)
    "GPT-2-S": {128_000: 7.5, 8_192_000: 450},
    "GPT-2-L": {128_000: 30, 4_096_000: 1020},
}


def trial(name: str, batch_size: int, num_steps: int) -> TrialPlan:
    return TrialPlan(
        run_id=name, batch_size=batch_size, num_steps=num_steps, learning_rate=0.01, seed=0, num_examples=1000,
        noise_multiplier=1.0,
    )  # fmt: skip


@given(
    st.floats(0, 5),
    st.floats(1e-5, 1),
    st.lists(st.integers(1, 4096), min_size=3, max_size=6, unique=True),
)
def test_a_line_is_found_again(a: float, k: float, sizes: list[int]) -> None:
    law = StepLaw.fit(sizes, [a + k * b for b in sizes])
    for b in sizes:  # 1e-6: float64 of a line through values up to 4,096
        assert law.train_seconds(b, 7) == pytest.approx(7 * (a + k * b), rel=1e-6)
    assert law.r_squared is None or law.r_squared > 1 - 1e-6


def test_proportion_to_compute_is_checked() -> None:
    """Exact proportion deviates by nothing; a constant as large as the smallest batch's share is
    told."""
    sizes = [64, 128, 256]
    exact = StepLaw.fit(sizes, [0.01 * b for b in sizes])
    assert exact.max_relative_deviation == pytest.approx(0, abs=1e-12)
    assert (exact.step_seconds, exact.seconds_per_example) == (
        pytest.approx(0, abs=1e-9),
        pytest.approx(0.01),
    )
    shifted = StepLaw.fit(sizes, [0.64 + 0.01 * b for b in sizes])
    assert shifted.max_relative_deviation > 0.25
    assert shifted.step_seconds == pytest.approx(0.64)


def test_noise_makes_no_step_shorter_for_more_examples() -> None:
    law = StepLaw.fit([10, 20, 30], [3.0, 2.0, 1.0])
    assert (law.seconds_per_example, law.step_seconds) == (0, 2)
    steep = StepLaw.fit([10, 20], [1.0, 3.0])
    assert steep.step_seconds == 0
    assert steep.seconds_per_example > 0


@pytest.mark.parametrize("model", TABLE_14)
def test_the_papers_times_follow_the_law(model: str) -> None:
    """The two ends of Table 14, factors of 64 and 32 in C apart, are within 4 % of one proportion
    (60 and 34 times)."""
    computes, minutes = list(TABLE_14[model]), list(TABLE_14[model].values())
    assert StepLaw.fit(computes, minutes).max_relative_deviation < 0.04


@pytest.mark.parametrize(
    ("examples", "seconds"), [([], []), ([0], [1.0]), ([8, 16], [1.0, 0.0]), ([8], [float("nan")])]
)
def test_steps_that_say_nothing_are_refused(examples: list[float], seconds: list[float]) -> None:
    with pytest.raises(ValueError, match="steps must have drawn examples and taken time"):
        StepLaw.fit(examples, seconds)


def test_columns_count_seeds_workers_and_devices() -> None:
    law = StepLaw.fit([100, 200], [2.0, 3.0])  # 1 s and 10 ms an example
    measured = MeasuredSteps(
        law=law, score_seconds=60, utility_seconds=5, memory_bytes=2**31, device="cpu", steps=()
    )
    cluster = ClusterSpec(workers_per_trial=4, gpus_per_worker=2)
    found = measured.columns(400, 10, 3, evaluations=2, cluster=cluster, price=1.5)
    seconds = 3 * (10 * (1 + 0.01 * 100) + 2 * 5 + 60)
    assert found["hours"] == pytest.approx(seconds / 3600)
    assert found["gpu_hours"] == pytest.approx(8 * seconds / 3600)
    assert found["memory_gib"] == 2
    assert found["cost"] == pytest.approx(12 * seconds / 3600)
    assert "cost" not in measured.columns(400, 10, 3, evaluations=0, cluster=cluster, price=None)


def test_recorded_costs_come_first_and_the_rest_follows_from_them() -> None:
    def took(
        train_seconds: float, score_seconds: float, resumed_from: int | None = None
    ) -> RunResult:
        return RunResult(
            run_id="", status="finished", train_seconds=train_seconds, score_seconds=score_seconds,
            resumed_from=resumed_from,
        )  # fmt: skip

    done = {"a": took(10.0, 1.0), "b": took(40.0, 3.0)}
    trials = [trial("a", 10, 10), trial("b", 20, 20), trial("c", 20, 20), trial("d", 30, 10)]
    assert recorded_seconds(trials, done) == [11, 43, 43, pytest.approx(30 + 2)]
    resumed = {**done, "b": took(2.0, 3.0, resumed_from=19)}
    assert recorded_seconds(trials, resumed) == recorded_seconds(trials, done), (
        "a step since the checkpoint took 2 s"
    )
    with pytest.raises(ValueError, match="--simulate must know what runs cost, got none"):
        recorded_seconds(trials, {})


def test_a_slow_machine_times_fewer_steps_and_at_least_one() -> None:
    shown: list[str] = []
    timer = _Timer(3, 0.0, shown.append)
    timer.beat(1, 5, {"drawn": 10.0})
    with pytest.raises(_Timed):
        timer.beat(2, 5, {"drawn": 12.0})
    assert (len(timer.seconds), timer.examples) == (1, [12.0])
    assert shown == ["a first step, which is not timed", "step 1 of 3"]
    patient = _Timer(2, math.inf, shown.append)
    for step in (1, 2):
        patient.beat(step, 4, {"drawn": 10.0})
    with pytest.raises(_Timed):
        patient.beat(3, 4, {"drawn": 10.0})
    assert len(patient.seconds) == 2


@pytest.mark.daily
def test_a_few_real_steps_give_every_column(
    raydp: Command, write_spec: Callable[..., Path], tmp_path: Path
) -> None:
    spec = write_spec(
        space={"batch_size": [16, 32, 64], "num_steps": [3, 600], "learning_rate": [0.01]},
        seeds=[0, 1],
    )
    before = {p for p in tmp_path.rglob("*") if "cache" not in p.parts}
    answer = raydp("plan", spec, "--measure", "--steps", "2", "--json")
    rows = {(row["batch_size"], row["num_steps"]): row for row in answer.json()}
    assert len(rows) == 6
    assert all(
        row["hours"] > 0 and row["gpu_hours"] == 0 and 0.1 < row["memory_gib"] < 64
        for row in rows.values()
    )
    assert rows[64, 600]["hours"] > rows[64, 3]["hours"]
    assert "cost" not in rows[16, 3]
    assert re.findall(r"batch_size (\d+): .*, 2 steps on cpu", answer.err) == ["16", "32", "64"]
    assert "Hu et al. 2025, Table 14" in " ".join(answer.err.split())
    assert {p for p in tmp_path.rglob("*") if "cache" not in p.parts} == before, "nothing is kept"


@pytest.mark.daily
def test_measurements_of_utility_between_steps_are_counted(
    raydp: Command, write_spec: Callable[..., Path]
) -> None:
    space = {"batch_size": [16], "num_steps": [100], "learning_rate": [0.01]}
    spec = write_spec(space=space, evaluate_every=1, stopping={"checks": 3, "min_finished": 1})
    answer = raydp(
        "plan", spec, "--measure", "--steps", "1", "--simulate", "nodes=1,cpus_per_node=1", "--json"
    )
    measured = answer.json()["measured"]
    (row,) = answer.json()["configurations"]
    assert measured["utility_seconds"] > 0
    assert (
        row["hours"] * 3600 / row["seeds"]
        >= (99 + 3) * measured["utility_seconds"] + measured["score_seconds"]
    )
    assert "measuring utility between steps takes" in answer.err
    (order,) = {
        order["makespan_seconds"] for order in answer.json()["simulation"]["orders"].values()
    }
    assert order >= row["hours"] * 3600


def test_plan_measure_prints_user_or_example_as_the_unit_of_a_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    law = StepLaw(
        step_seconds=1.0, seconds_per_example=1.0, r_squared=None,
        proportional_seconds_per_example=1.0, max_relative_deviation=0.0,
    )  # fmt: skip
    steps = ({"batch_size": 8, "seconds": 2.0, "examples": 8.5, "num_steps": 2},)
    measured = MeasuredSteps(
        law=law, score_seconds=0.1, utility_seconds=0.0, memory_bytes=1, device="cpu", steps=steps
    )
    monkeypatch.setattr(measure, "measure_cost", lambda *_, **__: measured)
    path = tmp_path / "rows.jsonl"
    rows = [{"text": f"Line {i} says {i * i}.", "who": i % 40} for i in range(120)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = {
        "name": "users",
        "task": {"name": "text", "path": str(path), "user_column": "who"},
        "model": {"name": "tiny"},
        "method": {"name": "dp_adam", "max_grad_norm": 0.1},
        "privacy": {"target_epsilon": 8, "accountant": "rdp", "unit": "user"},
        "scores": [],
        "select": {"min_gain_share": 0.9},
        "space": {"batch_size": [8], "num_steps": [2], "learning_rate": [0.1]},
    }
    estimate(document, measure=True).show(json=False)
    said = " ".join(capsys.readouterr().err.split())
    assert "2 s a step of 8.5 users, 2 steps on cpu" in said
    assert "a step takes 1 s for each user" in said


@pytest.mark.daily
def test_of_one_batch_size_no_fit_is_claimed(
    raydp: Command, write_spec: Callable[..., Path]
) -> None:
    answer = raydp("plan", write_spec(), "--measure", "--steps", "1")
    assert "if its time is in proportion to the batch size: one size was timed" in answer.err
    assert "Table 14" not in answer.err


@pytest.mark.parametrize(
    ("options", "cluster", "message"),
    [
        (["--price", 2], {}, "--price must go with --measure, got 2 without. Add --measure."),
        (["--steps", 2], {}, "--steps must go with --measure, got 2 without"),
        (["--measure", "--steps", 0], {}, "--steps must be 1 to 1000, got 0"),
        (["--measure", "--price", 2], {}, "--price must go with GPUs"),
        (["--measure", "--price", -2], {}, "--price must be 0 or above, got -2"),
        (
            ["--measure", "--simulate", "nodes=2,seconds_per_example=1"],
            {},
            "seconds_per_example must be left out",
        ),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    raydp: Command,
    write_spec: Callable[..., Path],
    options: list[object],
    cluster: dict[str, object],
    message: str,
) -> None:
    answer = raydp("plan", write_spec(cluster=cluster), *options)
    assert answer.code == 2
    assert message in " ".join(answer.err.split())
