"""The statement of a ledger: accounts with their sweeps and joint ε, for people and programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

from raydp.extensions.ledger.entries import Account, SweepCost, account_of, accounts
from raydp.extensions.ledger.ledger import ReleaseLedger
from raydp.extensions.ledger.releases import RenyiBudget
from raydp.extensions.ledger.sweep_budget import SweepBudget
from raydp.plugins.registries import resolve
from raydp.privacy import bound_in_words, stated
from raydp.search_spaces.names import unknown_name
from raydp.sweep.api import sweep_folder
from raydp.sweep.planning.sources import is_spec
from raydp.sweep.store.folder import SweepFolder
from raydp.system.output import print_table, print_warning, stdout
from raydp.tracking.sealing.seal import public_keys
from raydp.tracking.store import open_store

MOST_ALONE = 20
"""The largest number of sweeps whose own ε are computed too: each takes a second or more."""
NOT_COUNTED = "audits, shadow models and scores are not counted: they release no model"


class SweepRow(TypedDict):
    """A sweep of an account. `epsilon` is of its models together; None if it is not known."""

    sweep: str
    sweep_id: str
    state: Literal["open", "ended"]
    models: int
    epsilon: float | None
    time: str


class BudgetRow(TypedDict):
    """A budget, and what is spent of it by a Rényi filter."""

    epsilon: float
    delta: float
    spent: float


class AccountDocument(TypedDict):
    """The sweeps on the same data, with the joint ε of all their models."""

    unit: str
    labels: list[str]
    sweeps: list[SweepRow]
    models: int
    epsilon: float | None
    delta: float
    accountant: str
    budget: BudgetRow | None


class LedgerStatement(TypedDict):
    """The accounts of a store, and what shows that its ledger is not whole."""

    store: str
    restored: int
    accounts: list[AccountDocument]
    problems: list[str]


def statement_of(
    data: str | None,
    *,
    limit: tuple[float, float] | None,
    delta: float | None,
    accountant: str,
    restore: bool,
    keys: Sequence[str] | None,
    uri: str,
    storage: Path,
) -> LedgerStatement:
    """Return the statement of a sweep's data, of named data, or of all data in a store.

    Args:
        data: a sweep, or a label of data with or without its kind; None for all.
        limit: (ε, δ) of a budget; None for that of the sweep's spec, if it has one.
        delta: δ of all releases together; None for the largest of the sweeps.
        restore: enter again what a sweep's folder has and its store lacks.
        keys, uri, storage: as on the command line.

    Raises:
        ValueError: there is no such sweep and no such data, or no store.
    """
    resolve("accountants", accountant, field="--accountant")
    folder = _folder(data, storage)
    if folder is None and restore:
        raise ValueError(f"--restore must be of a SWEEP, got {data!r}. Name one.")
    store, restored, labels = open_store(uri if folder is None else folder.tracking().uri), 0, None
    if folder is not None:
        own = SweepBudget.of(folder.spec(), folder, folder.plan().facts)
        labels, planned = own.labels, own.spec.privacy.budget
        if restore:
            before = len(ReleaseLedger.read(store).entries)
            with folder.locked():
                # A sweep of an earlier version has no entry.
                own.restored() if folder.budget_entries() else own.settle(deleted=True)
            restored = len(ReleaseLedger.read(store).entries) - before
        if limit is None and planned is not None:
            limit = planned.epsilon, planned.delta
    ledger = ReleaseLedger.read(store, public_keys(keys))
    if labels is not None:
        # Sweeps of another unit are shown too, and never added up with these.
        both = (account_of(ledger.entries, unit, labels) for unit in ("example", "user"))
        found = [account for account in both if account is not None]
    else:
        found = accounts(ledger.entries)
        found = found if data is None else _of_label(found, data)
    return {
        "store": store.uri,
        "restored": restored,
        "accounts": [_document(each, limit, delta, accountant) for each in found],
        "problems": list(ledger.problems),
    }


def _folder(data: str | None, storage: Path) -> SweepFolder | None:
    """Return the folder of a sweep; None if the text names no sweep."""
    if data is None:
        return None
    if is_spec(Path(data)) or SweepFolder.is_at(Path(data)) or SweepFolder.is_at(storage / data):
        return sweep_folder(data, str(storage))
    return None


def _of_label(found: Sequence[Account], data: str) -> list[Account]:
    """Return the accounts of which a label, or what follows its kind, begins with a text."""
    named = [
        account
        for account in found
        if any(data in (label, label.partition(":")[2]) for label in account.labels)
        or any(label.partition(":")[2][: max(len(data), 8)] == data for label in account.labels)
    ]
    if not named:
        known = sorted({label.partition(":")[2] for each in found for label in each.labels})
        raise ValueError(unknown_name("SWEEP|DATA", data, known[:5]))
    return named


def _document(
    account: Account, limit: tuple[float, float] | None, delta: float | None, accountant: str
) -> AccountDocument:
    releases = account.releases()
    if delta is None:
        # A pair takes its δ from all together.
        delta = max(e.delta for e in account.entries) + sum(d for _, d in releases.pairs)
    sweeps = account.sweeps()
    budget: BudgetRow | None = None
    if limit is not None:
        bound = RenyiBudget(epsilon=limit[0], delta=limit[1])
        budget = {"epsilon": limit[0], "delta": limit[1], "spent": releases.spent(bound)}
    return {
        "unit": account.entries[0].unit,
        "labels": sorted(account.labels),
        "sweeps": [
            _row(sweep, delta, accountant, alone=len(sweeps) <= MOST_ALONE) for sweep in sweeps
        ],
        "models": releases.num_models,
        "epsilon": releases.joint(delta, accountant)["epsilon"],
        "delta": delta,
        "accountant": accountant,
        "budget": budget,
    }


def _row(sweep: SweepCost, delta: float, accountant: str, *, alone: bool) -> SweepRow:
    return {
        "sweep": sweep.newest.sweep,
        "sweep_id": sweep.newest.sweep_id,
        "state": "open" if sweep.is_open else "ended",
        "models": sweep.releases.num_models,
        "epsilon": sweep.releases.joint(delta, accountant)["epsilon"] if alone else None,
        "time": sweep.newest.time,
    }


def show(statement: LedgerStatement) -> None:
    """Print a statement for people."""
    for account in statement["accounts"]:
        rows = [
            {
                "sweep": row["sweep"],
                "state": row["state"],
                "models": row["models"],
                "ε of these": _bound(row["epsilon"]),
                "last entry (UTC)": row["time"][:16].replace("T", " "),
            }
            for row in account["sweeps"]
        ]
        names = ", ".join(_short(label) for label in account["labels"])
        print_table(f"{names}; unit: {account['unit']}", rows)
        said = bound_in_words(account["epsilon"], account["delta"])
        stdout.print(
            f"{account['models']} models together: {said or 'no finite ε'} by accountant "
            f"{account['accountant']}, if no b, T or σ was chosen after an earlier result was seen"
        )
        if (budget := account["budget"]) is not None:
            stdout.print(
                f"budget ε = {budget['epsilon']:g}, δ = {budget['delta']:g}: "
                f"{_bound(budget['spent'])} of it is spent, however b, T and σ were chosen, if this budget "
                "was fixed before the first result"
            )
        stdout.print("")
    if len({account["unit"] for account in statement["accounts"]}) > 1:
        stdout.print("Examples and users are separate units: their ε do not add up to one number.")
    if not statement["accounts"]:
        stdout.print("the ledger has no entry of these data")
    stdout.print(f"Of the store {statement['store']} alone. {NOT_COUNTED.capitalize()}.")
    if statement["restored"]:
        stdout.print(f"{statement['restored']} entries were restored")
    for problem in statement["problems"]:
        print_warning(f"the ledger is not whole: {problem}")


def _short(label: str) -> str:
    """Return a label with a short hash."""
    kind, _, value = label.partition(":")
    return f"{kind} {value if kind in ('name', 'data') else value[:8]}"


def _bound(epsilon: float | None) -> str:
    """Return an upper bound in a few digits."""
    return "unknown" if epsilon is None else "∞" if math.isinf(epsilon) else f"{stated(epsilon)}"
