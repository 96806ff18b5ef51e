"""Runs that end early: which, that the others are not touched, and that what they held is free."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raydp import Sweep
from raydp.analysis.selection.constraints import Constraints
from raydp.sweep.engine.stopping import EarlyStopping, check_steps
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.results import RunResult
from tests.builders.specs import small_spec
from tests.sweep.undisturbed import Done, runs_in

pytestmark = pytest.mark.xdist_group("sweep")


def knowing(
    *curves: tuple[float, float],
    base: float = 3.0,
    min_finished: int = 1,
    slack: float = 0.0,
    **bounds: float | None,
) -> EarlyStopping:
    """After runs with these losses half-way and at the end."""
    early_stopping = EarlyStopping(
        min_finished=min_finished,
        slack=slack,
        constraints=Constraints(**{"min_gain_share": 0.9, **bounds}),
    )
    early_stopping.learn(RunResult(run_id="base", status="finished", utility_loss=base))
    for k, (on_the_way, final) in enumerate(curves):
        checks = {"1/2": on_the_way}
        early_stopping.learn(
            RunResult(
                run_id=f"run-{k}", status="finished", history=(), checks=checks, utility_loss=final
            )
        )
    return early_stopping


def test_checks_are_at_equal_distances_and_never_at_the_end() -> None:
    assert check_steps(100, 3) == {25: "1/4", 50: "1/2", 75: "3/4"}
    assert check_steps(2, 3) == {1: "1/2"}, "a run of two steps has one place for a check"
    assert check_steps(1, 3) == {}


def test_a_run_that_cannot_reach_the_threshold_is_stopped() -> None:
    """Gains grew 2-fold and 4-fold; the best is 2, so 1.8 is asked for and 0.45 at the check is
    just enough."""
    early_stopping = knowing((2.0, 1.0), (2.75, 2.0))
    assert early_stopping.reason("1/2", 3 - 0.451) is None
    assert "grew at most 4-fold" in (early_stopping.reason("1/2", 3 - 0.449) or "")
    assert knowing((2.0, 1.0), (2.75, 2.0), slack=0.1).reason("1/2", 3 - 0.41) is None


def test_a_bound_on_the_loss_is_asked_for_as_it_is() -> None:
    early_stopping = knowing((2.0, 1.0), min_gain_share=0.9, max_loss=2.5)
    assert early_stopping.reason("1/2", 2.74) is None
    assert early_stopping.reason("1/2", 2.76) is not None


@pytest.mark.parametrize(
    "early_stopping",
    [
        knowing(),
        knowing((2.0, 1.0), min_finished=2),
        knowing((2.0, 1.0), min_gain_share=None),
        knowing((3.5, 1.0)),
        knowing((3.0, 3.1)),
        EarlyStopping(min_finished=1, slack=0.0, constraints=Constraints(min_gain_share=0.9)),
    ],
    ids=[
        "nothing finished",
        "too few",
        "nothing asked for",
        "no gain to compare",
        "nobody gains",
        "no base",
    ],
)
def test_without_something_to_compare_with_nothing_is_hopeless(
    early_stopping: EarlyStopping,
) -> None:
    assert early_stopping.reason("1/2", 2.99) is None


def test_checks_of_another_number_of_them_are_not_mixed_up() -> None:
    """What was learnt half-way says nothing of a run that has done a tenth."""
    assert check_steps(100, 9)[50] == check_steps(100, 1)[50] == "1/2"
    assert knowing((2.0, 1.0)).reason("1/10", 2.99) is None


@pytest.mark.parametrize(("loss", "ended"), [(3.0, False), (3.49, False), (3.51, True)])
def test_a_bound_above_the_base_model_ends_only_runs_that_break_it(
    loss: float, ended: bool
) -> None:
    early_stopping = knowing((1.9, 1.85), base=2.0, max_loss=3.5)
    assert (early_stopping.reason("1/2", loss) is not None) is ended


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_diverged_run_is_ended_without_comparison(loss: float) -> None:
    assert "diverged" in (
        EarlyStopping(min_finished=9, slack=0, constraints=Constraints()).reason("1/2", loss) or ""
    )


def test_a_run_that_would_be_kept_is_hardly_ever_stopped() -> None:
    """1,000 sweeps of 12 runs whose gains grow as step^a, a of each run's own, with noise of 1 % at
    the check."""
    rng = np.random.default_rng(0)
    wrong = kept = 0
    for _ in range(1000):
        final, power = rng.uniform(0.5, 1.0, 12), rng.uniform(0.3, 0.7, 12)
        check = final * 0.5**power * (1 + 0.01 * rng.standard_normal(12))
        early_stopping = knowing(
            *((3 - c, 3 - f) for c, f in zip(check[:6], final[:6], strict=True)), slack=0.1
        )
        good = final[6:] >= 0.9 * final.max()
        stopped = np.array([early_stopping.reason("1/2", 3 - c) is not None for c in check[6:]])
        wrong, kept = wrong + int((good & stopped).sum()), kept + int(good.sum())
    assert wrong / kept < 0.01


@pytest.mark.slow
def test_hopeless_runs_end_early_and_the_rest_is_as_without_them(
    done: Done, tmp_path: Path
) -> None:
    """Longest first, so the good ones finish before.

    One learning rate is far too small, one overflows; what they held is free for the run after
    them. A resume does not run them again. The good ones are runs of `done`, too.
    """
    good = [[64, 20, 0.01], [64, 20, 0.02]]
    spec = small_spec(
        tmp_path,
        space={"points": [*good, [64, 11, 1e-6], [64, 10, 1e30], [64, 9, 0.01]]},
        stopping={"checks": 2, "min_finished": 2},
        cluster={"max_concurrent_trials": 1},
        select={"score": "vmr_exact", "min_gain_share": 0.3},
    )
    sweep = Sweep(spec)
    result = sweep.run()
    assert (result.counts.finished, result.counts.stopped, result.counts.failed) == (3, 2, 0)
    points = sweep.points().set_index("num_steps")
    plain = done.points.query("num_steps == 20").set_index("learning_rate")["utility_loss"]
    assert points.loc[[20]].set_index("learning_rate")["utility_loss"].to_dict() == plain.to_dict()
    folder = SweepFolder.open(result.folder)
    small, overflown = (folder.result(points.loc[steps, "run_id"]) for steps in (11, 10))
    assert "cannot be selected" in small.reason
    assert "diverged" in overflown.reason
    assert small.executed["num_steps"] == len(small.history) == 4
    assert 0 < small.executed["epsilon"] < points.loc[11, "epsilon"]
    assert points.loc[11, "executed_epsilon"] == small.executed["epsilon"]
    assert np.isnan(points.loc[11, "utility_loss"]), "it is no point"
    assert runs_in(spec["tracking"]["uri"]) == {"parents": 1, "children": 5, "versions": 3}
    before = folder.trial(points.loc[11, "run_id"]) / "result.json"
    written = before.stat().st_mtime_ns
    assert sweep.run(resume=True).counts.stopped == 2
    assert before.stat().st_mtime_ns == written
