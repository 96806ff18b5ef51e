"""The table of models that a lookup returns: one row a version, columns as the points table's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pandas as pd
from mlflow.entities import LoggedModel
from mlflow.entities.model_registry import ModelVersion

from raydp.plugins.registries import unknown_name
from raydp.search_spaces.settings import Settings
from raydp.tracking.lookup.conditions import GUARANTEE, ORDER, Conditions
from raydp.tracking.records import SHOWN_NAMES, latest_metrics

INTEGERS = ("version", "batch_size", "num_steps", "seed")
FLOATS = (
    *("learning_rate", "utility_loss", "score", "epsilon", "delta", "noise_multiplier"),
    *("max_grad_norm", "base_utility_loss", "utility_gain"),
)
COLUMNS = (
    *("name", "version", "aliases", "batch_size", "num_steps", "learning_rate", "seed"),
    *("utility_loss", "score", "run_id", "status", "method", "task_hash", "epsilon", "delta"),
    *("noise_multiplier", "max_grad_norm", "base_utility_loss", "utility_gain", "certified"),
    *("sweep", "model_uri", "model_id"),
)


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """A version of a registered model with its logged model and its aliases."""

    version: ModelVersion
    model: LoggedModel
    aliases: tuple[str, ...]


def table(
    models: Iterable[Tracked], conditions: Conditions, *, needs_score: bool = False
) -> pd.DataFrame:
    """Return one row per version, sorted by name and version.

    `attrs["unreadable"]` counts values that became null.
    """
    unreadable = Counter[str]()
    rows = [_row(entry, unreadable) for entry in models]
    # `score` is filled before the columns are typed, so that it is a number like the metrics.
    key = _score_key(rows, conditions, needs_score)
    if key is not None:
        for row in rows:
            row["score"] = row.get(key)
    extra = sorted({column for row in rows for column in row} - set(COLUMNS))
    frame = pd.DataFrame(rows, columns=[*COLUMNS, *extra])
    numeric = [c for c in map(str, frame) if c in FLOATS or c.startswith("score.")]
    # Nullable types: a missing value must not turn a column of integers into floats.
    frame = frame.astype(dict.fromkeys(numeric, "float64") | dict.fromkeys(INTEGERS, "Int64"))
    frame = frame.sort_values(["name", "version"], ignore_index=True)
    frame.attrs["unreadable"] = dict(unreadable)
    return frame


def ordered(frame: pd.DataFrame, order_by: str | None) -> pd.DataFrame:
    """Sort by a column, ascending, undefined values last; ties by name and version."""
    if order_by is not None:
        column = ORDER.get(order_by, order_by)
        if column not in frame.columns or column == "aliases":
            known = sorted({*frame.columns, *ORDER} - {"aliases"})
            raise ValueError(unknown_name("order_by", order_by, known))
        frame = frame.sort_values([column, "name", "version"])
    return frame.reset_index(drop=True)


def _row(entry: Tracked, unreadable: Counter[str]) -> dict[str, object]:
    """Return a model's values under the column names of the points table.

    Anybody may have changed a value in the registry, and a bad one must not end every lookup: it is
    None, and counted.
    """
    version, model = entry.version, entry.model
    # Metrics first, then parameters and tags, which hold what a metric cannot, such as an infinite
    # ε.
    metrics = latest_metrics(model).items()
    row: dict[str, object] = {
        name: value for name, value in metrics if name in FLOATS or name not in COLUMNS
    }
    tags = model.tags
    named = {shown: name for name, shown in SHOWN_NAMES.items()}
    texts: dict[str, str] = {named.get(k, k): text for k, text in model.params.items()}
    texts |= {name: tags[name] for name in (*GUARANTEE, "noise_multiplier") if name in tags}
    for name, text in texts.items():
        read = _READERS.get(name)
        if read is None:
            row[name if name in COLUMNS else f"param.{name.removeprefix('param.')}"] = text
            continue
        try:
            row[name] = read(text)
        except ValueError:
            row[name] = None
            unreadable[name] += 1
    row |= {name: tags.get(name) for name in ("run_id", "status", "sweep")}
    row["certified"] = tags["certified"] == "true" if "certified" in tags else None
    row |= {"name": version.name, "version": int(version.version), "aliases": entry.aliases}
    row |= {"model_uri": f"models:/{version.name}/{version.version}", "model_id": model.model_id}
    return row


def _integer(text: str) -> int:
    """Return a whole number that the table can hold."""
    number = float(text)
    if not number.is_integer() or abs(number) >= 2**63:
        raise ValueError(text)
    return int(text) if text.lstrip("-").isdecimal() else int(number)


def _settings(text: str) -> str:
    """Return further fields as text, if they can be read."""
    Settings.parse(text)
    return text


_READERS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(INTEGERS, _integer),
    **dict.fromkeys(FLOATS, float),
    "settings": _settings,
}
"""How the text of a column is read; the others are texts."""


def _score_key(rows: list[dict[str, object]], conditions: Conditions, needed: bool) -> str | None:
    """Return the metric that `score` means: the named one, or the only one that exists."""
    # Standard errors are figures of a score, not scores.
    known = sorted(
        {c for row in rows for c in row if c.startswith("score.") and not c.endswith(".std_error")}
    )
    if conditions.score is not None:
        key = f"score.{conditions.score}"
        if rows and key not in known:
            raise ValueError(
                unknown_name("score", conditions.score, [k.removeprefix("score.") for k in known])
            )
        return key
    if len(known) == 1:
        return known[0]
    # Several scores are no mistake unless `score` is used somewhere.
    asked = (
        needed
        or conditions.max_score is not None
        or any(where.column == "score" for where in conditions.where)
    )
    if known and asked and not all("score" in row for row in rows):
        names = ", ".join(key.removeprefix("score.") for key in known)
        raise ValueError(
            f"score must be named where there are several, got none. Give --score: {names}."
        )
    return None
