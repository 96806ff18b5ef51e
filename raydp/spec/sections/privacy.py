"""The section on the guarantee."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from raydp.plugins import registries
from raydp.privacy.mechanisms.tuning import check_bound
from raydp.spec.sections.base import Positive, Section


class NumRunsSpec(Section):
    """The distribution of the number K of runs of a private selection."""

    distribution: Literal["truncated_negative_binomial", "poisson", "binomial"] = "truncated_negative_binomial"
    """`truncated_negative_binomial` (K >= 1), `poisson` or `binomial` (with K = 0 nothing is trained or released)."""
    mean: Annotated[float, Field(gt=1, le=1000)] = 10.0
    """E[K], the expected number of runs."""
    eta: Annotated[float, Field(ge=-0.5, le=10)] = 1.0
    """η of the truncated negative binomial: 1 is geometric, 0 is logarithmic. A smaller value costs less privacy and
    spreads K more."""
    trials: Annotated[int, Field(ge=2, le=10_000)] | None = None
    """The largest K of the binomial distribution, above the mean. Fewer trials spread K less and cost more privacy."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> NumRunsSpec:
        for name in self._unused() & self.model_fields_set:
            raise ValueError(
                f"privacy.num_runs.{name} must be left out with distribution {self.distribution}, got "
                f"{getattr(self, name):g}. Remove it."
            )
        if self.distribution == "binomial" and not (self.trials or 0) > self.mean:
            raise ValueError(
                f"privacy.num_runs.trials must be an integer > mean {self.mean:g} with distribution binomial, got "
                f"{self.trials}. It is the largest number of runs: twice the mean is usual."
            )
        return self

    def _unused(self) -> set[str]:
        """Return the fields that the distribution does not have."""
        used = {"truncated_negative_binomial": "eta", "binomial": "trials"}.get(self.distribution)
        return {"eta", "trials"} - {used}

    @model_serializer(mode="wrap")
    def _without_what_does_not_apply(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        values: dict[str, object] = handler(self)
        return {k: v for k, v in values.items() if k not in self._unused()}


class PrivacySpec(Section):
    """The guarantee that every configuration is calibrated to."""

    target_epsilon: Annotated[float, Field(gt=0, le=1000)]
    """ε of the guarantee: the noise of every configuration is calibrated to it."""
    target_delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """δ of the guarantee as a number; give it or delta_exponent."""
    delta_exponent: Positive | None = None
    """δ as n^-delta_exponent, where n is the number of units. It is 1.1 if target_delta is not given either (Hu et al.
    2025, section 3.1)."""
    accountant: str = registries.DEFAULT_ACCOUNTANT
    """The accountant that computes ε from the noise: `pld`, `prv`, `rdp`, or an installed one by its name."""
    unit: Literal["example", "user"] = "example"
    """The unit that is protected: one example, or one user with all its examples. batch_size, n and δ count units."""
    noise_key: Literal["secret", "test"] = "secret"
    """`secret` draws a key for the sweep. `test` fixes the key, for tests and demonstrations; the guarantee is then not
    certified."""
    tuning: Literal["ignored", "private_selection"] = "ignored"
    """`ignored`: ε covers one model, and not the choice among several. `private_selection`: ε covers the one released
    model, which is the best of a random number of runs by utility on public data (Papernot and Steinke 2022)."""
    num_runs: NumRunsSpec | None = None
    """The distribution of the number of runs; with tuning `private_selection` only."""

    @property
    def selects(self) -> bool:
        """Return whether the choice of the released model is part of the guarantee."""
        return self.tuning == "private_selection"

    def require_ignored_tuning(self, where: str, remedy: str) -> None:
        """Check that the guarantee does not cover a choice among runs.

        Args:
            where: what cannot have such a guarantee, such as "for shadow models".
            remedy: what the user can do instead.

        Raises:
            ValueError: the guarantee covers a choice.
        """
        if self.selects:
            raise ValueError(f"privacy.tuning must be ignored {where}, got private_selection. {remedy}")

    @model_validator(mode="before")
    @classmethod
    def _selection_has_a_distribution(cls, data: object) -> object:
        """Add the default distribution, so that a spec with the defaults written out is an equal spec."""
        if isinstance(data, Mapping) and data.get("tuning") == "private_selection" and data.get("num_runs") is None:
            return {**data, "num_runs": {}}
        return data

    @model_validator(mode="after")
    def _selection_is_whole(self) -> PrivacySpec:
        if not self.selects and self.num_runs is not None:
            raise ValueError(
                "privacy.num_runs must be left out with tuning ignored, got a distribution. Remove it, or set "
                "privacy.tuning: private_selection."
            )
        if self.selects:
            check_bound(self.accountant, field="privacy.accountant")
        if self.num_runs is not None and (self.num_runs.distribution, self.accountant) == ("binomial", "rdp"):
            raise ValueError(
                "privacy.accountant must be pld with num_runs.distribution binomial, got 'rdp'. Rényi divergences have "
                "no theorem for it: set it to pld."
            )
        return self

    @model_serializer(mode="wrap")
    def _without_what_does_not_apply(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Leave out unused fields, which are not part of a run's identity."""
        values: dict[str, object] = handler(self)
        return values if self.selects else {k: v for k, v in values.items() if k not in ("tuning", "num_runs")}

    @model_validator(mode="after")
    def _one_delta(self) -> PrivacySpec:
        if self.target_delta is not None and self.delta_exponent is not None:
            raise ValueError("takes target_delta or delta_exponent, got both. Remove one.")
        return self

    @field_validator("accountant")
    @classmethod
    def _known_accountant(cls, name: str) -> str:
        registries.resolve("accountants", name, field="privacy.accountant")
        return name

    def delta(self, num_units: int) -> float:
        """Return δ for n units: the given δ, or n^-delta_exponent (n^-1.1 if neither is given)."""
        if self.target_delta is not None:
            return self.target_delta
        return float(num_units ** -(self.delta_exponent or 1.1))
