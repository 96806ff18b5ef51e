"""`raydp profile` for many configurations: curves that meet at the target, each by the noise of its
accountant."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydp.extensions.calculator.many_runs import profiles_of_sweep
from raydp.privacy import NonPrivateEvent, PoissonGaussian, PrivacyRecord, PRVAccountant
from raydp.privacy.accounting.accountant import Accountant
from raydp.spec.reading import load_spec
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import drawn, make_plan, plan_to_keep
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.json_files import write_json
from raydp.training.trial_plan import TrialPlan
from tests.builders.plans import plan_of_runs, record_of
from tests.builders.specs import small_spec
from tests.conftest import Answer

Command = Callable[..., Answer]

ROWS = "3600,64,16,4,1e-5\n3600,64,256,4,1e-5\n"
TARGETS = "n,batch_size,num_steps,epsilon,delta\n" + ROWS


@pytest.fixture
def targets(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text(TARGETS)
    return path


@pytest.mark.slow
def test_curves_of_one_target_meet_there_and_cross(
    raydp: Command, targets: Path, tmp_path: Path
) -> None:
    """More noise is better below the target's δ and worse above it (Hu et al. 2025, Figure 26)."""
    page = tmp_path / "page.html"
    answers = raydp(
        "profile", "--from", targets, "--deltas", "1e-2,1e-5,1e-8", "-o", page, "--json"
    ).json()
    assert [(a["n"], a["batch_size"], a["num_steps"], a["epsilon"]) for a in answers] == [
        (3600, 64, 16, 4.0),
        (3600, 64, 256, 4.0),
    ]
    for name in ("prv", "pld", "rdp"):
        first, second = (
            {row["delta"]: row["epsilon"] for row in a["curves"][name]} for a in answers
        )
        for curve in (first, second):
            assert (
                4 * (1 - 0.02) <= curve[1e-5] <= 4
            )  # σ is within 0.3 % of the tight one, prv's within 1 %
        noisier, other = (
            (first, second)
            if answers[0]["noise_multipliers"][name] > answers[1]["noise_multipliers"][name]
            else (second, first)
        )
        assert noisier[1e-8] < other[1e-8]
        assert noisier[1e-2] > other[1e-2]
    text = page.read_text()
    assert "n = 3600, b = 64, T = 256" in text
    assert all(f"ε at each δ, {name}" in text for name in ("prv", "pld", "rdp"))
    assert "diamond" in text


def test_given_noise_is_not_calibrated(raydp: Command, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("n,batch_size,num_steps,noise_multiplier\n3000,30,50,0.8\n")
    (many,) = raydp("profile", "--from", path, "--deltas", "1e-3,1e-6", "--json").json()
    run = ("--n", 3000, "--batch-size", 30, "--num-steps", 50, "--noise-multiplier", 0.8)
    assert (
        many["curves"] == raydp("profile", *run, "--deltas", "1e-3,1e-6", "--json").json()["curves"]
    )
    assert set(many["noise_multipliers"].values()) == {0.8}
    assert "3000" in raydp("profile", "--from", path, "--deltas", "1e-3,1e-6").out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "n,batch_size,num_steps\n3600,256,16\n",
            "noise_multiplier, or epsilon and delta, got none of epsilon, delta",
        ),
        (
            "n,batch_size,num_steps,noise_multiplier,epsilon\n9,3,2,1,8\n",
            "got noise_multiplier and epsilon. Remove",
        ),
        (
            "n,batch_size,num_steps,noise_multiplier\n9,3,2,1\n9,3,2,0\n",
            "line 3: noise_multiplier must be > 0",
        ),
        ("n,batch_size,num_steps,noise_multiplier\n9,12,2,1\n", "line 2: batch_size must be"),
        (
            "n,num_steps\n9,2\n",
            "got a table without batch_size. It has n, num_steps. Add or rename them.",
        ),
    ],
)
def test_bad_arguments_are_refused_with_a_remedy(
    raydp: Command, tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(content)
    answer = raydp("profile", "--from", path)
    assert answer.code == 2
    assert message in " ".join(answer.err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "profile must be given --n, --batch-size, --num-steps, --noise-multiplier, got "
            "nothing. Add them, or use",
        ),
        (["--from", "runs.csv", "--n", 3], "--from must be given alone, got --n too"),
        (["a-sweep", "--from", "runs.csv"], "SWEEP must be given alone, got --from too"),
        (["a-sweep", "--accountant", "plt"], "Did you mean 'pld'?"),
    ],
)
def test_one_run_or_many(raydp: Command, arguments: list[object], message: str) -> None:
    answer = raydp("profile", *arguments)
    assert answer.code == 2
    assert message in " ".join(answer.err.split())


def run_of(run_id: str, batch_size: int) -> TrialPlan:
    return TrialPlan(
        run_id=run_id, batch_size=batch_size, num_steps=16, learning_rate=0.01, seed=0, num_examples=3600,
        noise_multiplier=1.0,
    )  # fmt: skip


@pytest.mark.slow
def test_a_sweep_has_a_curve_for_each_noise_that_it_trains_with(tmp_path: Path) -> None:
    """Learning rates and seeds do not change it; runs without noise have none."""

    def trial(
        run_id: str, batch_size: int, num_steps: int | None
    ) -> tuple[TrialPlan, PrivacyRecord]:
        run = run_of(run_id, batch_size)
        if num_steps is None:
            return run, record_of(NonPrivateEvent(), epsilon=math.inf)
        event = PoissonGaussian(
            sample_rate=batch_size / 3600, noise_multiplier=1.0, num_steps=num_steps
        )
        return run, record_of(event, delta=1e-4, target_epsilon=8.0)

    runs = [trial("a", 256, 16), trial("b", 256, 16), trial("c", 64, 16), trial("d", 64, None)]
    plan = plan_of_runs([run for run, _ in runs], {run.run_id: record for run, record in runs})
    (tmp_path / "spec.yaml").write_text("")
    write_json(tmp_path / "plan.json", plan.to_json())
    answers = profiles_of_sweep(str(tmp_path), "runs", "1e-3,1e-5")
    assert [a["batch_size"] for a in answers] == [64, 256]
    before = answers[1]["curves"]["pld"][0]["epsilon"]
    assert answers[0]["curves"]["pld"][0]["epsilon"] < before
    fewer = [trial("a", 256, 4), trial("b", 256, 4), trial("c", 64, 4), trial("d", 64, None)]
    plan = replace(plan, privacy={run.run_id: record for run, record in fewer})
    write_json(
        tmp_path / "plan.json", plan.to_json()
    )  # four updates of T are one step, as in matrix factorisation
    after = profiles_of_sweep(str(tmp_path), "runs", "1e-3,1e-5")[1]
    assert (after["num_steps"], after["batch_size"]) == (16, 256)
    assert after["curves"]["pld"][0]["epsilon"] < before, (
        "of the event in the record, not of b, T and n"
    )
    write_json(tmp_path / "plan.json", replace(plan, trials=plan.trials[3:]).to_json())
    with pytest.raises(ValueError, match="SWEEP must have private runs"):
        profiles_of_sweep(str(tmp_path), "runs", "1e-3")


def test_a_curve_is_computed_once(
    raydp: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second `raydp profile` of a file or a sweep finds its curves in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compute, calls = Accountant.composed_epsilons, []

    def counted(self: Accountant, *arguments: Any) -> list[float]:
        calls.append(self.name)
        return compute(self, *arguments)

    monkeypatch.setattr(Accountant, "composed_epsilons", counted)
    path = tmp_path / "runs.csv"
    path.write_text("n,batch_size,num_steps,noise_multiplier\n3000,30,5,1.8\n")
    first = raydp("profile", "--from", path, "--deltas", "1e-3,1e-6", "--json").out
    assert sorted(calls) == ["pld", "prv", "rdp"]
    assert raydp("profile", "--from", path, "--deltas", "1e-3,1e-6", "--json").out == first
    assert len(calls) == 3
    calls.clear()
    raydp("profile", "--from", path, "--deltas", "1e-3,1e-7", "--accountant", "rdp")
    assert calls == ["rdp"], "a printed table has one accountant's curves, so no other is computed"


@pytest.mark.parametrize(
    ("deltas", "columns"),
    [
        ("1e-3,2e-3,3e-3,4e-3,5e-3,6e-3", 6),
        ("1e-2,3e-3,1e-3,1e-4,3e-5,1e-6", 3),
        ("1e-3,1e-5", 2),
    ],
    ids=["none of the usual", "many", "few"],
)
def test_the_printed_table_has_some_of_many_deltas(
    raydp: Command, tmp_path: Path, deltas: str, columns: int
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("n,batch_size,num_steps,noise_multiplier\n3000,30,5,1.8\n")
    out = raydp("profile", "--from", path, "--deltas", deltas, "--accountant", "rdp").out
    assert out.count("ε at δ=") == columns


def test_a_profile_computes_each_curve_once(
    raydp: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The accountant that is asked for is one of the three of the table."""
    compute, calls = PRVAccountant.epsilons, []

    def counted(self: PRVAccountant, *arguments: Any) -> list[float]:
        calls.append(arguments)
        return compute(self, *arguments)

    monkeypatch.setattr(PRVAccountant, "epsilons", counted)
    run = ("--n", 3000, "--batch-size", 30, "--num-steps", 5, "--noise-multiplier", 1.8)
    answer = raydp("profile", *run, "--accountant", "prv", "--deltas", "1e-3,1e-6", "--json").json()
    assert len(calls) == 1
    assert [row["epsilon"] for row in answer["curves"]["prv"]] == answer["epsilons"]


@pytest.mark.slow
def test_the_sweeps_own_accountant_leads(raydp: Command, tmp_path: Path) -> None:
    """In the table, in the document and on the page; --accountant names another one."""
    content = small_spec(tmp_path, name="by-pld")
    content["privacy"] = content["privacy"] | {"accountant": "pld"}
    spec = load_spec(content)
    task, weight_hash = build_task(spec)
    plan = make_plan(spec, task.facts(), weight_hash)
    folder = SweepFolder.create(
        spec, lambda key: plan_to_keep(drawn(plan, spec, weight_hash, key), "a1b2" * 4)
    )
    shown = raydp("profile", folder.path, "--deltas", "1e-3", "-o", tmp_path / "page.html").out
    assert shown.startswith("ε at each δ, pld")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.index("<caption>ε at each δ, pld") < page.index("<caption>ε at each δ, prv")
    (answer, *_) = json.loads(raydp("profile", folder.path, "--deltas", "1e-3", "--json").out)
    assert next(iter(answer["curves"])) == next(iter(answer["noise_multipliers"])) == "pld"
    assert raydp("profile", folder.path, "--deltas", "1e-3", "--accountant", "rdp").out.startswith(
        "ε at each δ, rdp"
    )


def test_a_private_selection_has_no_curve_of_one_run(tmp_path: Path) -> None:
    """That curve is below the ε of the choice, which is what was released."""
    run = run_of("a", 64)
    event = PoissonGaussian(sample_rate=64 / 3600, noise_multiplier=1.0, num_steps=16)
    privacy = {"a": record_of(event, delta=1e-4, target_epsilon=8.0)}
    (tmp_path / "spec.yaml").write_text("")
    for trials in ([run], []):  # also where the number of runs was drawn as 0
        plan = plan_of_runs(trials, privacy, configurations=[run])
        write_json(tmp_path / "plan.json", plan.to_json())
        with pytest.raises(
            ValueError, match=r"SWEEP must be without private selection.*read the card"
        ):
            profiles_of_sweep(str(tmp_path), "runs", "1e-3")
