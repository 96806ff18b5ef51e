"""What a private selection draws, and which run it takes: all without training."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydp.extensions.private_selection.draws import draw
from raydp.extensions.private_selection.num_runs import (
    BinomialRuns,
    PoissonRuns,
    TruncatedNegativeBinomial,
)
from raydp.extensions.private_selection.record import PrivateSelectionRecord
from raydp.extensions.private_selection.release import (
    decide,
    decided,
    release_best,
    require_whole_model,
)
from raydp.extensions.private_selection.section import num_runs_of
from raydp.extensions.private_selection.tuning import BOUNDS, tuned_epsilon
from raydp.privacy import PoissonGaussian
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.api import select
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.planning.plan import SweepPlan, drawn, make_plan, plan_to_keep
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.points import counts
from raydp.sweep.store.results import RunResult
from raydp.tasks.task import TaskFacts
from raydp.training.noise.stream import TEST_KEY, KeyedStream, new_key
from tests.builders.specs import small_spec
from tests.marks import slow_after
from tests.sweep.test_folder import damage, folder_of, saved

PRIVACY = {
    "target_epsilon": 8,
    "accountant": "rdp",
    "noise_key": "test",
    "tuning": "private_selection",
}
SPACE = {"points": [[32, 3, 0.01], [32, 3, 0.02], [32, 6, 0.01]]}
FACTS = TaskFacts(
    num_examples=2000,
    num_units=2000,
    privacy_unit="mail",
    content_hash="c0ffee",
    num_tokens=9000,
    utility_is_public=True,
)


def spec_of(folder: Path, **num_runs: Any) -> SweepSpec:
    privacy = {**PRIVACY, "num_runs": {"mean": 4, **num_runs}}
    return load_spec(
        small_spec(folder, privacy=privacy, space=SPACE, select={"score": "vmr_exact"})
    )


def plan_of(spec: SweepSpec, key: bytes = TEST_KEY) -> tuple[SweepPlan, SweepPlan]:
    """Before and after the draw."""
    plan = make_plan(spec, FACTS, "weights")
    return plan, drawn(plan, spec, "weights", key)


def key_number(k: int) -> bytes:
    return k.to_bytes(32, "big")


@pytest.mark.parametrize(
    ("num_runs", "smallest"),
    [(TruncatedNegativeBinomial.with_mean(5, eta=1.0), 1), (PoissonRuns(mean=3.0), 0)],
    ids=["geometric", "poisson"],
)
def test_the_number_of_runs_and_their_configurations_follow_their_distributions(
    num_runs: Any, smallest: int
) -> None:
    """4,000 keys. A share p has a standard error of sqrt(p (1 - p) / N); five of them."""
    draws = [draw(num_runs, 3, key_number(k)) for k in range(4000)]
    numbers = Counter(map(len, draws))
    assert min(numbers) == smallest
    for k in range(8):
        p = num_runs.probability(k)
        assert numbers[k] / 4000 == pytest.approx(p, abs=5 * np.sqrt(p * (1 - p) / 4000) + 1e-12)
    positions = Counter(position for runs in draws for position, _ in runs)
    total = positions.total()
    for position in range(3):
        assert positions[position] / total == pytest.approx(1 / 3, abs=5 * np.sqrt(2 / 9 / total))
    again = [runs[0][0] == runs[1][0] for runs in draws if len(runs) > 1]
    assert np.mean(again) == pytest.approx(1 / 3, abs=5 * np.sqrt(2 / 9 / len(again))), (
        "with replacement"
    )


def test_the_draw_is_the_keys_and_nobody_elses(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    num_runs = num_runs_of(spec)
    assert draw(num_runs, 3, key_number(1)) == draw(num_runs, 3, key_number(1))
    assert len({str(draw(num_runs, 3, new_key())) for _ in range(20)}) == 20
    _, one = plan_of(spec)
    other = drawn(
        make_plan(spec, replace(FACTS, content_hash="other data"), "weights"),
        spec,
        "weights",
        TEST_KEY,
    )
    configurations = [
        [(t.batch_size, t.num_steps, t.learning_rate, t.seed) for t in p.trials]
        for p in (one, other)
    ]
    assert configurations[0] == configurations[1], "independent of the data"


@pytest.mark.slow
def test_a_configuration_drawn_twice_is_two_runs_with_noise_and_seed_of_their_own(
    tmp_path: Path,
) -> None:
    spec = spec_of(tmp_path, mean=30)
    plan, after = plan_of(spec)
    assert len(after.trials) > len(plan.trials) == 3
    assert (
        len({t.run_id for t in after.trials})
        == len({t.seed for t in after.trials})
        == len(after.trials)
    )
    assert max(Counter((t.num_steps, t.learning_rate) for t in after.trials).values()) > 1
    noise = [
        KeyedStream(key=TEST_KEY, run_id=t.run_id).normal(8, step=0, purpose="noise")
        for t in after.trials
    ]
    assert len({x.tobytes() for x in noise}) == len(noise)


def test_the_label_of_a_run_does_not_reveal_its_place_in_the_order() -> None:
    """The label is published: were it larger for later runs, it would tell of their number.

    In a random order each of n places is as likely to have the largest: the largest is last in 1/n
    of the draws.
    """
    num_runs = TruncatedNegativeBinomial(eta=1.0, gamma=0.2)
    draws = [draw(num_runs, 3, key_number(k)) for k in range(4000)]
    three = [[label for _, label in runs[:3]] for runs in draws if len(runs) >= 3]
    last = np.mean([labels[2] == max(labels) for labels in three])
    assert last == pytest.approx(1 / 3, abs=5 * np.sqrt(2 / 9 / len(three)))


@pytest.mark.parametrize("accountant", slow_after(1, ["rdp", "pld"]))
def test_every_run_has_the_noise_at_which_the_choice_meets_the_target(
    tmp_path: Path, accountant: str
) -> None:
    spec = spec_of(tmp_path)
    spec = spec.model_copy(
        update={"privacy": spec.privacy.model_copy(update={"accountant": accountant})}
    )
    plan, after = plan_of(spec)
    events = [
        PoissonGaussian(
            sample_rate=32 / 2000, noise_multiplier=t.noise_multiplier, num_steps=t.num_steps
        )
        for t in plan.trials
    ]
    epsilon = tuned_epsilon(events, num_runs_of(spec), plan.delta, accountant)
    assert 0.998 * 8 < epsilon <= 8
    noise = {t.num_steps: t.noise_multiplier for t in plan.trials}
    for trial in after.trials:
        record = after.privacy[trial.run_id]
        assert trial.noise_multiplier == noise[trial.num_steps]
        assert record.accounted.accountant == accountant
        assert record.choice is not None
        assert record.choice.bound == BOUNDS[accountant]
        assert record.accounted.epsilon == epsilon > record.choice.single_run_epsilon
    rows = plan.rows()
    assert [row["epsilon"] for row in rows] == [epsilon] * 3
    assert "a truncated negative binomial distribution with mean 4 and η = 1, each" in str(
        plan.selection
    )
    assert "uniformly from these 3;" in str(plan.selection)


@pytest.mark.slow
def test_a_binomial_number_of_runs_is_drawn_and_recorded(tmp_path: Path) -> None:
    num_runs = {"distribution": "binomial", "mean": 4, "trials": 8}
    privacy = {**PRIVACY, "accountant": "pld", "num_runs": num_runs}
    spec = load_spec(
        small_spec(tmp_path, privacy=privacy, space=SPACE, select={"score": "vmr_exact"})
    )
    assert num_runs_of(spec) == BinomialRuns(mean=4, trials=8)
    assert spec.privacy.model_dump()["num_runs"] == num_runs
    plan, after = plan_of(spec)
    assert "a binomial distribution with mean 4 of at most 8 runs, each" in str(plan.selection)
    record = next(iter(plan.privacy.values())).choice
    assert record is not None
    assert (record.eta, record.trials) == (None, 8)
    assert PrivateSelectionRecord.from_json(record.to_json()) == record
    assert len(after.trials) <= 8


def test_private_held_out_data_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"task\.name must be a task whose utility rests on public data .*heldout_is_pub",
    ):
        make_plan(spec_of(tmp_path), replace(FACTS, utility_is_public=False), "weights")


def started(tmp_path: Path, **num_runs: Any) -> tuple[SweepSpec, SweepFolder, list[str]]:
    spec = spec_of(tmp_path, **num_runs)
    plan, _ = plan_of(spec)
    folder = SweepFolder.create(
        spec, lambda key: plan_to_keep(drawn(plan, spec, "weights", key), "0" * 16)
    )
    return spec, folder, [t.run_id for t in folder.plan().trials]


def finished(run_id: str, loss: float) -> RunResult:
    return RunResult(run_id=run_id, status="finished", utility_loss=loss)


def failed(run_id: str) -> RunResult:
    return RunResult(run_id=run_id, status="failed", reason="diverged")


def test_the_first_of_the_best_is_chosen_once_and_for_all(tmp_path: Path) -> None:
    _, folder, runs = started(tmp_path, mean=30)
    losses = [2.5, None, 2.25, 2.25, *[2.75] * (len(runs) - 4)]
    for run_id, loss in zip(runs, losses, strict=True):
        folder.commit(finished(run_id, loss) if loss is not None else failed(run_id))
    assert not decided(folder)
    assert decide(folder) == runs[2]
    folder.commit(finished(runs[1], 1.0))
    assert decided(folder)
    assert decide(folder) == runs[2], "a run that succeeds later changes nothing"


def test_nothing_is_chosen_before_every_run_has_ended(tmp_path: Path) -> None:
    _, folder, runs = started(tmp_path, mean=30)
    folder.commit(finished(runs[0], 1.0))
    with pytest.raises(AssertionError, match="when every run has ended"):
        decide(folder)
    with pytest.raises(ValueError, match="must be a private selection that has released a model"):
        select(folder.path)


def test_if_every_run_failed_nothing_is_released(tmp_path: Path) -> None:
    spec, folder, runs = started(tmp_path)
    for run_id in runs:
        folder.commit(failed(run_id))
    ending = release_best(
        SweepContext(spec=spec, folder=folder, facts=FACTS, weight_hash="weights")
    )
    assert (ending.selected, ending.report) == (None, None)
    assert "every run failed" in str(ending.reason)
    assert not (tmp_path / "mlflow.db").exists()


@pytest.mark.slow
def test_no_run_at_all_is_an_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test key's uniform is fixed; a key under which Poisson(1.5) gives 0 has a chance of
    0.22."""
    poisson = PoissonRuns(mean=1.5)
    empty = next(key_number(k) for k in range(100) if not draw(poisson, 3, key_number(k)))
    monkeypatch.setattr("raydp.training.noise.stream.TEST_KEY", empty)
    spec, folder, runs = started(tmp_path, distribution="poisson", mean=1.5)
    assert runs == []
    ending = release_best(
        SweepContext(spec=spec, folder=folder, facts=FACTS, weight_hash="weights")
    )
    assert "drawn as 0" in str(ending.reason)
    assert counts(folder).runs == 0
    assert not (tmp_path / "mlflow.db").exists()
    with pytest.raises(
        ValueError, match="must hold a run, got 'small', whose number of runs was drawn as 0"
    ):
        select(folder.path)


@pytest.mark.parametrize("kind", ["truncated", "bit-flipped", "lost"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_chosen_model_that_was_damaged_is_not_released(
    tmp_path: Path, kind: str, number: int
) -> None:
    folder = folder_of(tmp_path)
    folder.commit(saved(folder))
    require_whole_model(folder, "run")
    damage(folder.model("run") / f"model-{number}.safetensors", kind)
    with pytest.raises(ValueError, match=r"^SWEEP must keep the weights of its chosen run"):
        require_whole_model(folder, "run")


def test_a_private_selection_ends_nothing_early(tmp_path: Path) -> None:
    num_runs = {"distribution": "poisson", "mean": 2}
    privacy = {
        "target_epsilon": 8,
        "accountant": "rdp",
        "tuning": "private_selection",
        "num_runs": num_runs,
    }
    spec = small_spec(tmp_path, privacy=privacy, stopping={}, select={"score": "vmr_exact"})
    with pytest.raises(ValueError, match="stopping must be left out"):
        load_spec(spec)


def test_private_selection_draws_from_the_whole_space(tmp_path: Path) -> None:
    privacy = {"target_epsilon": 8, "accountant": "rdp", "tuning": "private_selection"}
    data = small_spec(
        tmp_path,
        space={
            **small_spec(tmp_path)["space"],
            "search": {"name": "random", "num_configurations": 1},
        },
        privacy=privacy,
        select={"score": "vmr_exact"},
    )
    with pytest.raises(
        ValueError, match=r"space.search must be left out with privacy.tuning private_selection"
    ):
        load_spec(data)


def test_a_private_selection_has_a_list_of_seeds(tmp_path: Path) -> None:
    privacy = {"target_epsilon": 8, "tuning": "private_selection", "accountant": "rdp"}
    spec = small_spec(tmp_path, privacy=privacy, select={"score": "vmr_exact"}, seeds={"first": 2})
    with pytest.raises(ValueError, match="seeds must be"):
        load_spec(spec)
