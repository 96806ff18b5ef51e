"""What a score's value and a ratio of two values say to a person, as the score's class declares."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from raydp.plugins.parameters import constant
from raydp.plugins.registries import names

_RATIO = re.compile(r"\{(times|value)\} times(?= as)")
_CLOSE = 1.05
"""Values whose ratio is below are said to be the same."""
_MANY = 1000.0
"""A larger ratio is not said as a number."""


@dataclass(frozen=True, kw_only=True)
class ScoreWords:
    """A score in words; see the attributes of `raydp.scores.score.ScoreSection`.

    Attributes:
        template: words for a value, with {value}, {percent} or {times}. None where none hold.
        no_leak: the value of a model that leaks nothing; None if it is not known.
        log_base: of which logarithm the value is; None if it is none.
    """

    template: str | None = None
    no_leak: float | None = 0.0
    log_base: float | None = None

    @classmethod
    def of(cls, score: str | None, params: Mapping[str, object] | None = None) -> ScoreWords:
        """Return the words of a score by its name; of an unknown score, nothing is said in words.

        `params` are those that are not the defaults, or all; None if they are not known.
        """
        if score is None or score not in names("scores"):
            return cls()
        asked = ("in_words", "no_leak", "log_base", "worded_for", "logarithmic")
        own = {name: constant("scores", score, name) for name in asked}
        # A parameter may change the meaning of the value, which then has no words.
        known = {} if params is None else {**own["worded_for"], **params}
        worded = all(known.get(name) == value for name, value in own["worded_for"].items())
        template = own["in_words"] if worded else None
        base = own["log_base"] or (math.e if own["logarithmic"] else None)
        return cls(template=template, no_leak=own["no_leak"], log_base=base)

    def say(self, value: float) -> str | None:
        """Say a value in a clause; None where no words hold."""
        if self.template is None or not math.isfinite(value):
            return None
        times = value if self.log_base is None else _power(self.log_base, value)
        close = 1 / _CLOSE < times < _CLOSE
        template = _RATIO.sub("about", self.template) if close else self.template
        return template.format(
            value=f"{value:.3g}", percent=f"{100 * value:.3g} %", times=_number(times)
        )

    def span(self, low: float, high: float) -> str | None:
        """Say a wide interval of a value that is said as a ratio; None of another one."""
        own, said = self.log_base, _RATIO.search(self.template or "")
        ends = [max(0.0, v) if own is None else _power(own, v) for v in (low, high)]
        if said is None or not math.isfinite(sum(ends)) or ends[1] <= 2 * ends[0]:
            return None
        low, high = (float(f"{end:.2g}") for end in ends)
        return f"{_number(low)} to {_number(high)} times"

    def compare(self, value: float, other: float) -> str | None:
        """Say how much a value leaks beside another one; None where their ratio says nothing."""
        if self.template is None or self.no_leak is None or not math.isfinite(value - other):
            return None
        if min(value, other) <= self.no_leak:
            return None
        excess = (value - self.no_leak) / (other - self.no_leak)
        ratio = excess if self.log_base is None else _power(self.log_base, value - other)
        if 1 / _CLOSE < ratio < _CLOSE:
            return "leaks as much"
        times, more = (
            (ratio, "as much") if ratio > 1 else (1 / ratio if ratio else math.inf, "less")
        )
        said = f"over {_MANY:,.0f}" if times > _MANY else _number(times)
        return f"leaks {said} times {more}"


def _power(base: float, exponent: float) -> float:
    """Return a power, infinite where a double cannot hold it."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf


def _number(value: float) -> str:
    """Write a ratio with two digits, and without an exponent where it is of a usual size."""
    return f"{value:,.0f}" if 10 <= value < 1e6 else f"{value:.2g}"
