"""Sweeps on the same data under one budget: what is entered, refused, given back and restored."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pandas as pd
import pytest
import yaml

from raydp import Sweep, find_models
from raydp.extensions.ledger.entries import accounts
from raydp.extensions.ledger.ledger import ReleaseLedger
from raydp.extensions.ledger.releases import Releases, RenyiBudget
from raydp.extensions.ledger.sweep_budget import SweepBudget, labels_of
from raydp.spec.reading import load_spec
from raydp.sweep import driver
from raydp.sweep.store.folder import SweepFolder
from raydp.tasks.task import TaskFacts
from raydp.tracking import NotDeliveredError
from raydp.tracking.store import open_store
from tests.builders.specs import small_spec
from tests.conftest import Answer
from tests.sweep.test_further_seeds import CLOSE, FIRST_PASS, World
from tests.sweep.without_ray import train_without_ray

Raydp = Callable[..., Answer]
pytestmark = pytest.mark.slow
TWO_RUNS = {"batch_size": [32], "num_steps": [2], "learning_rate": [0.01, 0.02]}


def spec_of(
    folder: Path, name: str, epsilon: float | None = None, **changes: Any
) -> dict[str, Any]:
    """The spec of a sweep of two runs at ε = 8, with a budget if it has an ε."""
    spec = small_spec(folder, **{"name": name, "space": TWO_RUNS, **changes})
    if epsilon is not None:
        spec["privacy"] = {**spec["privacy"], "budget": {"epsilon": epsilon, "delta": 1e-3}}
    return spec


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    train_without_ray(monkeypatch)


def ledger_of(folder: Path) -> ReleaseLedger:
    return ReleaseLedger.read(open_store(f"sqlite:///{folder}/mlflow.db"))


def models(folder: Path) -> dict[str, tuple[int, str]]:
    """The models that each sweep counts for, and the kind of its newest entry."""
    (account,) = accounts(ledger_of(folder).entries)
    return {s.newest.sweep: (s.releases.num_models, s.newest.kind) for s in account.sweeps()}


def needed(models: Releases) -> float:
    """The smallest budget, to 2 %, that allows the models."""
    epsilon = 1.0
    while models.spent(RenyiBudget(epsilon=epsilon, delta=1e-3)) > epsilon:
        epsilon *= 1.02
    return epsilon


def of_runs(models: Releases, times: int) -> Releases:
    """The models of several equal sweeps."""
    named = ((f"{k}/{name}", cost) for k in range(times) for name, cost in models.models.items())
    return Releases(models=dict(named))


def of_first(folder: Path) -> Releases:
    """What the one sweep in the ledger has released."""
    (account,) = accounts(ledger_of(folder).entries)
    return account.releases()


def run(spec: dict[str, Any], *, resume: bool = False) -> None:
    Sweep(spec).run(resume=resume)


def test_a_sweep_that_would_overdraw_trains_nothing_and_its_name_stays_free(tmp_path: Path) -> None:
    run(spec_of(tmp_path, "first"))
    assert models(tmp_path) == {"first": (2, "released")}
    one = of_first(tmp_path)
    enough = needed(of_runs(one, 2))
    with pytest.raises(
        ValueError, match=r"must be larger, got .* where ε = .* would be spent"
    ) as error:
        run(spec_of(tmp_path, "second", (needed(one) * enough) ** 0.5))
    assert str(error.value).startswith("privacy.budget.epsilon")
    assert "This sweep counts with 2 models." in str(error.value)
    assert "Others on these data (first) count with 2 models." in str(error.value)
    assert not (tmp_path / "runs/second").exists()
    assert models(tmp_path) == {"first": (2, "released"), "second": (0, "released")}
    run(spec_of(tmp_path, "second", enough))
    (account,) = accounts(ledger_of(tmp_path).entries)
    assert account.releases().num_models == 4, "the refused start counts for nothing"


def test_a_deletion_gives_nothing_back_that_was_released(raydp: Raydp, tmp_path: Path) -> None:
    run(spec_of(tmp_path, "first"))
    assert raydp("delete", tmp_path / "runs/first", "--yes").code == 0
    assert models(tmp_path) == {"first": (2, "released")}
    with pytest.raises(ValueError, match=r"privacy\.budget\.epsilon must be larger"):
        run(spec_of(tmp_path, "second", needed(of_first(tmp_path))))


def test_a_deletion_gives_back_what_an_interrupted_sweep_did_not_release(
    raydp: Raydp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    def interrupt(self: SweepFolder, *args: object, **options: object) -> Any:
        result = commit(self, *args, **options)
        ended.append(1)
        if len(ended) == 2:
            raise KeyboardInterrupt
        return result

    commit = SweepFolder.set_delivery
    with monkeypatch.context() as patch:
        patch.setattr(SweepFolder, "set_delivery", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(spec_of(tmp_path, "first", 60))
    folder = SweepFolder.open(tmp_path / "runs/first")
    results = [folder.result(t.run_id) for t in folder.plan().trials]
    held = sum(result is not None and result.finished for result in results)
    assert held >= sum(folder.model_uri(t.run_id) is not None for t in folder.plan().trials)
    assert models(tmp_path) == {"first": (2, "planned")}, "it may go on"
    assert raydp("delete", folder.path, "--yes").code == 0
    assert models(tmp_path) == {"first": (held, "released")}


def test_a_folder_that_was_emptied_gives_nothing_back(
    raydp: Raydp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **options: object) -> Any:
        raise KeyboardInterrupt

    run(spec_of(tmp_path, "first"))
    folder = SweepFolder.open(tmp_path / "runs/first")
    shutil.rmtree(folder.path / "trials")
    (folder.path / "trials").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(driver, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(spec_of(tmp_path, "first"), resume=True)
    assert models(tmp_path)["first"][0] == 2
    assert raydp("delete", folder.path, "--yes").code == 0
    assert models(tmp_path)["first"][0] == 2


def test_a_file_that_is_gone_has_no_label(tmp_path: Path) -> None:
    spec = load_spec(
        spec_of(tmp_path, "gone", task={"name": "text", "path": str(tmp_path / "x.jsonl")})
    )
    facts = TaskFacts(num_examples=1, num_units=1, privacy_unit="", content_hash="1", num_tokens=1)
    assert labels_of(spec, facts) == {"task:1"}


def test_a_start_that_fails_after_its_entry_withdraws_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: SweepBudget, further: Any = None) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(SweepBudget, "_refusal", broken)
    with pytest.raises(RuntimeError, match="a fault"):
        run(spec_of(tmp_path, "first", 60))
    assert models(tmp_path) == {"first": (0, "released")}


def test_a_larger_budget_is_no_other_sweep(tmp_path: Path) -> None:
    run(spec_of(tmp_path, "first", 60))
    before = len(ledger_of(tmp_path).entries)
    run(spec_of(tmp_path, "first", 70), resume=True)
    assert len(ledger_of(tmp_path).entries) == before, "nothing new is released"
    with pytest.raises(ValueError, match=r"privacy\.budget\.epsilon must be larger, got 1 "):
        run(spec_of(tmp_path, "first", 1), resume=True)
    assert models(tmp_path) == {"first": (2, "released")}


class TwoRuns:
    """A budget that allows two further runs."""

    def __init__(self) -> None:
        self.left = 2

    def refused(self, run_ids: Sequence[str]) -> str | None:
        self.left -= len(run_ids)
        return None if self.left >= 0 else "The budget is used up."


def test_further_seeds_end_where_the_budget_ends(tmp_path: Path) -> None:
    world = World(tmp_path, CLOSE, tolerance=0.0)
    source, ran = world.source(), list[str]()
    source.budget = TwoRuns()
    while (run_id := source.next_run()) is not None:
        world.finish(run_id)
        ran.append(run_id)
    end = world.folder.seeds_end()
    assert end is not None
    assert (end.state, end.reason) == ("budget used up", "The budget is used up.")
    assert (end.further_runs, len(ran)) == (2, len(FIRST_PASS) + 2)


def test_a_further_run_is_entered_or_refused_and_then_counts_for_nothing(tmp_path: Path) -> None:
    seeds = {"seeds": {"first": 2, "at_most": 4, "max_cost_share": 3.0}}
    run(spec_of(tmp_path, "first", **seeds))
    folder = SweepFolder.open(tmp_path / "runs/first")
    assert models(tmp_path) == {"first": (4, "released")}
    more = [t.run_id for t in folder.plan().trials if folder.model_uri(t.run_id) is None]
    facts, own = folder.plan().facts, needed(of_first(tmp_path))
    small = SweepBudget.of(load_spec(spec_of(tmp_path, "first", own, **seeds)), folder, facts)
    assert small.refused(more).startswith(
        "No further run may be released: privacy.budget.epsilon must be larger"
    )
    assert models(tmp_path)["first"][0] == 4
    large = SweepBudget.of(load_spec(spec_of(tmp_path, "first", 500, **seeds)), folder, facts)
    assert large.refused(more[:1]) is None
    assert models(tmp_path)["first"] == (5, "further")


def test_runs_that_were_given_out_while_the_store_was_away_are_entered_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = {"seeds": {"first": 2, "at_most": 4, "max_cost_share": 3.0}}
    run(spec_of(tmp_path, "first", **seeds))
    folder = SweepFolder.open(tmp_path / "runs/first")
    more = [t.run_id for t in folder.plan().trials if folder.model_uri(t.run_id) is None]
    budget = SweepBudget.of(
        load_spec(spec_of(tmp_path, "first", **seeds)), folder, folder.plan().facts
    )

    def away(self: SweepBudget) -> Any:
        raise NotDeliveredError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(SweepBudget, "restored", away)
        assert budget.refused(more[:1]) is None
    assert models(tmp_path)["first"][0] == 4
    assert budget.refused(more[1:2]) is None
    assert models(tmp_path)["first"][0] == 6


def test_a_study_ends_where_the_budget_ends(
    raydp: Raydp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the limit amid the scores the answer is in doubt, and asks for a further run."""
    asked = list[str]()

    def refused(self: SweepBudget, run_ids: Sequence[str]) -> str | None:
        asked.extend(run_ids)
        return "no more"

    monkeypatch.setattr(SweepBudget, "refused", refused)
    content = small_spec(
        tmp_path,
        scores=[{"name": "logprob"}],
        select={"score": "logprob", "min_gain_share": None},
        seeds={"first": 2, "at_most": 6, "max_cost_share": 0.5},
    )
    content["axes"] = {"privacy.target_epsilon": [1, 64]}

    def reasons(name: str, limit: float) -> tuple[list[str], pd.DataFrame]:
        study = {**content, "name": name, "limits": {"max_leak": limit}}
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
        answer = raydp("study", "study.yaml", "--json")
        assert answer.code == 0, answer.err
        points = Path(json.loads(answer.out)["points"])
        ends = [json.loads(path.read_text()) for path in points.parent.glob("*/seeds.json")]
        return [end["reason"] for end in ends], pd.read_csv(points)

    _, points = reasons("clear", 1e6)
    assert not asked
    told, _ = reasons("doubt", float(points["score"].median()))
    assert len(told) == 2
    assert "no more" in told
    assert 1 <= len(asked) <= 2, "a sweep that was refused is not asked for another run"


def test_of_two_sweeps_that_start_at_once_not_both_take_what_is_left(tmp_path: Path) -> None:
    """Each alone fits the budget, both together do not."""
    run(spec_of(tmp_path, "base"))
    facts = SweepFolder.open(tmp_path / "runs/base").plan().facts
    alone = of_first(tmp_path)
    two, three = (needed(of_runs(alone, times)) for times in (2, 3))
    limit = (two * three) ** 0.5
    for attempt in range(5):
        barrier = Barrier(2)
        held = list[tuple[float, float]]()
        """From when to when each sweep had what is left."""

        def begin(name: str, barrier: Barrier = barrier, held: list[Any] = held) -> None:
            spec = load_spec(spec_of(tmp_path, name, limit))
            source = SweepFolder.open(tmp_path / "runs/base").path
            folder = tmp_path / "runs" / name
            (folder / "trials").mkdir(parents=True)
            for file in ("spec.yaml", "sweep.key"):
                (folder / file).write_bytes((source / file).read_bytes())
            plan = json.loads((source / "plan.json").read_text())
            (folder / "plan.json").write_text(json.dumps({**plan, "sweep_id": f"{name:0>16}"}))
            budget = SweepBudget.of(spec, SweepFolder.open(folder), facts)
            barrier.wait()
            try:
                budget.begin()
            except ValueError:
                return
            begun = time.monotonic()
            time.sleep(0.05)
            held.append((begun, time.monotonic()))
            budget.settle()  # nothing was released, for the next attempt

        threads = [Thread(target=begin, args=(f"{attempt}{side}",)) for side in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(held) == 2:
            (first, second) = sorted(held)
            assert first[1] <= second[0], "the second began after the first had given back"


def test_a_sweep_without_a_budget_does_not_need_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(self: SweepBudget) -> None:
        raise NotDeliveredError("no permission")

    monkeypatch.setattr(SweepBudget, "begin", away)
    run(spec_of(tmp_path, "first"))
    assert "lacks this sweep: no permission" in caplog.text
    with pytest.raises(NotDeliveredError, match="no permission"):
        run(spec_of(tmp_path, "second", 60))
    assert not (tmp_path / "runs/second").exists()


def test_a_restored_store_gets_its_entries_back_from_the_folders(
    raydp: Raydp, tmp_path: Path
) -> None:
    run(spec_of(tmp_path, "first"))
    backup = (tmp_path / "mlflow.db").read_bytes()
    run(spec_of(tmp_path, "second"))
    (tmp_path / "mlflow.db").write_bytes(backup)
    assert set(models(tmp_path)) == {"first"}
    answer = raydp("budget", tmp_path / "runs/second", "--restore", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["restored"] > 0
    assert models(tmp_path) == {"first": (2, "released"), "second": (2, "released")}
    assert ledger_of(tmp_path).problems == ()


def choice_of(folder: Path, name: str, epsilon: float | None) -> dict[str, Any]:
    """The spec of a private selection."""
    privacy: dict[str, Any] = {
        "target_epsilon": 8,
        "accountant": "rdp",
        "noise_key": "test",
        "tuning": "private_selection",
        "num_runs": {"mean": 2},
    }
    if epsilon is not None:
        privacy["budget"] = {"epsilon": epsilon, "delta": 1e-3}
    spec = small_spec(
        folder, name=name, space=TWO_RUNS, select={"score": "vmr_exact"}, privacy=privacy
    )
    del spec["seeds"]
    return spec


def test_a_choice_counts_for_its_pair_from_its_release_on(tmp_path: Path) -> None:
    """An entry at its start would tell how long the choice took, and so how many runs it had."""
    run(choice_of(tmp_path, "choice", None))
    entry, *others = ledger_of(tmp_path).entries
    assert [other.releases for other in others] == [entry.releases]
    assert entry.releases.pairs[0][0] == 8
    assert not entry.releases.events
    ended = max(p.stat().st_mtime for p in tmp_path.glob("runs/choice/trials/*/result.json"))
    assert datetime.fromisoformat(entry.time).timestamp() >= ended - 0.001
    run(choice_of(tmp_path, "choice", None), resume=True)
    assert ledger_of(tmp_path).entries == (entry, *others), "a resume releases the same model"


def test_a_choice_that_would_overdraw_begins_nothing_and_leaves_no_trace(tmp_path: Path) -> None:
    run(choice_of(tmp_path, "first", None))
    with pytest.raises(ValueError, match=r"privacy\.budget\.epsilon must be larger, got 9 "):
        run(choice_of(tmp_path, "second", 9))
    assert {e.sweep for e in ledger_of(tmp_path).entries} == {"first"}
    assert not (tmp_path / "runs/second").exists()


def test_a_choice_is_not_released_if_others_have_used_the_budget_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SweepBudget, "begin", lambda self: None)
        run(choice_of(tmp_path, "first", None))
        run(choice_of(tmp_path, "second", 9))
    folder = SweepFolder.open(tmp_path / "runs/second")
    assert folder.released() is None
    assert not list(find_models(f"sqlite:///{tmp_path}/mlflow.db").query("sweep == 'second'").index)
    run(choice_of(tmp_path, "second", 60), resume=True)
    assert folder.released() is not None
    assert models(tmp_path) == {"first": (1, "released"), "second": (1, "released")}


def test_files_and_names_join_sweeps_of_other_windows_and_secrets(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"text": f"the row {k} of a file"}) + "\n" for k in range(60))
    )

    def labels(content_hash: str, **task: Any) -> frozenset[str]:
        spec = spec_of(tmp_path, "labels", task={"name": "text", "path": str(rows), **task})
        spec["privacy"] = {
            **spec["privacy"],
            "budget": {"epsilon": 9, "delta": 1e-5, "data": "rows"},
        }
        own = TaskFacts(
            num_examples=1, num_units=1, privacy_unit="", content_hash=content_hash, num_tokens=1
        )
        return labels_of(load_spec(spec), own)

    one, two = labels("1", max_length=16), labels("2", max_length=32)
    assert {label.partition(":")[0] for label in one & two} == {"file", "name"}
    rows.write_text(rows.read_text() + "\n")
    assert {label.partition(":")[0] for label in one & labels("3")} == {"name"}


def test_the_statement_names_sweeps_models_and_the_joint_epsilon(
    raydp: Raydp, tmp_path: Path
) -> None:
    run(spec_of(tmp_path, "first"))
    run(spec_of(tmp_path, "second", 60))
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    answer = raydp("budget", tmp_path / "runs/second", "--accountant", "rdp")
    assert answer.code == 0, answer.err
    assert "4 models together: ε ≤ " in answer.out
    assert "budget ε = 60, δ = 0.001: " in answer.out
    told = json.loads(raydp("budget", "--uri", uri, "--epsilon", 30, "--delta", 1e-3, "--json").out)
    (account,) = told["accounts"]
    assert [(s["sweep"], s["state"], s["models"]) for s in account["sweeps"]] == [
        ("first", "ended", 2),
        ("second", "ended", 2),
    ]
    # The joint ε of one sweep is that of its released.json.
    released = SweepFolder.open(tmp_path / "runs/first").released()
    assert released is not None
    of_one = json.loads(
        raydp(
            "budget", "--uri", uri, "--delta", released.delta, "--accountant", "rdp", "--json"
        ).out
    )["accounts"][0]["sweeps"][0]
    assert of_one["epsilon"] == pytest.approx(released.epsilon)
    assert account["budget"]["spent"] > 0
    label = account["labels"][0].partition(":")[2]
    assert json.loads(raydp("budget", label[:8], "--uri", uri, "--json").out)["accounts"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "SWEEP|DATA 'nothing' is unknown"),
        (("--epsilon", 3), "--delta must be given with --epsilon"),
        (("--epsilon", 0, "--delta", 0.1), "--epsilon must be > 0 and <= 1000, got 0"),
        (("--delta", 2), "--delta must be > 0 and < 1, got 2"),
        (("--accountant", "moments"), "--accountant 'moments' is unknown"),
        (("--restore",), "--restore must be of a SWEEP"),
    ],
)
def test_wrong_arguments_say_what_to_change(
    raydp: Raydp, tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    open_store(uri, create=True)
    answer = raydp("budget", *arguments, "--uri", uri)
    assert answer.code == 2
    assert message in answer.err


def test_a_wrong_budget_is_refused_with_the_spec(raydp: Raydp, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "wrong")
    for budget, message in (
        ({"epsilon": 0, "delta": 1e-5}, "privacy.budget.epsilon"),
        ({"epsilon": 3}, "privacy.budget.delta"),
        ({"epsilon": 1e9, "delta": 1e-5}, "privacy.budget.epsilon"),
        ({"epsilon": 3, "delta": 1e-5, "data": "a\nb"}, "privacy.budget.data"),
        ({"epsilon": 3, "delta": 1e-5, "name": "x"}, "privacy.budget.name"),
    ):
        spec["privacy"] = {**spec["privacy"], "budget": budget}
        (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(spec))
        answer = raydp("sweep", "wrong.yaml")
        assert answer.code == 2
        assert message in answer.err
