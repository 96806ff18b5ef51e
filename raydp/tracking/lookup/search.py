"""How models are looked up: MLflow decides what it can, in few calls; the table of what is left decides the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from raydp.plugins.registries import unknown_name
from raydp.tracking.lookup.conditions import METRICS, ORDER, Conditions
from raydp.tracking.lookup.table import Tracked, ordered, table
from raydp.tracking.records import latest_metrics
from raydp.tracking.sealing.trust import Trust
from raydp.tracking.store import EXPERIMENT_ID_TAG, MODEL_ID_TAG, Store

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.store.entities import PagedList

T = TypeVar("T")
PAGE = 1000
FEW = 50
"""So many versions are named in a search for their models; of more, all models are searched."""
SAMPLE = 200
"""Models that are read to tell which metrics there are, where a search for one found nothing."""
CHUNK = 100
"""Runs named in one address: the longest stays below the 8 KiB that proxies take."""


@dataclass(kw_only=True)
class Lookup:
    """One search for models.

    Attributes:
        registered_model, alias: only versions of this name, only those that an alias points at.
        conditions: what a model must meet.
        trust: what is demanded of its guarantee; None: nothing.
        order_by: a column, or None for name and version.
        limit: at most so many rows; None for all.
    """

    store: Store
    registered_model: str | None
    alias: str | None
    conditions: Conditions
    trust: Trust | None
    order_by: str | None
    limit: int | None
    _problems: dict[str, str | None] = field(default_factory=dict)

    def run(self) -> pd.DataFrame:
        """The table; in its attrs "left_out": why and how many models were that meet the conditions."""
        if self.registered_model is not None and "'" in self.registered_model:
            raise ValueError(
                f"registered_model must not hold a quote, got {self.registered_model!r}. Correct the name."
            )
        aliased = None if self.alias is None else self._aliased(self.alias)
        few = self._few() if aliased is None else aliased
        experiments = _experiments(self.store, few)
        found: list[Tracked] = []
        if few != [] and experiments:
            for models in self._models(experiments, few):
                found += tracked(self.store, self._with_versions(models, few))
                if self._enough(found, models):
                    break
            if not found:
                self._require_known(experiments)
        return self._kept(found)

    def _kept(self, found: list[Tracked]) -> pd.DataFrame:
        """What meets the conditions, in order, without those whose guarantee cannot be relied on."""
        frame = table(found, self.conditions, needs_score=self.order_by == "score")
        rows = ordered(self.conditions.apply(frame) if len(frame) else frame, self.order_by)
        limit = len(rows) if self.limit is None else self.limit
        if self.trust is None:
            rows = rows.head(limit)
            rows.attrs["left_out"] = {}
            return rows
        entries = {_uri(entry): entry for entry in found}
        kept, left_out = list[int](), Counter[str]()
        for position, uri in enumerate(rows["model_uri"]):
            if len(kept) == limit:
                break
            problem = self._problem(entries[uri])
            if problem is None:
                kept.append(position)
            else:
                left_out[problem.partition(":")[0]] += 1
        rows = rows.iloc[kept].reset_index(drop=True)
        rows.attrs["left_out"] = dict(left_out)
        return rows

    def _problem(self, entry: Tracked) -> str | None:
        assert self.trust is not None
        uri = _uri(entry)
        if uri not in self._problems:
            self._problems[uri] = self.trust.problem(self.store, entry.model, entry.version)
        return self._problems[uri]

    def _ordering(self) -> str | None:
        """The metric that MLflow can sort by."""
        if self.limit is None or self.order_by is None:
            return None
        column = ORDER.get(self.order_by, self.order_by)
        if column == "score" and self.conditions.score is not None:
            return f"score.{self.conditions.score}"
        return column if column in METRICS or column.split(".")[0] == "score" else None

    def _models(self, experiments: list[str], few: list[ModelVersion] | None) -> Iterator[list[LoggedModel]]:
        """Pages of logged models, sorted where MLflow can."""
        parts = [part for part in [self.conditions.filter_string()] if part]
        if few is not None:
            runs = sorted({str(version.run_id) for version in few})
            parts.append(f"source_run_id IN ({', '.join(map(repr, runs))})")
        metric = self._ordering()
        options: dict[str, Any] = {"max_results": PAGE}
        if metric is not None and self.limit is not None:
            options = {
                "max_results": min(PAGE, self.limit + 10),
                "order_by": [{"field_name": f"metrics.{metric}", "ascending": True}],
            }
        token = None
        while True:
            page = self.store.client.search_logged_models(
                experiments, " AND ".join(parts) or None, page_token=token, **options
            )
            yield list(page)
            token = page.token
            if not token:
                return

    def _enough(self, found: list[Tracked], models: list[LoggedModel]) -> bool:
        """Whether no later page can change the first rows: they are full, and what comes now is greater."""
        metric = self._ordering()
        if metric is None or self.limit is None or len(found) < self.limit or not models:
            return False
        rows = self._kept(found)
        if len(rows) < self.limit:
            return False
        value = rows[metric if metric in rows else ORDER.get(str(self.order_by), str(self.order_by))].iloc[-1]
        last = latest_metrics(models[-1]).get(metric)
        return bool(last is not None and last > value)

    def _few(self) -> list[ModelVersion] | None:
        """The versions of the name that is asked for; None where they are many, or any name will do."""
        if self.registered_model is None:
            return None
        page = self.store.client.search_model_versions(f"name = '{self.registered_model}'", FEW)
        return None if page.token else list(filter(_is_ours, page))

    def _aliased(self, alias: str) -> list[ModelVersion]:
        """The versions that an alias points at, one of a registered model at most."""
        client = self.store.client
        name = None if self.registered_model is None else f"name = '{self.registered_model}'"
        registered = pages(partial(client.search_registered_models, name, PAGE))
        pairs = [(entry.name, entry.aliases[alias]) for entry in registered if alias in entry.aliases]
        return [version for pair in pairs if _is_ours(version := client.get_model_version(*map(str, pair)))]

    def _with_versions(
        self, models: list[LoggedModel], few: list[ModelVersion] | None
    ) -> list[tuple[ModelVersion, LoggedModel]]:
        """The models with their versions; a model that was never registered is not among them."""
        by_id = {model.model_id: model for model in models}
        versions = few if few is not None else self._versions_of(models)
        return [(v, by_id[v.tags[MODEL_ID_TAG]]) for v in versions if v.tags[MODEL_ID_TAG] in by_id]

    def _versions_of(self, models: list[LoggedModel]) -> list[ModelVersion]:
        client = self.store.client
        runs = sorted({str(model.source_run_id) for model in models if model.source_run_id})
        parts = [] if self.registered_model is None else [f"name = '{self.registered_model}'"]
        found: list[ModelVersion] = []
        for start in range(0, len(runs), CHUNK):
            named = ", ".join(map(repr, runs[start : start + CHUNK]))
            condition = " AND ".join([*parts, f"run_id IN ({named})"])
            found += pages(partial(client.search_model_versions, condition, PAGE))
        return list(filter(_is_ours, found))

    def _require_known(self, experiments: list[str]) -> None:
        """Nothing was found: because nothing matches, or because no model has what was named?

        Raises:
            ValueError: a metric that was asked for is on no model.
        """
        client = self.store.client
        for name in self.conditions.pushed_metrics():
            # No metric has this value, so that every model with the metric meets it.
            if client.search_logged_models(experiments, f"metrics.`{name}` != 0.1234567890123", max_results=1):
                continue
            sample = client.search_logged_models(experiments, max_results=SAMPLE)
            known = sorted({metric.key for model in sample for metric in model.metrics or []})
            if known and name == f"score.{self.conditions.score}":
                scores = [k.removeprefix("score.") for k in known if k.startswith("score.") and "std_err" not in k]
                raise ValueError(unknown_name("score", str(self.conditions.score), scores))
            if known:
                raise ValueError(unknown_name("where", name, known))


def tracked(store: Store, pairs: Sequence[tuple[ModelVersion, LoggedModel]]) -> list[Tracked]:
    """Add the aliases, which MLflow's search for versions leaves out."""
    aliases: dict[tuple[str, str], list[str]] = {}
    names = sorted({version.name for version, _ in pairs})
    for start in range(0, len(names), CHUNK):
        part = names[start : start + CHUNK]
        # Not get_registered_model, which reads every version of it.
        said = f"name = {part[0]!r}" if len(part) == 1 else f"name IN ({', '.join(map(repr, part))})"
        for entry in pages(partial(store.client.search_registered_models, said, CHUNK)):
            for alias, number in sorted(entry.aliases.items()):
                aliases.setdefault((entry.name, str(number)), []).append(alias)
    return [Tracked(version=v, model=m, aliases=tuple(aliases.get((v.name, str(v.version)), ()))) for v, m in pairs]


def pages(search: Callable[..., PagedList[T]]) -> list[T]:
    """Every page of a search, which takes a page_token."""
    found, token = list[T](), None
    while True:
        page = search(page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def _experiments(store: Store, few: list[ModelVersion] | None) -> list[str]:
    """Where to search: in every experiment, also a deleted one, or in those of the versions."""
    if few is not None:
        return sorted({str(version.tags[EXPERIMENT_ID_TAG]) for version in few})
    from mlflow.entities import ViewType

    found = pages(partial(store.client.search_experiments, ViewType.ALL, PAGE))
    return sorted(str(experiment.experiment_id) for experiment in found)


def _is_ours(version: ModelVersion) -> bool:
    return MODEL_ID_TAG in version.tags and EXPERIMENT_ID_TAG in version.tags


def _uri(entry: Tracked) -> str:
    return f"models:/{entry.version.name}/{entry.version.version}"
