"""Entries of the ledger: what a sweep may release about its data, and what it has released."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from raydp.extensions.ledger.releases import Releases
from raydp.tracking.sealing.seal import Seal, Signer, hash_of

Kind = Literal["planned", "further", "released"]
_FORMAT = "raydp ledger 1"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry. It is never changed, and its id is the hash of its content.

    Attributes:
        sweep_id, sweep: id and name of the sweep.
        number: position among the entries of the sweep.
        kind: "planned": what the sweep may release in all; "further": what it may release beyond
            this; "released": what it has released, after which no plan counts.
        time: when the entry was made, in ISO 8601.
        unit: "example" or "user".
        labels: names and hashes of the data. Entries that share one are about the same data.
        releases: the models.
        delta: δ of the sweep's own guarantee.
        previous: ids of the newest entries that there were.
        seal: the content with its signature, if the sweep has a key.
    """

    sweep_id: str
    sweep: str
    number: int
    kind: Kind
    time: str
    unit: str
    labels: frozenset[str]
    releases: Releases
    delta: float
    previous: frozenset[str] = frozenset()
    seal: Seal | None = None

    @property
    def statement(self) -> dict[str, object]:
        """Return the content as JSON."""
        return {
            "format": _FORMAT,
            "sweep_id": self.sweep_id,
            "sweep": self.sweep,
            "number": self.number,
            "kind": self.kind,
            "time": self.time,
            "unit": self.unit,
            "labels": sorted(self.labels),
            "releases": self.releases.to_json(),
            "delta": self.delta,
            "previous": sorted(self.previous),
        }

    @property
    def id(self) -> str:
        """Return the SHA-256 (hex) of the content."""
        return hash_of(self.statement)

    def text(self, key: Signer | None) -> str:
        """Return the entry as text, signed if there is a key. A read entry keeps its signature."""
        return (self.seal or Seal.make(self.statement, key)).tag()

    @classmethod
    def read(cls, text: str) -> Self:
        """Read an entry.

        Raises:
            ValueError, KeyError, TypeError: the text is no entry.
        """
        content = json.loads(text)
        said = content["statement"]
        if said["format"] != _FORMAT:
            raise ValueError(said["format"])
        return cls(
            sweep_id=said["sweep_id"],
            sweep=said["sweep"],
            number=said["number"],
            kind=said["kind"],
            time=said["time"],
            unit=said["unit"],
            labels=frozenset(said["labels"]),
            releases=Releases.from_json(said["releases"]),
            delta=said["delta"],
            previous=frozenset(said["previous"]),
            seal=Seal(statement=said, key=content["key"], signature=content["signature"]),
        )


@dataclass(frozen=True, kw_only=True)
class SweepCost:
    """What one sweep counts for.

    Attributes:
        newest: its newest entry.
        releases: its models: all that any entry says are released, and all that it may release.
    """

    newest: Entry
    releases: Releases

    @property
    def is_open(self) -> bool:
        """Return whether the sweep may still release what is counted."""
        return self.newest.kind != "released"


@dataclass(frozen=True, kw_only=True)
class Account:
    """The entries about the same data and unit.

    Attributes:
        entries: at least one, in the order of their time.
    """

    entries: tuple[Entry, ...]

    @property
    def labels(self) -> frozenset[str]:
        """Return all names and hashes of the data."""
        return frozenset().union(*(entry.labels for entry in self.entries))

    def sweeps(self) -> list[SweepCost]:
        """Return what each sweep counts for, in the order of their first entries."""
        own = defaultdict[str, list[Entry]](list)
        for entry in self.entries:
            own[entry.sweep_id].append(entry)
        return [_cost(sorted(each, key=lambda e: (e.number, e.time))) for each in own.values()]

    def releases(self) -> Releases:
        """Return the models of all sweeps. Equal runs of two sweeps have different noise."""
        return Releases(
            models={
                f"{sweep.newest.sweep_id}/{name}": cost
                for sweep in self.sweeps()
                for name, cost in sweep.releases.models.items()
            }
        )


def _cost(entries: Sequence[Entry]) -> SweepCost:
    """Return what a sweep counts for: what was released stays so, and a plan ends with the sweep."""
    released = Releases()
    # A copy of the folder under another name goes on by itself, from the same key.
    plans = dict[str, Releases]()
    for entry in entries:
        if entry.kind == "released":
            released |= entry.releases
            plans.pop(entry.sweep, None)
        elif entry.kind == "planned":
            plans[entry.sweep] = entry.releases
        else:
            plans[entry.sweep] = plans.get(entry.sweep, Releases()) | entry.releases
    for planned in plans.values():
        released |= planned
    return SweepCost(newest=entries[-1], releases=released)


def accounts(entries: Iterable[Entry]) -> list[Account]:
    """Divide entries into accounts. Entries are in one if a chain of shared labels joins them."""
    found: list[list[Entry]] = []
    for entry in entries:
        joined = [
            each
            for each in found
            if each[0].unit == entry.unit and any(e.labels & entry.labels for e in each)
        ]
        found = [each for each in found if each not in joined]
        found.append([*(e for each in joined for e in each), entry])
    return [Account(entries=tuple(sorted(each, key=lambda e: (e.time, e.id)))) for each in found]


def account_of(entries: Iterable[Entry], unit: str, labels: frozenset[str]) -> Account | None:
    """Return the account of data, by their labels; None without an entry."""
    own = list(entries)
    # The data themselves may join what was apart before.
    joint, known = set(labels), 0
    while len(joint) != known:
        known = len(joint)
        for entry in own:
            if entry.unit == unit and entry.labels & joint:
                joint |= entry.labels
    found = tuple(e for e in own if e.unit == unit and e.labels & joint)
    return Account(entries=tuple(sorted(found, key=lambda e: (e.time, e.id)))) if found else None
