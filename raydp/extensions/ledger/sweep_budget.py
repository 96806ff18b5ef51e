"""The entries of one sweep, and the budget that it must keep to."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from raydp.extensions.ledger.entries import Entry, Kind, account_of
from raydp.extensions.ledger.ledger import ReleaseLedger, append, restore
from raydp.extensions.ledger.releases import Releases, RenyiBudget
from raydp.plugins.described import Plugin
from raydp.privacy import stated
from raydp.spec.document import SweepSpec
from raydp.spec.sections import AdaptiveSeeds
from raydp.spec.sections.privacy import IGNORED
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.state import Plan
from raydp.system.locations import is_uri
from raydp.tasks.task import TaskFacts
from raydp.tracking import NotDeliveredError, load_signer
from raydp.tracking.address import database_of
from raydp.tracking.delivery import delivering
from raydp.tracking.store import Store, open_store

LOGGER = logging.getLogger(__name__)


@contextmanager
def release_budget(spec: SweepSpec, folder: SweepFolder, facts: TaskFacts) -> Iterator[SweepBudget]:
    """Enter what a sweep may release, and at the end what it has released.

    Raises:
        ValueError: it would overdraw its budget, or the ledger is not whole. The sweep's entry is
            then withdrawn.
    """
    budget = SweepBudget.of(spec, folder, facts)
    is_new = folder.is_untouched() and folder.budget_entries() is None
    try:
        budget.begin()
    except NotDeliveredError as error:
        # Without a budget a sweep does not depend on the ledger.
        if spec.privacy.budget is not None:
            raise
        LOGGER.warning("the ledger of %s lacks this sweep: %s", spec.tracking.uri, error)
    try:
        yield budget
    finally:
        try:
            # A new sweep that has begun no run gives back all. Of a folder that was emptied nobody
            # knows what it released.
            budget.settle(never_began=is_new and folder.is_untouched())
        except (NotDeliveredError, ValueError) as error:
            LOGGER.warning("the ledger still counts all that the sweep may release: %s", str(error))


def settle_deleted(folder: SweepFolder) -> None:
    """Enter what a sweep may have released, before the sweep is deleted.

    Each finished run counts, for a driver that was killed may have registered it without a mark.
    """
    facts = folder.plan().facts
    if facts.only_measured is None:
        SweepBudget.of(folder.spec(), folder, facts).settle(deleted=True)


@dataclass(frozen=True, kw_only=True)
class SweepBudget:
    """A sweep and its place in the ledger.

    Attributes:
        labels: names and hashes of its data; see `labels_of`.
    """

    spec: SweepSpec
    folder: SweepFolder
    labels: frozenset[str]
    _late: list[str] = field(default_factory=list)
    """Runs that could not be entered while the store was away."""

    @classmethod
    def of(cls, spec: SweepSpec, folder: SweepFolder, facts: TaskFacts) -> SweepBudget:
        """Return the budget of a sweep. Its data keep the labels that they had at its start."""
        kept = [Entry.read(text).labels for text in folder.budget_entries() or ()]
        labels = _names_of(spec, facts).union(*kept) if kept else labels_of(spec, facts)
        return cls(spec=spec, folder=folder, labels=labels)

    @cached_property
    def store(self) -> Store:
        """Return the sweep's tracking store, which is made if it does not exist."""
        return open_store(self.spec.tracking.uri, create=True)

    def begin(self) -> None:
        """Enter what the sweep may release, unless the ledger has it, and keep to the budget.

        A choice that ε covers enters what it releases at its end alone: the time of an entry would
        tell how long it took. The budget is checked at both ends.

        Raises:
            ValueError: the budget does not suffice.
        """
        if self._is_choice:
            if (refusal := self._refusal_of_choice()) is not None:
                raise ValueError(refusal)
            return
        with delivering():
            ledger, planned = self.restored(), self._planned()
            own, before = self._own(ledger), self._counted(ledger)
            is_new = not own or own[-1].labels != self.labels
            if not is_new and planned.models.keys() <= before.models.keys():
                entry = None
            else:
                entry = self._append("planned", planned, ledger)
            try:
                # Every sweep writes first and reads then. So of two that start at once, one sees
                # the other, and they cannot both take what is left.
                if (refusal := self._refusal()) is not None:
                    raise ValueError(refusal)
            except BaseException:
                if entry is not None:
                    kind: Kind = "planned" if own and own[-1].kind != "released" else "released"
                    self._append(kind, before, ReleaseLedger.read(self.store))
                raise
        if entry is not None:
            self._keep(entry)

    def restored(self) -> ReleaseLedger:
        """Return the ledger, with the sweep's entries that a restored store has lost."""
        ledger = ReleaseLedger.read(self.store)
        if restore(self.store, ledger, self.folder.budget_entries() or ()):
            return ReleaseLedger.read(self.store)
        return ledger

    def refused(self, run_ids: Sequence[str]) -> str | None:
        """Enter further runs, or the one that a choice releases; see `ReleaseBudget`.

        Raises:
            NotDeliveredError: the store is away, and a choice is to be entered.
        """
        late = [*self._late, *run_ids]
        further = self._choice() if self._is_choice else self._events(late)
        try:
            with delivering():
                ledger = self.restored()
                before = self._counted(ledger)
                if self._is_choice and before.num_models:
                    return None  # a resume
                entry = self._append("planned" if self._is_choice else "further", further, ledger)
                self._keep(entry)
                self._late.clear()
                if (refusal := self._refusal()) is None:
                    return None
                kind: Kind = "released" if self._is_choice else "planned"
                self._keep(self._append(kind, before, ReleaseLedger.read(self.store)))
        except NotDeliveredError as error:
            if self._is_choice:
                raise
            if self.spec.privacy.budget is None:
                self._late.extend(run_ids)
                return None
            return f"The ledger cannot be reached: {error}"
        return f"No further run may be released: {refusal} To go on, run it again with --resume."

    def settle(self, *, never_began: bool = False, deleted: bool = False) -> None:
        """Enter what was released, if the sweep has ended, has begun no run, or is deleted.

        What a registered model tells stays told, also if the model is deleted.
        """
        has_ended = self.folder.released() is not None or never_began
        if not (deleted or has_ended):
            return
        if deleted and self.folder.is_untouched() and self.folder.budget_entries():
            return  # somebody has emptied the folder: all that was planned stays
        released = self._released(finished=deleted)
        with delivering():
            ledger = self.restored()
            own = self._own(ledger)
            ended = bool(own) and own[-1].kind == "released"
            known = released.models.keys() <= self._counted(ledger).models.keys()
            if (own or released.num_models) and not (ended and known):
                entry = self._append("released", released, ledger)
                if self.folder.path.is_dir():
                    self._keep(entry)

    @property
    def _is_choice(self) -> bool:
        return self.spec.privacy.tuning != IGNORED

    @cached_property
    def _plan(self) -> Plan:
        return self.folder.plan()

    @property
    def _unit(self) -> str:
        return self.spec.privacy.unit

    def _refusal_of_choice(self) -> str | None:
        """Return why a choice may not begin, without a trace in the store."""
        database = database_of(self.spec.tracking.uri)
        if self.spec.privacy.budget is None or (database is not None and not database.exists()):
            return None
        with delivering():
            ledger = ReleaseLedger.read(self.store)
            return self._refusal(Releases() if self._own(ledger) else self._choice())

    def _refusal(self, further: Releases | None = None) -> str | None:
        """Return why the budget does not suffice; None if it does, or there is none.

        Args:
            further: releases that the ledger does not have yet.
        """
        budget = self.spec.privacy.budget
        if budget is None:
            return None
        ledger = ReleaseLedger.read(self.store)
        if ledger.problems:
            said = "; ".join(ledger.problems[:3])
            return (
                f"privacy.budget must be left out with a ledger that is not whole: {said}. What is "
                "spent is unknown. Restore the store, or run `raydp budget SWEEP --restore` for each "
                "sweep whose entries it lost."
            )
        account = account_of(ledger.entries, self._unit, self.labels)
        limit = RenyiBudget(epsilon=budget.epsilon, delta=budget.delta)
        counted = Releases() if account is None else account.releases()
        spent = (counted | (further or Releases())).spent(limit)
        if spent <= budget.epsilon:
            LOGGER.info(
                "budget of the data: ε = %s of %g at δ = %g is spent or reserved",
                stated(spent), budget.epsilon, budget.delta,
            )  # fmt: skip
            return None
        if math.isinf(spent):
            return (
                f"privacy.budget must be left out, got epsilon {budget.epsilon:g} with releases that "
                "have no guarantee, or with choices whose δ are more than half of its delta. "
                "`raydp budget` names them."
            )
        sweeps = [each for each in account.sweeps() if each.releases.num_models] if account else []
        others = [each for each in sweeps if each.newest.sweep_id != self._plan.sweep_id]
        models = sum(each.releases.num_models for each in others)
        own = counted.num_models - models + (further.num_models if further else 0)
        names = ", ".join(dict.fromkeys(each.newest.sweep for each in others[:5]))
        before = f" Others on these data ({names}) count with {models} models." if others else ""
        waiting = any(each.is_open for each in others)
        wait = " Sweeps that have not ended count with all they may release." if waiting else ""
        return (
            f"privacy.budget.epsilon must be larger, got {budget.epsilon:g} where ε = {stated(spent)} at "
            f"δ = {budget.delta:g} would be spent. This sweep counts with {own} models.{before}{wait} "
            "Plan fewer runs or a smaller target_epsilon, or raise it."
        )

    def _planned(self) -> Releases:
        """Return what the sweep may release: the runs that are certain or were begun."""
        seeds, trials = self.spec.seeds, self._plan.trials
        return self._events(
            [
                t.run_id
                for t in trials
                if not isinstance(seeds, AdaptiveSeeds)
                or t.seed in seeds.first_labels
                or self.folder.trial(t.run_id).exists()
            ]
        )

    def _released(self, *, finished: bool) -> Releases:
        """Return the models that are marked as registered, or all of finished runs."""
        if self._is_choice:
            chosen = self.folder.released() is not None or (finished and self.folder.decision())
            return self._choice() if chosen else Releases()
        found = []
        for trial in self._plan.trials:
            result = self.folder.result(trial.run_id) if finished else None
            if self.folder.model_uri(trial.run_id) or (result is not None and result.finished):
                found.append(trial.run_id)
        return self._events(found)

    def _choice(self) -> Releases:
        # The numbers of the target, so that the entry tells nothing of the draw.
        epsilon = self.spec.privacy.require_target("with a choice that ε covers")
        return Releases(models={"choice": (epsilon, self._plan.delta)})

    def _events(self, run_ids: Sequence[str]) -> Releases:
        privacy = self._plan.privacy
        return Releases(models={name: privacy[name].mechanism.event for name in run_ids})

    def _own(self, ledger: ReleaseLedger) -> list[Entry]:
        """Return the sweep's entries, the newest last."""
        own = [entry for entry in ledger.entries if entry.sweep_id == self._plan.sweep_id]
        return sorted(own, key=lambda entry: (entry.number, entry.time))

    def _counted(self, ledger: ReleaseLedger) -> Releases:
        """Return what the ledger counts for the sweep."""
        account = account_of(self._own(ledger), self._unit, self.labels)
        return Releases() if account is None else account.sweeps()[0].releases

    def _append(self, kind: Kind, releases: Releases, ledger: ReleaseLedger) -> Entry:
        entry = Entry(
            sweep_id=self._plan.sweep_id,
            sweep=self.spec.name,
            number=len(self._own(ledger)),
            kind=kind,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            unit=self._unit,
            labels=self.labels,
            releases=releases,
            delta=self._plan.delta,
            previous=ledger.heads,
        )
        return append(self.store, entry, load_signer(self.spec.tracking.signing_key))

    def _keep(self, entry: Entry) -> None:
        """Keep an entry in the folder too, for a store that is restored from a backup."""
        self.folder.budget_entries.write([*(self.folder.budget_entries() or []), entry.text(None)])


def labels_of(spec: SweepSpec, facts: TaskFacts) -> frozenset[str]:
    """Return the names and hashes of a sweep's data.

    They are the task's content hash, the hash of each file that it trains on, which other windows
    or secrets leave as it is, and the name of `privacy.budget.data`. A task without a file counts
    by its own name.
    """
    sources = map(_label_of, _sources(spec.task))
    return _names_of(spec, facts).union(label for label in sources if label is not None)


def _names_of(spec: SweepSpec, facts: TaskFacts) -> frozenset[str]:
    """Return the labels that no file decides."""
    budget = spec.privacy.budget
    named = {f"name:{budget.data}"} if budget is not None and budget.data is not None else set()
    return frozenset({f"task:{facts.content_hash}", *named})


def _sources(task: Plugin) -> Iterator[str]:
    """Yield the path, or else the name, of a task and of the tasks that it is made of."""
    params = dict(task.params)
    inner = [own for name in ("of", "reference") if isinstance(own := params.get(name), Plugin)]
    for own in inner:
        yield from _sources(own)
    if not inner:
        yield str(params.get("path") or task.name)


def _label_of(path: str) -> str | None:
    """Return the hash of a file or a folder's files; of what lies elsewhere, its name.

    A file that is gone has no label: another one may have had its name.
    """
    place = Path(path)
    if is_uri(path) or not place.exists():
        return None if place.is_absolute() or place.suffix else f"data:{path}"
    digest = hashlib.sha256()
    files = sorted(p for p in place.rglob("*") if p.is_file()) if place.is_dir() else [place]
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return f"file:{digest.hexdigest()}"
