"""The ledger in a tracking store: an experiment of MLflow with one run for each entry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from mlflow.entities import Experiment, LifecycleStage, Run, ViewType

from raydp.extensions.ledger.entries import Entry
from raydp.tracking.sealing.seal import Signer
from raydp.tracking.store import Store, open_experiment, pages

EXPERIMENT = "raydp-ledger"
_MARK = ("raydp.ledger", "entries")
_TAG = "raydp.ledger.{}"
_ID_TAG = "raydp.ledger.id"
_CHUNK = 4000
"""Characters of an entry in one tag. MLflow keeps at most 8,000."""


@dataclass(frozen=True, kw_only=True)
class ReleaseLedger:
    """The entries of a store at one moment.

    Attributes:
        entries: in the order of their time, also those whose runs were deleted in MLflow.
        problems: what shows that entries are missing or were changed, in sentences.
    """

    entries: tuple[Entry, ...] = ()
    problems: tuple[str, ...] = field(default=())

    @classmethod
    def read(cls, store: Store, keys: frozenset[str] | None = None) -> ReleaseLedger:
        """Read all entries.

        Args:
            keys: the public keys of which one must have signed each entry. With None an entry need
                not be signed, but a signature must fit.
        """
        experiment = _experiment(store)
        if experiment is None:
            return cls()
        search = partial(
            store.client.search_runs,
            [experiment.experiment_id],
            run_view_type=ViewType.ALL,
            max_results=1000,
        )
        entries, problems = dict[str, Entry](), list[str]()
        for run in pages(search):
            # A run of somebody else is no entry. An entry without its tag is missing below.
            if _ID_TAG not in run.data.tags:
                continue
            try:
                entry = Entry.read(_text_of(run))
            except (ValueError, KeyError, TypeError, AttributeError):
                problems.append(f"the run {run.info.run_id} of {EXPERIMENT} is no entry")
                continue
            problem = None if entry.seal is None else entry.seal.signature_problem(keys)
            if entry.id != run.data.tags[_ID_TAG]:
                problem = "its content was changed"
            if problem is not None:
                problems.append(f"the entry {entry.id[:8]} of the sweep {entry.sweep}: {problem}")
            entries[entry.id] = entry
        # An entry names those before it, so a gap shows.
        for entry in entries.values():
            lost = [name[:8] for name in sorted(entry.previous) if name not in entries]
            if lost:
                problems.append(
                    f"the entry {entry.id[:8]} of the sweep {entry.sweep} follows {', '.join(lost)}, "
                    "which is missing"
                )
        ordered = sorted(entries.values(), key=lambda e: (e.time, e.number, e.id))
        return cls(entries=tuple(ordered), problems=tuple(sorted(problems)))

    @property
    def heads(self) -> frozenset[str]:
        """Return the ids of the entries that no other one follows."""
        followed = frozenset().union(*(entry.previous for entry in self.entries))
        return frozenset(entry.id for entry in self.entries) - followed


def append(store: Store, entry: Entry, key: Signer | None) -> Entry:
    """Write an entry, and return it with its signature. One request writes it whole."""
    experiment = _experiment(store)
    if experiment is None:
        experiment_id = open_experiment(store, EXPERIMENT)
    else:
        experiment_id = str(experiment.experiment_id)
        # The ledger is never deleted.
        if experiment.lifecycle_stage == LifecycleStage.DELETED:
            store.client.restore_experiment(experiment_id)
    # By its tag it is found under any name.
    if experiment is None or _MARK[0] not in experiment.tags:
        store.client.set_experiment_tag(experiment_id, *_MARK)
    text = entry.text(key)
    chunks = [text[at : at + _CHUNK] for at in range(0, len(text), _CHUNK)]
    run = store.client.create_run(
        experiment_id,
        tags={
            _ID_TAG: entry.id,
            "sweep": entry.sweep,
            **{_TAG.format(place): chunk for place, chunk in enumerate(chunks)},
        },
        run_name=f"{entry.sweep}: {entry.kind}",
    )
    store.client.set_terminated(run.info.run_id)
    return replace(entry, seal=Entry.read(text).seal)


def _experiment(store: Store) -> Experiment | None:
    """Return the experiment of the ledger, whatever became of it; None before the first entry."""
    name, value = _MARK
    found = store.client.search_experiments(
        view_type=ViewType.ALL,
        filter_string=f"tags.`{name}` = '{value}'",
        order_by=["creation_time"],
    )
    return found[0] if found else store.client.get_experiment_by_name(EXPERIMENT)


def restore(store: Store, ledger: ReleaseLedger, texts: Iterable[str]) -> int:
    """Write entries of a sweep's folder that the store lacks, and return how many they were."""
    known = {entry.id for entry in ledger.entries}
    lost = [entry for entry in map(Entry.read, texts) if entry.id not in known]
    for entry in lost:
        append(store, entry, None)  # it has its signature
    return len(lost)


def _text_of(run: Run) -> str:
    tags, places = run.data.tags, range(len(run.data.tags))
    return "".join(tags[name] for name in map(_TAG.format, places) if name in tags)
