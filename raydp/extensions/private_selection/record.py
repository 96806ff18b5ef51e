"""The part of a privacy record on a private selection, and its public JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from raydp.privacy.records.cautions import stated
from raydp.privacy.records.record import NOT_COVERED
from raydp.privacy.records.schema import CardPart

BY_UTILITY = "by utility on public data"
"""By what the released run is the best, in records that do not say it."""


@dataclass(frozen=True, kw_only=True)
class PrivateSelectionRecord:
    """How the best of a random number of runs was chosen. epsilon is the ε of the whole choice.

    A `ChoiceRecord`.

    Attributes:
        distribution: of the number of runs: "truncated_negative_binomial", "poisson" or "binomial".
        mean: mean number of runs.
        eta: parameter η of the truncated negative binomial distribution; None for the others.
        configurations: number of configurations that were drawn from.
        single_run_epsilon: ε of the released run alone.
        assumed: further assumptions of the guarantee.
        trials: largest number of runs of the binomial distribution; None for the others.
        bound: the theorem that bounds ε of the choice, in words. Records of earlier versions name
            none: Rényi divergences (Papernot and Steinke 2022).
        best: by what the released run is the best, in words.
    """

    distribution: str
    mean: float
    eta: float | None
    configurations: int
    single_run_epsilon: float
    assumed: tuple[str, ...]
    trials: int | None = None
    bound: str | None = None
    best: str = BY_UTILITY

    tuning: ClassVar[str] = "private_selection"
    not_covered: ClassVar[tuple[str, ...]] = (
        "the other runs of the sweep: nothing of them may be released, not even how many there "
        "were; the sweep's folder holds it and is as private as the data",
        "scores, step metrics and reports in the sweep's folder, which are computed on private "
        "data",
        *(item for item in NOT_COVERED[2:] if not item.startswith("the choice of this config")),
    )

    def in_words(self) -> str:
        """Return how the model was chosen, for one cell of a card's table."""
        kind = self.distribution.replace("_", " ")
        more = "" if self.eta is None else f", η {self.eta:g}"
        more += "" if self.trials is None else f", at most {self.trials}"
        bound = "" if self.bound is None else f"; ε of the choice is bounded by {self.bound}"
        return (
            f"the best, {self.best}, of a random number of runs ({kind}, mean "
            f"{self.mean:g}{more}), each of one of {self.configurations} configurations drawn at "
            f"random; alone it would have ε = {stated(self.single_run_epsilon)}{bound}"
        )

    def terms(self) -> object:
        """Return the values without prose, which may be worded otherwise in another version."""
        return self.distribution, self.mean, self.eta, self.trials, self.configurations, self.best

    def to_json(self) -> dict[str, object]:
        """Return the values as JSON."""
        best = None if self.best == BY_UTILITY else self.best
        optional = {"trials": self.trials, "bound": self.bound, "best": best}
        return {
            "distribution": self.distribution,
            "mean": self.mean,
            "eta": self.eta,
            "configurations": self.configurations,
            "single_run_epsilon": self.single_run_epsilon,
            "assumed": list(self.assumed),
            **{name: value for name, value in optional.items() if value is not None},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> PrivateSelectionRecord:
        """Read the result of `to_json`."""
        return cls(**{**document, "assumed": tuple(document["assumed"])})


class PrivateSelectionDocument(CardPart):
    """How the best of a random number of runs was chosen, where ε covers the choice."""

    distribution: Literal["truncated_negative_binomial", "poisson", "binomial"]
    mean: float
    eta: float | None
    configurations: int
    single_run_epsilon: float
    assumed: list[str]
    trials: int | None = None
    bound: str | None = None
    best: str | None = None
