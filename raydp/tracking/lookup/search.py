"""Lookup of models: MLflow decides what it can, in few calls, and the table decides the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pandas as pd
from mlflow.entities import LoggedModel, ViewType
from mlflow.entities.model_registry import ModelVersion

from raydp.plugins.registries import unknown_name
from raydp.tracking.lookup.conditions import METRICS, ORDER, Conditions
from raydp.tracking.lookup.table import Tracked, ordered, table
from raydp.tracking.lookup.whole_file import all_models, all_versions
from raydp.tracking.records import latest_metrics
from raydp.tracking.sealing.trust import Trust
from raydp.tracking.store import EXPERIMENT_ID_TAG, MODEL_ID_TAG, Store, pages, require_registered
from raydp.tracking.stored_runs import CHUNK, PAGE, uri_of, versions_of_runs

FEW = 50
"""Largest number of versions whose models are searched by name; above it, all are searched."""
SAMPLE = 200
"""Number of models that are read for the known metrics if a search for a metric found nothing."""


@dataclass(kw_only=True)
class Lookup:
    """One search for models.

    Attributes:
        registered_model, alias: restrict the search to versions of this name, or versions that the
            alias points at.
        conditions: conditions on a model.
        trust: demands on the model's guarantee; None demands nothing.
        order_by: a column, or None for name and version.
        limit: largest number of rows; None for all.
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
        """Return the table.

        Its attrs["left_out"] counts the left-out models that meet the conditions, by reason.
        """
        # The name goes into MLflow's filter, which cannot write a quote.
        if self.registered_model is not None and "'" in self.registered_model:
            raise ValueError(
                f"registered_model must not hold a quote, got {self.registered_model!r}. Correct "
                "the name."
            )
        aliased = None if self.alias is None else self._aliased(self.alias)
        # Restrict the search to the versions of a name or an alias, if they are few.
        few = self._few() if aliased is None else aliased
        experiments = _experiments(self.store, few)
        entries: list[Tracked] = []
        if few != [] and experiments:
            # Read pages of models until no later page can change the result.
            for models in self._models(experiments, few):
                entries += tracked(self.store, self._with_versions(models, few))
                if self._enough(entries, models):
                    break
            # An empty result may be a misspelt metric or name, which is said rather than returned.
            if not entries:
                self._require_known(experiments)
        if not entries and self.registered_model is not None:
            require_registered(self.store, self.registered_model, "registered_model")
        return self._kept(entries)

    def _kept(self, entries: list[Tracked]) -> pd.DataFrame:
        """Return the entries that meet the conditions, in order, without unreliable guarantees."""
        frame = table(entries, self.conditions, needs_score=self.order_by == "score")
        rows = ordered(self.conditions.apply(frame) if len(frame) else frame, self.order_by)
        rows.attrs["unreadable"] = frame.attrs["unreadable"]
        limit = len(rows) if self.limit is None else self.limit
        # Without a demand for a guarantee, no seal is checked.
        if self.trust is None:
            rows = rows.head(limit)
            rows.attrs["left_out"] = {}
            return rows
        # In order, and only until the limit: each check may read files from the server.
        by_uri = {uri_of(entry.version): entry for entry in entries}
        kept, left_out = list[int](), Counter[str]()
        for position, uri in enumerate(rows["model_uri"]):
            if len(kept) == limit:
                break
            problem = self._problem(by_uri[uri])
            if problem is None:
                kept.append(position)
            else:
                left_out[problem.partition(":")[0]] += 1
        rows = rows.iloc[kept].reset_index(drop=True)
        rows.attrs |= {"left_out": dict(left_out), "unreadable": frame.attrs["unreadable"]}
        return rows

    def _problem(self, entry: Tracked) -> str | None:
        """Return why the guarantee of an entry is unreliable, or None; cached."""
        assert self.trust is not None
        uri = uri_of(entry.version)
        if uri not in self._problems:
            self._problems[uri] = self.trust.problem(self.store, entry.model, entry.version)
        return self._problems[uri]

    def _ordering(self) -> str | None:
        """Return the metric by which MLflow can sort; None if it cannot."""
        if self.limit is None or self.order_by is None:
            return None
        column = ORDER.get(self.order_by, self.order_by)
        if column == "score" and self.conditions.score is not None:
            return f"score.{self.conditions.score}"
        return column if column in METRICS or column.split(".")[0] == "score" else None

    def _models(
        self, experiments: list[str], few: list[ModelVersion] | None
    ) -> Iterator[list[LoggedModel]]:
        """Yield pages of logged models, sorted if MLflow can sort them."""
        # The filter, restricted to the few versions' runs.
        parts = [part for part in [self.conditions.filter_string()] if part]
        if few is not None:
            runs = sorted({str(version.run_id) for version in few})
            parts.append(f"source_run_id IN ({', '.join(map(repr, runs))})")
        # All models of a file: plain SQL is faster than MLflow's objects.
        if few is None and self._reads_all():
            assert self.store.database is not None, "it is a file"
            yield [
                model
                for model in all_models(self.store.database)
                if model.experiment_id in experiments
            ]
            return
        # Let MLflow sort, so that the first page may be enough. A few spare rows replace those
        # without a version.
        metric = self._ordering()
        size, order = PAGE, None
        if metric is not None and self.limit is not None:
            size = min(PAGE, self.limit + 10)
            order = [{"field_name": f"metrics.{metric}", "ascending": True}]
        token = None
        while True:
            page = self.store.client.search_logged_models(
                experiments, " AND ".join(parts) or None, None, size, order, token
            )
            yield list(page)
            token = page.token
            if not token:
                return

    def _enough(self, entries: list[Tracked], models: list[LoggedModel]) -> bool:
        """Return whether the rows are full and all values of later pages are greater."""
        metric = self._ordering()
        if metric is None or self.limit is None or len(entries) < self.limit or not models:
            return False
        # Count the rows that are left after all conditions, not the models that were read.
        rows = self._kept(entries)
        if len(rows) < self.limit:
            return False
        value = rows[
            metric if metric in rows else ORDER.get(str(self.order_by), str(self.order_by))
        ].iloc[-1]
        last = latest_metrics(models[-1]).get(metric)
        return bool(last is not None and last > value)

    def _few(self) -> list[ModelVersion] | None:
        """Return the registered model's versions; None if they are many, or no name is given."""
        if self.registered_model is None:
            return None
        page = self.store.client.search_model_versions(f"name = '{self.registered_model}'", FEW)
        return None if page.token else list(filter(_is_ours, page))

    def _aliased(self, alias: str) -> list[ModelVersion]:
        """Return the versions that an alias points at, at most one of each registered model."""
        client = self.store.client
        name = None if self.registered_model is None else f"name = '{self.registered_model}'"
        # MLflow's search for versions knows no alias, but its search for registered models returns
        # them.
        registered = pages(partial(client.search_registered_models, name, PAGE))
        pairs = [
            (entry.name, entry.aliases[alias]) for entry in registered if alias in entry.aliases
        ]
        return [
            version
            for pair in pairs
            if _is_ours(version := client.get_model_version(*map(str, pair)))
        ]

    def _with_versions(
        self, models: list[LoggedModel], few: list[ModelVersion] | None
    ) -> list[tuple[ModelVersion, LoggedModel]]:
        """Return the models with their versions. Models that were never registered are left out."""
        by_id = {model.model_id: model for model in models}
        versions = few if few is not None else self._versions_of(models)
        return [(v, by_id[v.tags[MODEL_ID_TAG]]) for v in versions if v.tags[MODEL_ID_TAG] in by_id]

    def _reads_all(self) -> bool:
        """Return whether every model of a file is asked for."""
        everything = (
            self.alias is None and self.limit is None and not self.conditions.filter_string()
        )
        return everything and self.store.database is not None

    def _versions_of(self, models: list[LoggedModel]) -> list[ModelVersion]:
        if self._reads_all():
            assert self.store.database is not None, "it is a file"
            versions = all_versions(self.store.database)
            named = (v for v in versions if self.registered_model in (None, v.name))
            return list(filter(_is_ours, named))
        # Versions are found by their runs, many runs in one search.
        runs = sorted({str(model.source_run_id) for model in models if model.source_run_id})
        return list(filter(_is_ours, versions_of_runs(self.store, runs, self.registered_model)))

    def _require_known(self, experiments: list[str]) -> None:
        """Check, after an empty result, that the metrics in the conditions exist on some model.

        Raises:
            ValueError: no model has a metric that is in the conditions.
        """
        client = self.store.client
        for name in self.conditions.pushed_metrics():
            # No metric has this value, so every model with the metric meets the condition.
            if client.search_logged_models(
                experiments, f"metrics.`{name}` != 0.1234567890123", max_results=1
            ):
                continue
            sample = client.search_logged_models(experiments, max_results=SAMPLE)
            known = sorted({metric.key for model in sample for metric in model.metrics or []})
            if known and name == f"score.{self.conditions.score}":
                scores = [
                    k.removeprefix("score.")
                    for k in known
                    if k.startswith("score.") and "std_err" not in k
                ]
                raise ValueError(unknown_name("score", str(self.conditions.score), scores))
            if known:
                raise ValueError(unknown_name("where", name, known))


def tracked(store: Store, pairs: Sequence[tuple[ModelVersion, LoggedModel]]) -> list[Tracked]:
    """Add the aliases, which MLflow's search for versions does not return."""
    aliases: dict[tuple[str, str], list[str]] = {}
    names = sorted({version.name for version, _ in pairs})
    for start in range(0, len(names), CHUNK):
        part = names[start : start + CHUNK]
        # get_registered_model would read every version of the model.
        said = (
            f"name = {part[0]!r}" if len(part) == 1 else f"name IN ({', '.join(map(repr, part))})"
        )
        for entry in pages(partial(store.client.search_registered_models, said, CHUNK)):
            for alias, number in sorted(entry.aliases.items()):
                aliases.setdefault((entry.name, str(number)), []).append(alias)
    return [
        Tracked(version=v, model=m, aliases=tuple(aliases.get((v.name, str(v.version)), ())))
        for v, m in pairs
    ]


def _experiments(store: Store, few: list[ModelVersion] | None) -> list[str]:
    """Return the experiments to search: those of the versions, or all, including deleted ones."""
    if few is not None:
        return sorted({str(version.tags[EXPERIMENT_ID_TAG]) for version in few})
    experiments = pages(partial(store.client.search_experiments, ViewType.ALL, PAGE))
    return sorted(str(experiment.experiment_id) for experiment in experiments)


def _is_ours(version: ModelVersion) -> bool:
    return MODEL_ID_TAG in version.tags and EXPERIMENT_ID_TAG in version.tags
