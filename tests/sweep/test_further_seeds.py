"""Sweeps with adaptive seeds: the spec, the plan, what is run, and what a kill leaves to a
resume."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pytest
import yaml

from raydp.analysis.seeds.allocation import EndState, NextSeed
from raydp.analysis.selection.choice import select as select_from
from raydp.scores.score import Measurement
from raydp.search_spaces import grid
from raydp.spec.reading import load_spec
from raydp.sweep.api import Sweep, plan, select
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.engine.further_seeds import SeedSource, before_further_seeds
from raydp.sweep.engine.training import Training
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.json_files import write_json
from raydp.sweep.store.points import counts, points_table
from raydp.sweep.store.results import RunResult
from raydp.sweep.store.source import PointsSource
from raydp.sweep.store.state import SeedsEnd
from raydp.sweep.tuning_record import tuning_of
from raydp.system.interruption import Interrupted
from raydp.tasks.task import Task
from raydp.training.trial_plan import TrialPlan
from tests.builders.plans import plan_of_runs
from tests.builders.specs import small_spec
from tests.conftest import Answer
from tests.sweep.trained import TrainedSpec
from tests.sweep.undisturbed import results, runs_in

SPACE = {"batch_size": [32], "num_steps": [3, 4, 5], "learning_rate": [0.01]}
CANDIDATES = tuple(grid([32], [3, 4, 5], ["0.01"]))
SEEDS: dict[str, Any] = {"first": 2, "at_most": 5, "max_cost_share": 2.0}


class World:
    """A sweep's folder with the planned runs of three configurations, and results written into it.

    Args:
        scores: number of steps -> true score.
    """

    def __init__(
        self, tmp_path: Path, scores: dict[int, float], *, noise: float = 0.02, **seeds: Any
    ) -> None:
        self.scores, self.noise = scores, noise
        data = small_spec(
            tmp_path,
            space=SPACE,
            seeds={**SEEDS, **seeds},
            select={"score": "vmr_exact", "min_gain_share": None},
        )
        self.spec = load_spec(data)
        self.trials = [
            TrialPlan(
                run_id=f"{c.num_steps}-{seed}", batch_size=32, num_steps=c.num_steps, learning_rate=0.01, seed=seed,
                num_examples=2000, noise_multiplier=1.0,
            )
            for c in CANDIDATES
            for seed in self.spec.seed_labels
        ]  # fmt: skip
        self.folder = SweepFolder.create(self.spec, lambda key: plan_of_runs(self.trials))
        self.commit(BASE_RUN, 0.0)

    def finish(self, run_id: str) -> None:
        num_steps, seed = map(int, run_id.split("-"))
        self.commit(run_id, self.scores[num_steps] + self.noise * (-1) ** seed)

    def commit(self, run_id: str, score: float, status: str = "finished") -> None:
        scores = {"vmr_exact": Measurement(value=score, std_error=0.0, num_samples=1)}
        loss = float(np.clip(2.0, 0, 3))
        self.folder.commit(
            RunResult(
                run_id=run_id, status=status, utility_loss=loss, scores=scores, reason="broken"
            )  # type: ignore[arg-type]
        )

    def source(self) -> SeedSource:
        seeds = self.spec.seeds
        assert not isinstance(seeds, tuple)
        return SeedSource(
            spec=self.spec,
            folder=self.folder,
            trials=self.trials,
            base_fn=lambda: self.folder.result(BASE_RUN),
            seeds=seeds,
        )

    def budget_used_up(self) -> tuple[SeedSource, SeedsEnd]:
        """Finish every run that is given out; the seeds must end because their budget is used
        up."""
        source = self.source()
        while (run_id := source.next_run()) is not None:
            self.finish(run_id)
        end = self.folder.seeds_end()
        assert end is not None
        assert end.state == "budget used up"
        return source, end


FIRST_PASS = ["3-0", "3-1", "4-0", "4-1", "5-0", "5-1"]
CLOSE = {3: 0.9, 4: 0.5, 5: 0.53}


def test_the_first_pass_runs_all_and_further_seeds_follow_the_scores(tmp_path: Path) -> None:
    world = World(tmp_path, CLOSE, tolerance=0.0)
    source = world.source()
    assert source.upcoming(9) == FIRST_PASS, "nothing more before they have ended"
    assert [source.next_run() for _ in range(7)] == [*FIRST_PASS, None]
    for run_id in FIRST_PASS:
        world.finish(run_id)
    further = [source.next_run() for _ in range(2)]
    assert {run_id.split("-")[0] for run_id in further if run_id} <= {"4", "5"}, (
        "two at once, without waiting"
    )
    while not source.finished:
        for run_id in [r for r in source.given() if world.folder.result(r) is None]:
            world.finish(run_id)
        source.next_run()
    end = world.folder.seeds_end()
    assert end is not None
    assert not {"3-2", "3-3", "3-4"} & set(source.given()), (
        "a configuration that is far above gets no seed"
    )
    assert source.handed_out == len(source.given()) == len(FIRST_PASS) + end.further_runs
    assert set(end.left_out) == {t.run_id for t in world.trials} - set(source.given())
    counted = counts(world.folder)
    assert (counted.finished, counted.pending) == (len(source.given()), 0)
    assert counted.skipped == len(end.left_out)
    assert counted.to_json()["seeds"]["state"] == end.state  # type: ignore[index]
    assert points_table(world.folder)["status"].tolist().count("skipped") == len(end.left_out)
    assert end.sentence().startswith(
        f"The further seeds ended as {end.state!r} after {end.further_runs} runs, "
    )


def test_a_clear_first_pass_is_enough(tmp_path: Path) -> None:
    world = World(tmp_path, {3: 0.9, 4: 0.1, 5: 0.6})
    source = world.source()
    for run_id in source.upcoming(9):
        world.finish(run_id)
    assert [source.next_run() for _ in range(7)][-1] is None
    assert source.finished
    end = world.folder.seeds_end()
    assert end is not None
    assert (end.state, end.further_runs, end.cost_share) == ("decided", 0, 0.0)


def test_the_seeds_end_when_no_run_is_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was in progress at a decision can overturn it. Then the seeds go on."""
    world = World(tmp_path, CLOSE)
    source = world.source()
    for run_id in source.upcoming(9):
        world.finish(run_id)
    more = NextSeed(configuration=CANDIDATES[1])
    decided = NextSeed(state="decided")
    answers = [more, more, decided, more, decided, decided]
    monkeypatch.setattr(SeedSource, "_next", lambda self: answers.pop(0))
    assert [source.next_run() for _ in range(8)] == [*FIRST_PASS, "4-2", "4-3"]
    world.finish("4-2")
    assert source.next_run() is None
    assert source.next_run() is None
    assert not source.finished
    assert len(answers) == 3, "nobody asks again before there is a new result"
    world.finish("4-3")
    assert source.next_run() == "4-4", "the decision is overturned"
    assert source.next_run() is None
    assert not source.finished
    world.finish("4-4")
    assert source.next_run() is None
    assert source.finished
    end = world.folder.seeds_end()
    assert end is not None
    assert (end.state, end.further_runs, answers) == ("decided", 3, [])


def test_the_cost_stays_within_its_share(tmp_path: Path) -> None:
    world = World(
        tmp_path, {3: 0.50, 4: 0.50, 5: 0.50}, noise=0.2, tolerance=0.0, max_cost_share=0.6
    )
    source, end = world.budget_used_up()
    first, further = (
        sum(int(r.split("-")[0]) for r in ids) for ids in (FIRST_PASS, source.given()[6:])
    )
    assert end.cost_share == pytest.approx(further / first)
    assert 0.6 - 3 / first < end.cost_share <= 0.6


def test_a_resume_starts_with_begun_runs_and_counts_them(tmp_path: Path) -> None:
    world = World(tmp_path, CLOSE, tolerance=0.0)
    for run_id in [*FIRST_PASS[1:], "4-2"]:
        world.finish(run_id)
    world.folder.trial("5-2").mkdir()  # a run that was being trained when the driver was killed
    source = world.source()
    assert [source.next_run() for _ in range(3)] == ["3-0", "5-2", None]
    assert set(source.given()) == {*FIRST_PASS, "4-2", "5-2"}


def test_a_first_pass_without_a_finished_run_ends(tmp_path: Path) -> None:
    world = World(tmp_path, CLOSE)
    source = world.source()
    for run_id in source.upcoming(9):
        world.commit(run_id, 0.0, status="failed")
    assert [source.next_run() for _ in range(7)][-1] is None
    end = world.folder.seeds_end()
    assert end is not None
    assert (end.state, end.further_runs) == ("no selection", 0)


def test_without_its_extension_no_step_precedes_seeds_and_finer_values_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New runs would measure the score as the spec has it, beside the finer values."""
    world = World(tmp_path, CLOSE)
    context = SweepContext(
        spec=world.spec, folder=world.folder, facts=world.folder.plan().facts, weight_hash=""
    )
    monkeypatch.setattr("raydp.plugins.registries._entries", lambda kind: {})
    before = before_further_seeds(context, cast("Task", None))
    assert (before.can_begin(), before.is_open(), before.sentence("vmr_exact")) == (
        False,
        False,
        None,
    )
    assert before.in_training(world.spec) is world.spec
    begun = world.folder.path / "scores" / "vmr_exact"
    begun.mkdir(parents=True)
    write_json(begun / "measurement.json", {})
    with pytest.raises(ValueError, match="the finer measurement scores/vmr_exact") as error:
        before_further_seeds(context, cast("Task", None))
    assert "the extension that provides 'finer_measurement', which is not" in str(error.value)
    assert str(error.value).endswith("Install raydp-tune whole.")


def test_select_takes_the_sweeps_own_precision(tmp_path: Path) -> None:
    world = World(tmp_path, {3: 0.5, 4: 0.5, 5: 0.5}, noise=0.001, tolerance=0.0, confidence=0.8)
    for run_id in FIRST_PASS:
        world.finish(run_id)
    decision = select(world.folder.path).decision
    assert decision is not None
    assert (decision.confidence, decision.tolerance, decision.state) == (0.8, 0.0, "undecided")
    plain = select_from(PointsSource(folder=world.folder).points()).decision
    assert plain is not None
    assert (plain.confidence, plain.tolerance, plain.state) == (0.95, 0.1, "equivalent")


def test_the_card_says_that_seeds_were_adaptive(tmp_path: Path) -> None:
    world = World(tmp_path, CLOSE)
    tuned = tuning_of(world.spec, world.trials)
    assert tuned["adaptive_seeds"]["at_most"] == 5
    assert tuned["seeds"] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("seeds", "changes", "message"),
    [
        ({"first": 1}, {}, "seeds.first must be greater than or equal to 2, got 1"),
        ({"first": 4, "at_most": 4}, {}, "at_most must be more than first 4, got 4"),
        ({"frist": 2}, {}, "seeds.frist: the key 'frist' is unknown. Did you mean 'first'?"),
        ({"max_cost_share": 0}, {}, "seeds.max_cost_share must be greater than 0, got 0"),
        ({"confidence": 1}, {}, "seeds.confidence must be less than 1, got 1"),
        ({"until": "bored"}, {}, "seeds.until must be 'decided', got 'bored'"),
        ({}, {"select": {"score": "vmr_exact", "rule": "procedure"}}, "seeds must be a list with select.rule"),
        ({}, {"space": {**SPACE, "search": {"name": "random", "num_configurations": 2}}},
         "seeds must be a list with space.search 'random'"),
    ],
)  # fmt: skip
def test_a_wrong_section_is_refused_with_a_remedy(
    tmp_path: Path, seeds: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    data = {**small_spec(tmp_path, space=SPACE), **changes}
    with pytest.raises(ValueError, match="seeds") as error:
        load_spec({**data, "seeds": {**SEEDS, **seeds}})
    assert message in str(error.value)


def test_the_plan_counts_the_first_pass(tmp_path: Path) -> None:
    data = small_spec(tmp_path, space=SPACE)
    adaptive, fixed = plan({**data, "seeds": SEEDS}), plan({**data, "seeds": [0, 1]})
    assert adaptive["seeds"].tolist() == [2, 2, 2]
    assert adaptive["cost_tokens"].tolist() == fixed["cost_tokens"].tolist()
    assert adaptive.attrs["note"].startswith(
        "adaptive seeds: 2 of every configuration, and then up to 5 of those that"
    )


MORE_SPACE = {"batch_size": [64], "num_steps": [2, 3], "learning_rate": [0.01]}


@pytest.mark.slow
def test_a_resume_with_more_seeds_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a kill between the writing of the spec and of the plan. No run loses its noise."""
    seeds = {"first": 2, "at_most": 3, "max_cost_share": 0.1}
    data = small_spec(
        tmp_path,
        space=MORE_SPACE,
        seeds=seeds,
        select={"score": "vmr_exact", "min_gain_share": None},
    )
    trained = TrainedSpec(load_spec(data), runs=4)
    end = SeedsEnd(
        state="budget used up", reason=None, further_runs=0, cost_share=0.0, left_out=("a", "b")
    )
    before = trained.folder.plan()
    left: list[list[str]] = []

    def interrupted(trainings: list[Training], *_: object, **__: object) -> None:
        (training,) = trainings
        left.append([run.run_id for run in training.left])
        raise KeyboardInterrupt

    def killed(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr("raydp.sweep.driver.train", interrupted)
    more = {**data, "seeds": {**seeds, "at_most": 5, "max_cost_share": 3.0, "confidence": 0.9}}
    trained.folder.seeds_end.write(end)
    with monkeypatch.context() as patch:
        patch.setattr("raydp.sweep.store.documents.write_json", killed)
        with pytest.raises(SystemExit):
            Sweep(more).run(resume=True)
    assert trained.folder.plan() == before
    with pytest.raises(ValueError, match="seeds must hold the"):
        Sweep(data).run(resume=True)
    with pytest.raises(Interrupted):
        Sweep(more).run(resume=True)
    after = trained.folder.plan()
    added = {t.run_id for t in after.trials} - {t.run_id for t in before.trials}
    assert sorted((t.num_steps, t.seed) for t in after.trials if t.run_id in added) == [
        (2, 3),
        (2, 4),
        (3, 3),
        (3, 4),
    ]
    assert {t.run_id: t for t in before.trials}.items() <= {
        t.run_id: t for t in after.trials
    }.items()
    assert after.privacy.items() >= before.privacy.items()
    assert len(after.privacy) == len(after.trials) == 10
    assert len({(t.num_steps, t.noise_multiplier) for t in after.trials}) == 2
    assert trained.folder.seeds_end() is None
    assert len(left[0]) == 6, "the results that there are stay"
    trained.folder.seeds_end.write(end)
    with pytest.raises(Interrupted):
        Sweep(more).run(resume=True)
    assert trained.folder.seeds_end() == end, "nothing was added"


def test_seeds_cannot_be_taken_back(tmp_path: Path) -> None:
    world = World(tmp_path, CLOSE)
    spec = world.spec.model_dump(mode="json")
    for seeds in ({**spec["seeds"], "at_most": 4}, [0, 1, 2, 3, 4, 5], [0]):
        with pytest.raises(ValueError, match="seeds must hold the"):
            SweepFolder.resume(load_spec({**spec, "seeds": seeds}))


@pytest.mark.parametrize(
    ("scores", "limits", "advice"),
    [
        (
            CLOSE,
            {"max_cost_share": 0.1},
            "To go on, raise seeds.max_cost_share (now 0.1), and run it again with --resume.",
        ),
        (
            CLOSE,
            {"max_cost_share": 50.0, "at_most": 3},
            "To go on, raise seeds.at_most (now 3), and run it again with --resume.",
        ),
        ({3: 0.5, 4: 0.5, 5: 0.5}, {"max_cost_share": 0.1}, None),
    ],
    ids=["cost", "seeds", "further seeds would not decide"],
)
def test_a_budget_that_is_used_up_says_how_to_go_on(
    tmp_path: Path, scores: dict[int, float], limits: dict[str, Any], advice: str | None
) -> None:
    world = World(tmp_path, scores, noise=0.1, tolerance=0.0, **limits)
    _, end = world.budget_used_up()
    if advice is None:
        assert "To go on" not in str(end.reason)
    else:
        assert advice in str(end.reason)


@pytest.mark.daily("raydp/sweep/engine")
def test_a_sweep_that_was_broken_off_goes_on_with_its_seeds(
    raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    """Two runs were trained before, and Ray trains the rest. tests/sweep/test_sweep_kills.py has
    the kill itself. A quiet sweep says nothing on stderr."""
    space = {"batch_size": [64], "num_steps": [10, 12], "learning_rate": [0.01]}
    seeds = {"first": 2, "at_most": 6, "tolerance": 0.0, "max_cost_share": 1.5}
    spec = small_spec(
        tmp_path, space=space, seeds=seeds, select={"score": "logprob", "min_gain_share": None}
    )
    spec["scores"] = [{"name": "logprob"}]
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    folder = TrainedSpec(load_spec(spec), runs=2).folder.path
    finished = {path: path.stat().st_mtime_ns for path in results(folder)}
    assert len(finished) == 2
    assert not (folder / "seeds.json").exists()

    answer = raydp("sweep", "spec.yaml", "--resume", "--json", "--quiet")
    assert (answer.code, answer.err) == (0, "")
    document = answer.json()
    assert all(path.stat().st_mtime_ns == time_ns for path, time_ns in finished.items()), (
        "nothing finished ran twice"
    )
    ended = document["counts"]["seeds"]
    assert document["counts"]["finished"] == 4 + ended["further_runs"]
    assert document["counts"]["pending"] == document["counts"]["failed"] == 0
    assert ended["state"] in set(get_args(EndState)) - {"no selection"}
    assert runs_in(spec["tracking"]["uri"])["children"] == document["counts"]["finished"]
    page = html.unescape((folder / "report.html").read_text())
    assert f"The further seeds ended as {ended['state']!r}" in page
