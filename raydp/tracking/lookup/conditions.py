"""Conditions on models, and the part of them that MLflow's own search can decide.

Conditions are bounds, a configuration, and `where`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import pandas as pd

from raydp.plugins.registries import unknown_name
from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.tracking.records import SHOWN_NAMES, as_params

GUARANTEE = ("epsilon", "delta")
_FIGURES = ("noise_multiplier", "utility_loss", "utility_gain", "base_utility_loss", "seconds")
METRICS = (*GUARANTEE, *_FIGURES)
PARAMS = (*HYPERPARAMETERS, "seed", "method", "task_hash", "max_grad_norm")
NUMBERS = (*HYPERPARAMETERS, "seed", "max_grad_norm")
TAGS = ("run_id", "sweep", "status")
ORDER = {"loss": "utility_loss"}
"""Short names of columns in `order_by` and `where`."""

_OPERATORS = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_WHERE = re.compile(r"\s*([\w./ -]*?[\w./-])\s*(<=|>=|==|!=|<|>|=)\s*(.*?)\s*", re.DOTALL)
_PLAIN_TEXT = re.compile(r"[\w.:/@+-]+")
"""Texts that may go into MLflow's filter unchanged: it cannot write a quote inside a text."""


@dataclass(frozen=True, kw_only=True)
class Where:
    """One condition: a column of the table of models, an operator, and a number or a text."""

    column: str
    operator: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Where:
        """Parse `COLUMN OPERATOR VALUE`. A text may be in quotes.

        Raises:
            ValueError: the condition has another form, or compares texts by size.
        """
        # Split the text, with the long names of columns.
        match = _WHERE.fullmatch(text)
        if match is None or not match[3]:
            raise ValueError(
                f"where must be COLUMN OPERATOR VALUE with one of < <= = != >= >, got {text!r}. "
                "Write it as 'score.vmr < 0.05' or 'method = dp_adam'."
            )
        column, value = ORDER.get(match[1], match[1]), match[3]
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        where = cls(column=column, operator="=" if match[2] == "==" else match[2], value=value)
        # Texts have no order, and metrics and some parameters are never texts.
        if where.number is None and (where.operator not in ("=", "!=") or _is_metric(column)):
            raise ValueError(
                f"where must compare by size with a number, got {text!r}. Give a number, or use = "
                "or !=."
            )
        if where.number is None and column in NUMBERS:
            raise ValueError(
                f"where must compare {column} with a number, got {value!r}. Correct it."
            )
        return where

    @property
    def number(self) -> float | None:
        """Return the value as a number; None if it is a text."""
        try:
            value = float(self.value)
        except ValueError:
            return None
        return None if math.isnan(value) else value

    def pushed(self) -> str | None:
        """Return the condition, or a weaker one, in MLflow's filter language, if there is one."""
        # A metric: MLflow compares numbers.
        number = self.number
        if _is_metric(self.column) and number is not None and math.isfinite(number):
            # An infinite ε is not an MLflow metric, so > and != would lose models that meet the
            # condition.
            if self.column in GUARANTEE and self.operator in (">", ">=", "!="):
                return None
            return f"metrics.`{self.column}` {self.operator} {plain(number)}"
        # Anything else is stored as text, and only equality of texts means equality of values.
        # Earlier versions of raydp stored some parameters by another name.
        name = self.column.removeprefix("param.")
        if self.operator != "=" or name in SHOWN_NAMES:
            return None
        if self.column in PARAMS or self.column != name:
            # One number has several texts: as the user wrote it, as it is stored, and as an
            # integer.
            texts = {self.value, *as_params({"": number} if number is not None else {}).values()}
            if number is not None and number.is_integer():
                texts.add(str(int(number)))
            if all(_PLAIN_TEXT.fullmatch(text) for text in texts) and _PLAIN_TEXT.fullmatch(name):
                return f"params.`{name}` IN ({', '.join(repr(text) for text in sorted(texts))})"
        if self.column in TAGS and _PLAIN_TEXT.fullmatch(self.value):
            return f"tags.`{self.column}` = '{self.value}'"
        return None

    def keep(self, frame: pd.DataFrame) -> pd.Series[bool]:
        """Return the rows that meet the condition. An undefined value meets no condition.

        Raises:
            ValueError: the table has no such column, or the column has numbers and the value is a
                text.
        """
        # A further parameter may be named with or without its prefix.
        column = self.column if self.column in frame else f"param.{self.column}"
        if column not in frame or column == "aliases":
            raise ValueError(
                unknown_name("where", self.column, sorted({*map(str, frame), *ORDER} - {"aliases"}))
            )
        values, compare = frame[column], _OPERATORS[self.operator]
        # Compare as numbers if the column has any, otherwise as texts. Undefined values never meet
        # a condition, also not "!=".
        if column == "certified":
            values = values.map({True: "true", False: "false"})
        elif (
            self.number is not None
            and (numbers := pd.to_numeric(values, errors="coerce")).notna().any()
        ):
            met: pd.Series[bool] = (
                (compare(numbers, self.number) & numbers.notna()).fillna(False).astype(bool)
            )
            return met
        elif pd.api.types.is_numeric_dtype(values) and values.notna().any():
            raise ValueError(
                f"where must compare {self.column} with a number, got {self.value!r}. Correct it."
            )
        texts = values.astype("string")
        same: pd.Series[bool] = compare(texts, self.value).fillna(False).astype(bool)
        return same


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Conditions on a model; see `find_models`."""

    min_epsilon: float | None = None
    max_epsilon: float | None = None
    max_delta: float | None = None
    max_loss: float | None = None
    score: str | None = None
    max_score: float | None = None
    batch_size: int | None = None
    num_steps: int | None = None
    learning_rate: float | None = None
    certified: bool | None = None
    where: tuple[Where, ...] = ()

    def __post_init__(self) -> None:
        # NaN would compare as false everywhere and silently find nothing.
        for name in ("max_epsilon", "max_delta", "max_loss", "max_score", "min_epsilon"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValueError(
                    f"{name} must be finite, got {value}. Leave it out to set no bound."
                )
        least, most = self.min_epsilon, self.max_epsilon
        if least is not None and most is not None and least > most:
            raise ValueError(
                f"min_epsilon must be at most max_epsilon {most:g}, got {least:g}. Exchange them."
            )
        if self.score is not None and not re.fullmatch(r"[\w.-]+", self.score):
            raise ValueError(
                f"score must be the name of a score, got {self.score!r}. For example vmr."
            )

    @property
    def ask_for_a_guarantee(self) -> bool:
        """Return whether a condition relies on the model's privacy card."""
        bounds = self.max_epsilon is not None or self.max_delta is not None or bool(self.certified)
        return bounds or any(where.column in (*GUARANTEE, "certified") for where in self.where)

    def filter_string(self) -> str:
        """Return the part that MLflow's search decides: no min_epsilon, as ∞ is no metric."""
        # Bounds on metrics, the configuration, and what `where` can push down.
        bounds = {
            "epsilon": self.max_epsilon,
            "delta": self.max_delta,
            "utility_loss": self.max_loss,
        }
        if self.score is not None:
            bounds[f"score.{self.score}"] = self.max_score
        parts = [
            f"metrics.`{name}` <= {plain(value)}"
            for name, value in bounds.items()
            if value is not None
        ]
        parts += [
            f"params.{name} = '{text}'" for name, text in as_params(self._configuration()).items()
        ]
        if self.certified is not None:
            parts.append(f"tags.certified = '{str(self.certified).lower()}'")
        parts += [pushed for where in self._wheres() if (pushed := where.pushed()) is not None]
        return " AND ".join(parts)

    def pushed_metrics(self) -> list[str]:
        """Return the metrics in the filter, other than those with fixed names.

        Perhaps no model has them.
        """
        named = (
            [f"score.{self.score}"] if self.score is not None and self.max_score is not None else []
        )
        return named + [
            w.column for w in self._wheres() if w.pushed() and w.column.startswith("score")
        ]

    def apply(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows that meet every condition. An undefined value meets no condition."""
        # Everything is checked again here: the pushed filter may be weaker, and may be missing.
        keep = pd.Series(True, index=frame.index)
        bounds = {"delta": self.max_delta, "utility_loss": self.max_loss, "score": self.max_score}
        for column, bound in {"epsilon": self.max_epsilon, **bounds}.items():
            if bound is not None:
                keep &= frame[column] <= bound
        if self.min_epsilon is not None:
            keep &= frame["epsilon"] >= self.min_epsilon
        equal = {**self._configuration(), "certified": self.certified}
        for column, value in equal.items():
            if value is not None:
                keep &= (frame[column] == value).fillna(False).astype(bool)
        for where in self.where:
            keep &= where.keep(frame)
        if self.max_delta is not None or any(where.column == "delta" for where in self.where):
            keep &= frame["epsilon"] < math.inf  # δ is undefined without an ε
        return frame[keep]

    def _wheres(self) -> Sequence[Where]:
        """Return `where` with the named score's metric for `score`.

        Without a name, skip conditions on `score`.
        """
        if self.score is None:
            return [where for where in self.where if where.column != "score"]
        meant = f"score.{self.score}"
        return [
            Where(column=meant, operator=w.operator, value=w.value) if w.column == "score" else w
            for w in self.where
        ]

    def _configuration(self) -> dict[str, float | None]:
        rate = None if self.learning_rate is None else float(self.learning_rate)
        return {"batch_size": self.batch_size, "num_steps": self.num_steps, "learning_rate": rate}


def _is_metric(column: str) -> bool:
    return column in METRICS or column == "score" or column.startswith("score.")


def plain(value: float) -> str:
    """Return a number that round-trips, without an exponent: MLflow's parser refuses -1e-05."""
    return format(Decimal(repr(float(value))), "f")
