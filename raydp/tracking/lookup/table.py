"""The table of models that a lookup returns: one row a version, with the column names of the points table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from raydp.plugins.registries import unknown_name
from raydp.tracking.lookup.conditions import ORDER, Conditions
from raydp.tracking.records import latest_metrics

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

INTEGERS = ("version", "batch_size", "num_steps", "seed")
FLOATS = (
    *("learning_rate", "utility_loss", "score", "epsilon", "delta", "noise_multiplier", "max_grad_norm"),
    *("base_utility_loss", "utility_gain"),
)
COLUMNS = (
    *("name", "version", "aliases", "batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"),
    *("run_id", "status", "method", "task_hash", "epsilon", "delta", "noise_multiplier", "max_grad_norm"),
    *("base_utility_loss", "utility_gain", "certified", "sweep", "model_uri", "model_id"),
)


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """A version of a registered model with its logged model and its aliases."""

    version: ModelVersion
    model: LoggedModel
    aliases: tuple[str, ...]


def table(models: Iterable[Tracked], conditions: Conditions, *, needs_score: bool = False) -> pd.DataFrame:
    """Return one row per version, sorted by name and version."""
    rows = [_row(entry) for entry in models]
    key = _score_key(rows, conditions, needs_score)
    if key is not None:
        for row in rows:
            row["score"] = row.get(key)
    extra = sorted({column for row in rows for column in row} - set(COLUMNS))
    frame = pd.DataFrame(rows, columns=[*COLUMNS, *extra])
    numeric = [c for c in map(str, frame) if c in FLOATS or c.startswith("score.")]
    frame = frame.astype(dict.fromkeys(numeric, "float64") | dict.fromkeys(INTEGERS, "Int64"))
    return frame.sort_values(["name", "version"], ignore_index=True)


def ordered(frame: pd.DataFrame, order_by: str | None) -> pd.DataFrame:
    """Sort by a column, ascending, undefined values last; ties by name and version."""
    if order_by is not None:
        column = ORDER.get(order_by, order_by)
        if column not in frame.columns or column == "aliases":
            known = sorted({*frame.columns, *ORDER} - {"aliases"})
            raise ValueError(unknown_name("order_by", order_by, known))
        frame = frame.sort_values([column, "name", "version"])
    return frame.reset_index(drop=True)


def _row(entry: Tracked) -> dict[str, object]:
    """Return a model's values under the column names of the points table."""
    version, model = entry.version, entry.model
    row: dict[str, object] = dict(latest_metrics(model))
    for name, text in model.params.items():
        if name in FLOATS:
            row[name] = _number(text)
        elif name in INTEGERS:
            row[name] = None if (number := _number(text)) is None or not number.is_integer() else int(number)
        else:
            own = name in COLUMNS or name == "settings"
            row[name if own else f"param.{name.removeprefix('param.')}"] = text
    tags = model.tags
    row |= {name: _number(tags[name]) for name in ("epsilon", "delta", "noise_multiplier") if name in tags}
    row |= {name: tags.get(name) for name in ("run_id", "status", "sweep")}
    row["certified"] = tags["certified"] == "true" if "certified" in tags else None
    row |= {"name": version.name, "version": int(version.version), "aliases": entry.aliases}
    row |= {"model_uri": f"models:/{version.name}/{version.version}", "model_id": model.model_id}
    return row


def _number(text: str) -> float | None:
    """Return the number in a tag, or None. Anybody may have changed a tag, and a bad one must not end every lookup."""
    try:
        return float(text)
    except ValueError:
        return None


def _score_key(rows: list[dict[str, object]], conditions: Conditions, needed: bool) -> str | None:
    """Return the metric that `score` means: the named one, or the only one that exists."""
    known = sorted({c for row in rows for c in row if c.startswith("score.") and not c.endswith(".std_error")})
    if conditions.score is not None:
        key = f"score.{conditions.score}"
        if rows and key not in known:
            raise ValueError(unknown_name("score", conditions.score, [k.removeprefix("score.") for k in known]))
        return key
    if len(known) == 1:
        return known[0]
    asked = needed or conditions.max_score is not None or any(where.column == "score" for where in conditions.where)
    if known and asked and not all("score" in row for row in rows):
        names = ", ".join(key.removeprefix("score.") for key in known)
        raise ValueError(f"score must be named where there are several, got none. Give --score: {names}.")
    return None
