"""The summary of a sweep: run counts, the selection, and the joint cost of released models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from raydp.analysis.statistics.results import given
from raydp.privacy.accounting.infinity import json_number
from raydp.privacy.records.card_content import JointCost, ReleasedTogether
from raydp.search_spaces import Configuration
from raydp.search_spaces.configuration import Hyperparameters
from raydp.sweep.store.state import SearchEnd, SeedsEnd


@dataclass(frozen=True, kw_only=True)
class RunFailure:
    """A failed run: its configuration, its seed, its id and the reason."""

    configuration: Configuration
    seed: int
    run_id: str
    reason: str | None

    def to_json(self) -> dict[str, object]:
        """Return the failure as an entry of "failures"."""
        return {
            **self.configuration.to_json(),
            "seed": self.seed,
            "run_id": self.run_id,
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RunFailure:
        """Read what `to_json` wrote."""
        own = {name: document[name] for name in ("seed", "run_id", "reason")}
        return cls(configuration=Configuration.from_json(cast("Hyperparameters", document)), **own)


@dataclass(frozen=True, kw_only=True)
class RunCounts:
    """Numbers of runs by status.

    Attributes:
        runs: number of planned runs.
        finished: number of runs that did their last step and were measured.
        failed: number of failed runs.
        stopped: number of runs that ended early at a check.
        pending: number of runs without a result.
        failures: the failed runs.
        skipped: number of runs that a search or adaptive seeds left out; None if neither has ended.
        search: how the search ended; None if none has ended.
        seeds: how the adaptive seeds ended; None if they have not.
        note: a sentence that must be shown with the numbers.
        optional: number of pending runs that adaptive seeds train only if the decision needs them.
    """

    runs: int
    finished: int
    failed: int
    stopped: int
    pending: int
    failures: tuple[RunFailure, ...] = ()
    skipped: int | None = None
    search: SearchEnd | None = None
    seeds: SeedsEnd | None = None
    note: str | None = None
    optional: int = 0

    @property
    def sentence(self) -> str:
        """Return the numbers as text, such as "18 runs, 17 finished, 1 failed, ..."."""
        words = {name: f"{number} {name}" for name, number in self.numbers.items()}
        if self.optional:
            words["pending"] += f" ({self.optional} of them only if the decision needs them)"
        return ", ".join(words.values())

    @property
    def numbers(self) -> dict[str, int]:
        """Return the number of runs by status.

        "skipped" is left out if neither a search nor adaptive seeds have ended.
        """
        names = ("runs", "finished", "failed", "stopped", "pending")
        skipped = {} if self.skipped is None else {"skipped": self.skipped}
        return {**{name: getattr(self, name) for name in names}, **skipped}

    def to_json(self) -> dict[str, object]:
        """Return the document of `raydp status --json`."""
        return {
            **given(note=self.note),
            **self.numbers,
            **({"optional": self.optional} if self.optional else {}),
            **given(
                search=None if self.search is None else self.search.to_json(),
                seeds=None if self.seeds is None else self.seeds.to_json(),
            ),
            "failures": [failure.to_json() for failure in self.failures],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RunCounts:
        """Read what `to_json` wrote."""
        search, seeds = document.get("search"), document.get("seeds")
        return cls(
            runs=document["runs"],
            finished=document["finished"],
            failed=document["failed"],
            stopped=document["stopped"],
            pending=document["pending"],
            failures=tuple(RunFailure.from_json(failure) for failure in document["failures"]),
            skipped=document.get("skipped"),
            search=None if search is None else SearchEnd.from_json(search),
            seeds=None if seeds is None else SeedsEnd.from_json(seeds),
            note=document.get("note"),
            optional=document.get("optional", 0),
        )


@dataclass(frozen=True, kw_only=True)
class ReleasedModels:
    """The joint cost of all models that a sweep registered.

    Attributes:
        run_ids: the runs of the models.
        epsilon: ε of all models together, inf without a guarantee; None if the accountant has no
            answer.
        delta: δ of all models together.
        accountant: the accountant that computed ε.
        reason: why ε is None.
        note: what ε does not cover.
    """

    run_ids: tuple[str, ...]
    epsilon: float | None
    delta: float
    accountant: str
    reason: str | None = None
    note: str | None = None

    @property
    def num_models(self) -> int:
        """Return the number of models."""
        return len(self.run_ids)

    def to_json(self) -> ReleasedTogether:
        """Return the content of released.json. An infinite ε is the string "inf"."""
        return {"models": self.num_models, "run_ids": list(self.run_ids), **self._cost()}

    def on_card(self) -> ReleasedTogether:
        """Return the content for every model's card: without run ids, which would lengthen it."""
        document = self.to_json()
        del document["run_ids"]
        return document

    def _cost(self) -> JointCost:
        epsilon = None if self.epsilon is None else json_number(self.epsilon)
        cost: JointCost = {"epsilon": epsilon, "delta": self.delta, "accountant": self.accountant}
        if self.reason is not None:
            cost["reason"] = self.reason
        if self.note is not None:
            cost["note"] = self.note
        return cost

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ReleasedModels:
        """Read what `to_json` wrote."""
        epsilon = document["epsilon"]
        return cls(
            run_ids=tuple(document["run_ids"]),
            epsilon=None if epsilon is None else float(epsilon),
            delta=document["delta"],
            accountant=document["accountant"],
            reason=document.get("reason"),
            note=document.get("note"),
        )


@dataclass(frozen=True, kw_only=True)
class SelectedConfiguration:
    """A selection as a sweep's summary keeps it.

    Attributes:
        rule: the rule that selected the configuration.
        model_uri: the registered model of the configuration; None if there is none.
        document: the whole selection, as `raydp select --json` prints it.
    """

    configuration: Configuration
    utility_loss: float
    score: float | None
    rule: str
    model_uri: str | None
    document: Mapping[str, object]

    def figures(self) -> dict[str, object]:
        """Return the row of `raydp list --json`: all attributes except the document."""
        own = {name: getattr(self, name) for name in ("utility_loss", "score", "rule", "model_uri")}
        return {**self.configuration.to_json(), **own}

    def to_json(self) -> dict[str, object]:
        """Return the whole selection."""
        return dict(self.document)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SelectedConfiguration:
        """Read a document of `raydp.analysis.Selection.to_dict`."""
        return cls(
            configuration=Configuration.from_json(cast("Hyperparameters", document)),
            utility_loss=document["utility_loss"],
            score=document["score"],
            rule=document["rule"],
            model_uri=document["model_uri"],
            document=document,
        )


@dataclass(frozen=True, kw_only=True)
class SweepSummary:
    """The content of summary.json, which the end of a sweep writes if a configuration was selected.

    Attributes:
        counts: numbers of runs by status.
        selected: the selected configuration.
        best_utility: the configuration with the best utility; None for a sweep whose ε covers its
            one choice.
        released: the joint cost of all registered models; None if none is registered.
        audit_alarm: the alarm that an audit raised for the selected configuration.
        aliases: alias -> the model that the end of the sweep gave it to. An alias may have moved
            since.
    """

    counts: RunCounts
    selected: SelectedConfiguration
    best_utility: SelectedConfiguration | None = None
    released: ReleasedModels | None = None
    audit_alarm: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the content of summary.json."""
        return {
            "counts": self.counts.to_json(),
            "selected": self.selected.to_json(),
            **given(
                best_utility=None if self.best_utility is None else self.best_utility.to_json()
            ),
            "released_together": None if self.released is None else self.released.to_json(),
            **given(audit_alarm=self.audit_alarm),
            **({"aliases": dict(self.aliases)} if self.aliases else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SweepSummary:
        """Read what `to_json` wrote. Early versions wrote no "released_together"."""
        best, released = document.get("best_utility"), document.get("released_together")
        return cls(
            counts=RunCounts.from_json(document["counts"]),
            selected=SelectedConfiguration.from_json(document["selected"]),
            best_utility=None if best is None else SelectedConfiguration.from_json(best),
            released=None if released is None else ReleasedModels.from_json(released),
            audit_alarm=document.get("audit_alarm"),
            aliases=document.get("aliases", {}),
        )
