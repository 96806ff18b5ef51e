"""The ledger of a store: entries, accounts, and what shows that it is not whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from raydp.extensions.ledger.entries import Entry, Kind, account_of, accounts
from raydp.extensions.ledger.ledger import EXPERIMENT, ReleaseLedger, append, restore
from raydp.extensions.ledger.releases import Releases
from raydp.privacy import PoissonGaussian
from raydp.tracking import load_signer, new_key
from raydp.tracking.store import Store, open_store

EVENT = PoissonGaussian(sample_rate=0.02, noise_multiplier=0.9, num_steps=60)


def entry(
    sweep: str,
    kind: Kind = "planned",
    models: int = 1,
    *,
    number: int = 0,
    first: int = 0,
    labels: str = "task:a",
    unit: str = "example",
    previous: frozenset[str] = frozenset(),
) -> Entry:
    return Entry(
        sweep_id=f"id-{sweep}",
        sweep=sweep,
        number=number,
        kind=kind,
        time=f"2026-12-01T10:00:0{number}",
        unit=unit,
        labels=frozenset(labels.split()),
        releases=Releases(models={f"{first + k}": EVENT for k in range(models)}),
        delta=1e-5,
        previous=previous,
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"sqlite:///{tmp_path}/mlflow.db", create=True)


def write(store: Store, one: Entry) -> Entry:
    return append(store, replace(one, previous=ReleaseLedger.read(store).heads), None)


def test_a_sweep_counts_for_its_plan_until_it_ends_and_then_for_what_it_released() -> None:
    plan = [entry("a", models=4), entry("a", "further", 2, first=4, number=1)]
    (account,) = accounts(plan)
    (cost,) = account.sweeps()
    assert (cost.releases.num_models, cost.is_open) == (6, True)
    (account,) = accounts([*plan, entry("a", "released", 5, number=2)])
    (cost,) = account.sweeps()
    assert (cost.releases.num_models, cost.is_open) == (5, False)
    # A resume plans anew, in place of what was released.
    ended = [*plan, entry("a", "released", 5, number=2)]
    (account,) = accounts([*ended, entry("a", models=9, number=3)])
    assert account.releases().num_models == 9
    # What was released stays so, whatever a later entry says.
    (account,) = accounts([*ended, entry("a", "released", 0, number=3)])
    assert account.releases().num_models == 5


def test_sweeps_are_about_the_same_data_if_a_chain_of_labels_joins_them() -> None:
    entries = [
        entry("a", labels="task:1 file:x"),
        entry("b", labels="task:2 name:mails"),
        entry("c", labels="task:3 file:x name:mails"),
        entry("d", labels="task:4"),
        entry("e", labels="task:1", unit="user"),
    ]
    found = {frozenset(e.sweep for e in each.entries) for each in accounts(entries)}
    assert found == {frozenset("abc"), frozenset("d"), frozenset("e")}
    account = account_of(entries[:2], "example", frozenset({"file:x", "name:mails"}))
    assert account is not None
    assert {e.sweep for e in account.entries} == {"a", "b"}, "new data join what was apart"
    assert account_of(entries, "example", frozenset({"task:9"})) is None


def test_an_entry_of_many_mechanisms_comes_back_whole(store: Store) -> None:
    events = {f"{k:016x}": replace(EVENT, num_steps=k % 400 + 1) for k in range(900)}
    one = replace(entry("a"), releases=Releases(models=events))
    append(store, one, None)
    (read,) = ReleaseLedger.read(store).entries
    assert read.releases == one.releases
    assert read.id == one.id
    assert ReleaseLedger.read(store).problems == ()


def test_entries_of_deleted_runs_count(store: Store) -> None:
    write(store, entry("a"))
    experiment = store.client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    for run in store.client.search_runs([experiment.experiment_id]):
        store.client.delete_run(run.info.run_id)
    assert [e.sweep for e in ReleaseLedger.read(store).entries] == ["a"]


def test_a_lost_entry_shows_and_the_sweeps_folder_restores_it(store: Store, tmp_path: Path) -> None:
    first = write(store, entry("a"))
    backup = (tmp_path / "mlflow.db").read_bytes()
    lost = write(store, entry("b"))
    (tmp_path / "mlflow.db").write_bytes(backup)
    again = open_store(store.uri)
    # The newest entries of a backup are not known to be missing until another entry follows them.
    assert [e.id for e in ReleaseLedger.read(again).entries] == [first.id]
    append(again, entry("c", previous=frozenset({lost.id})), None)
    (problem,) = ReleaseLedger.read(again).problems
    assert problem.endswith(f"follows {lost.id[:8]}, which is missing")
    assert restore(again, ReleaseLedger.read(again), [lost.text(None)]) == 1
    assert ReleaseLedger.read(again).problems == ()
    assert restore(again, ReleaseLedger.read(again), [lost.text(None)]) == 0


def test_a_changed_entry_shows(store: Store) -> None:
    write(store, entry("a", models=7))
    experiment = store.client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    (run,) = store.client.search_runs([experiment.experiment_id])
    text = run.data.tags["raydp.ledger.0"]
    store.client.set_tag(run.info.run_id, "raydp.ledger.0", text.replace(",60,", ",61,"))
    (problem,) = ReleaseLedger.read(store).problems
    assert problem.endswith("of the sweep a: its content was changed")
    store.client.set_tag(run.info.run_id, "raydp.ledger.0", "no text of one")
    assert "is no entry" in ReleaseLedger.read(store).problems[0]


def test_a_ledger_whose_experiment_was_deleted_comes_back_and_others_runs_are_no_entries(
    store: Store,
) -> None:
    write(store, entry("a"))
    experiment = store.client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    store.client.create_run(experiment.experiment_id)
    store.client.delete_experiment(experiment.experiment_id)
    assert [e.sweep for e in ReleaseLedger.read(store).entries] == ["a"]
    write(store, entry("b"))
    ledger = ReleaseLedger.read(store)
    assert sorted(e.sweep for e in ledger.entries) == ["a", "b"]
    assert ledger.problems == ()


def test_a_copy_of_a_sweep_counts_what_it_released_beyond_the_original() -> None:
    copied = replace(entry("a", "released", 3, first=1, number=5), sweep="copy")
    original = [entry("a", models=9), entry("a", "released", 2, number=1)]
    (account,) = accounts([*original, copied])
    assert account.releases().num_models == 4
    # Equal runs of another sweep have another key.
    (account,) = accounts([*original, entry("b", "released", 2)])
    assert account.releases().num_models == 4
    # The end of a copy ends no plan of the original.
    (account,) = accounts([original[0], copied])
    assert account.releases().num_models == 9


def test_a_signature_shows_who_wrote_an_entry(store: Store, tmp_path: Path) -> None:
    own = new_key(tmp_path / "team.key")
    append(store, entry("a"), load_signer(tmp_path / "team.key"))
    assert ReleaseLedger.read(store, frozenset({own})).problems == ()
    append(store, replace(entry("b"), previous=ReleaseLedger.read(store).heads), None)
    (problem,) = ReleaseLedger.read(store, frozenset({own})).problems
    assert "of the sweep b: not signed" in problem
    # Whoever changes a signed entry with its id cannot sign it.
    (run,) = [r for r in _runs(store) if r.data.tags["sweep"] == "a"]
    text = run.data.tags["raydp.ledger.0"].replace(",60,", ",61,")
    store.client.set_tag(run.info.run_id, "raydp.ledger.0", text)
    store.client.set_tag(run.info.run_id, "raydp.ledger.id", Entry.read(text).id)
    assert any("signature does not fit" in each for each in ReleaseLedger.read(store).problems)


def test_entries_that_are_written_at_once_are_all_kept(store: Store) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: write(store, entry(name)), "abcdefgh"))
    ledger = ReleaseLedger.read(store)
    assert sorted(e.sweep for e in ledger.entries) == list("abcdefgh")
    assert ledger.problems == ()


def _runs(store: Store) -> list[object]:
    experiment = store.client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    return list(store.client.search_runs([experiment.experiment_id]))
