"""Names of earlier versions: of an argument and field, and of a rule."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

OLD, NEW = "min_utility_gain", "min_gain_share"
"""The share of the best utility gain: the field was called as if it were a gain."""
LEFT_RULE = "predicted-score"


def old_name_read(given: Mapping[str, object], where: str) -> dict[str, object]:
    """Return values with the present name of the field, and warn if they have the old one.

    Args:
        given: name -> value.
        where: what holds the values, for the messages.

    Raises:
        ValueError: both names have a value.
    """
    values = dict(given)
    if values.get("rule") == LEFT_RULE:
        values["rule"] = "informed"
        warn_of_left_rule(where)
    if OLD not in values:
        return values
    value = values.pop(OLD)
    if value is not None and values.get(NEW) is not None:
        raise ValueError(
            f"{where} must have one of {NEW} and {OLD}, its old name, got both. Leave {OLD} out."
        )
    warn_of_old_name(where)
    return {**values, NEW: values.get(NEW) if value is None else value}


@cache  # a process reads its spec several times
def warn_of_old_name(where: str) -> None:
    """Log the present name of the field, once for each place."""
    logging.getLogger(__name__).warning(
        "%s of %s is now called %s, because it is a share. The old name is still read.",
        *(OLD, where, NEW),
    )


@cache
def warn_of_left_rule(where: str) -> None:
    """Log the rule that stands in for one of earlier versions, once for each place."""
    logging.getLogger(__name__).warning(
        "%s names the rule %s of earlier versions. Read as informed, which smooths the scores too.",
        *(where, LEFT_RULE),
    )


def reads_old_name(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function take the old name of the argument `min_gain_share`, with a warning."""

    @wraps(function)
    def wrapped(*args: P.args, **options: P.kwargs) -> T:
        if OLD in options:
            return function(*args, **old_name_read(options, f"{function.__name__}()"))  # type: ignore[arg-type]
        return function(*args, **options)

    return wrapped
