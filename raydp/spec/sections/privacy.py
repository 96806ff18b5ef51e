"""The section on the guarantee."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from raydp.plugins import registries
from raydp.plugins.described import shown
from raydp.spec.sections.section import Positive, Section

IGNORED = "ignored"
"""The tuning of an ordinary sweep."""


class BudgetSpec(Section):
    """The most that all sweeps on the same data may release together, by the ledger of the store."""

    epsilon: Annotated[float, Field(gt=0, le=1000)]
    """The largest joint ε of all sweeps on the data."""
    delta: Annotated[float, Field(gt=0, lt=1)]
    """δ of the joint ε."""
    data: Annotated[str, Field(pattern=r"^\S[^\x00-\x1f]{0,199}$")] | None = None
    """A name of the data. Sweeps with one name, or with equal files, have one budget."""


class PrivacySpec(Section):
    """The guarantee that every configuration is calibrated to, or the noise that they all have.

    A policy of another tuning has a subclass with its own fields (see
    `raydp.sweep.policy.SweepPolicy`). A spec is read as the class of its tuning.
    """

    target_epsilon: Annotated[float, Field(gt=0, le=1000)] | None = None
    """ε of the guarantee: the noise of every configuration is calibrated to it.

    Give it or noise_multiplier.
    """
    noise_multiplier: Positive | None = None
    """σ of every configuration, whose ε is then computed: configurations differ in their ε."""
    target_delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """δ of the guarantee as a number; give it or delta_exponent."""
    delta_exponent: Positive | None = None
    """δ as n^-delta_exponent, where n is the number of units.

    It is 1.1 if target_delta is not given either (Hu et al. 2025, section 3.1).
    """
    accountant: str = registries.DEFAULT_ACCOUNTANT
    """The accountant that computes ε from the noise: `pld`, `prv`, `rdp`, or an installed one by
    its name."""
    unit: Literal["example", "user"] = "example"
    """The unit that is protected: one example, or one user with all its examples.

    batch_size, n and δ count units.
    """
    noise_key: Literal["secret", "test"] = "secret"
    """`secret` draws a key for the sweep.

    `test` fixes the key, for tests and demonstrations; the guarantee is then not certified.
    """
    tuning: str = IGNORED
    """`ignored`: ε covers one model, and not the choice among several."""
    budget: BudgetSpec | None = None
    """The most that all sweeps on the same data may release together; null for no bound."""

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_tuning(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> PrivacySpec:
        """Read a section as the class of its tuning."""
        if cls is not PrivacySpec or not isinstance(data, Mapping):
            return handler(data)
        tuning = data.get("tuning", IGNORED)
        known = registries.names("policies")
        if tuning == IGNORED:
            return handler(_without_other_tunings(data))
        if tuning in known:
            section: type[PrivacySpec] = registries.resolve("policies", tuning).section
            return section.model_validate(data)
        # A name that the core does not have may be that of an extension.
        raise ValueError(
            f"privacy.tuning must be {' or '.join(map(repr, known))}, got {shown(tuning)}. Change "
            "it; another tuning needs an extension that is not installed."
        )

    @classmethod
    def further_fields(cls) -> Mapping[str, FieldInfo]:
        """Return the fields that only the sections of other tunings have."""
        return {
            name: field
            for tuning in registries.names("policies")
            if tuning != IGNORED
            for name, field in registries.resolve("policies", tuning).section.model_fields.items()
            if name not in PrivacySpec.model_fields
        }

    def require_ignored_tuning(self, where: str, remedy: str) -> None:
        """Check that the guarantee does not cover a choice among runs.

        Args:
            where: what cannot have such a guarantee, such as "for shadow models".
            remedy: what the user can do instead.

        Raises:
            ValueError: the guarantee covers a choice.
        """
        if self.tuning != IGNORED:
            raise ValueError(f"privacy.tuning must be ignored {where}, got {self.tuning}. {remedy}")

    @model_serializer(mode="wrap")
    def _without_what_does_not_apply(
        self, handler: SerializerFunctionWrapHandler
    ) -> dict[str, object]:
        """Leave out an ignored tuning, and a σ or a budget that is not given.

        None of them is part of a run's id.
        """
        values: dict[str, object] = handler(self)
        left_out = (("tuning", IGNORED), ("noise_multiplier", None), ("budget", None))
        return {k: v for k, v in values.items() if (k, v) not in left_out}

    @model_validator(mode="after")
    def _target_or_noise(self) -> PrivacySpec:
        if (self.target_epsilon is None) == (self.noise_multiplier is None):
            got = (
                "neither. Add target_epsilon" if self.target_epsilon is None else "both. Remove one"
            )
            raise ValueError(f"takes target_epsilon or noise_multiplier, got {got}.")
        if self.noise_multiplier is not None and self.tuning != IGNORED:
            raise ValueError(
                f"privacy.noise_multiplier must be left out with tuning {self.tuning}, got "
                f"{self.noise_multiplier:g}: the noise is calibrated to the whole choice. Give "
                "target_epsilon."
            )
        return self

    def require_target(self, where: str) -> float:
        """Return target_epsilon.

        Args:
            where: what needs a target, such as "for an audit".

        Raises:
            ValueError: the spec gives σ and no target.
        """
        if self.target_epsilon is None:
            raise ValueError(
                f"privacy.target_epsilon must be given {where}, got noise_multiplier "
                f"{self.noise_multiplier:g}. Give the target in its place."
            )
        return self.target_epsilon

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
        # n^-1.1 is below 1/n for every n > 1 (Hu et al. 2025, section 3.1).
        return float(num_units ** -(self.delta_exponent or 1.1))


def _without_other_tunings(data: Mapping[str, object]) -> Mapping[str, object]:
    """Return a section without the empty fields of other tunings, and refuse their values."""
    for tuning in registries.names("policies") if set(data) - set(PrivacySpec.model_fields) else ():
        if tuning == IGNORED:
            continue
        own = set(registries.resolve("policies", tuning).section.model_fields)
        for name in own.intersection(data) - set(PrivacySpec.model_fields):
            if data[name] is not None:
                raise ValueError(
                    f"privacy.{name} must be left out with tuning ignored, got "
                    f"{shown(data[name])}. Remove it, or set privacy.tuning: {tuning}."
                )
            # A spec of an earlier version has all fields, also those without a value.
            data = {key: value for key, value in data.items() if key != name}
    return data
