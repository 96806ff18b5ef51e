"""The public JSON Schema of a privacy card: what programs of others may rely on in privacy.json.

The models describe the result of `PrivacyCard.to_json`. They compute nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from raydp.plugins.registries import names, resolve

Number = float | Literal["inf"]
"""A number that may be infinite: JSON has no infinity, so it is the text "inf"."""
Epsilon = Annotated[Number, Field(description='ε, at least 0; "inf" means that nothing bounds it.')]
Delta = Annotated[float, Field(gt=0, lt=1, description="δ of the guarantee.")]


class CardPart(BaseModel):
    """A part of the JSON, without further keys."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ProfileRow(CardPart):
    """ε at one δ."""

    delta: Delta
    epsilon: Number | None = Field(
        description="null: the accountant has no answer, and `reason` says why."
    )
    reason: str | None = None


class AttackRow(CardPart):
    """The largest true positive rate of an attacker at one false positive rate."""

    false_positive_rate: float = Field(ge=0, le=1)
    bound: float = Field(ge=0, le=1)


class Attack(CardPart):
    """Bounds on an attacker who tests whether one record was in the training data, or why there are
    none."""

    accountant: str
    advantage: float | None = Field(
        default=None, description="Largest true minus false positive rate."
    )
    true_positive_rates: list[AttackRow] | None = None
    reason: str | None = None


class GuaranteeDocument(CardPart):
    """The whole guarantee of the run, beyond one pair (ε, δ)."""

    accountant: str
    profile: list[ProfileRow]
    gdp_mu: Number | None = Field(
        description="μ of a Gaussian mechanism above the whole profile, if there is one."
    )
    gdp_mu_reason: str | None
    attack: Attack


class ReleasedWeightsDocument(CardPart):
    """Noise that is added once, to the trained weights."""

    sensitivity: float | None = None
    claimed_sensitivity: float | None = None
    noise_std: float | None = None
    formula: str | None = None


class LedgerDocument(CardPart):
    """The noisy steps that were executed."""

    noisy_steps: int
    executions: int
    replays: int
    note: str


class ReleasedTogetherDocument(CardPart):
    """All models that the sweep released, and their joint cost."""

    models: int
    epsilon: Number | None
    delta: Delta
    accountant: str
    reason: str | None = None
    note: str | None = None


class SearchedDocument(CardPart):
    """The tuning. ε does not cover it, unless `tuning` says so."""

    hyperparameters: dict[str, list[Any]]
    configurations: int
    seeds: list[int]
    rule: str
    chosen_on: list[str]
    elsewhere: list[str] = Field(
        description="What is fixed in the sweep and may have been tuned before."
    )
    search: dict[str, Any] | None = None
    adaptive_seeds: dict[str, Any] | None = None


class PrivacyCardDocument(CardPart):
    """privacy.json: the guarantee of one trained model, whom it is for, and what it leaves open.

    A reader decides by `certified`, `epsilon`, `delta`, `unit`, `adjacency`, `tuning` and
    `not_covered`.
    """

    epsilon: Epsilon
    delta: Delta
    target_epsilon: Number | None = Field(description="The ε that was asked for; null: none was.")
    unit: str = Field(description='The unit of privacy in words: "example", "e-mail", "user", ...')
    adjacency: Literal["add-or-remove-one"] = Field(
        description="The relation of neighbouring data sets."
    )
    certified: bool = Field(
        description="Whether ε is a proven, finite bound for how the run was made."
    )
    not_certified_because: list[str] = Field(
        description="Empty if and only if `certified` is true."
    )
    not_covered: list[str] = Field(description="What ε does not cover, in words.")
    observer: str = Field(default="sees every step", description="What the attacker sees.")
    tuning: str = Field(
        default="ignored", description="Whether ε covers the choice of this run among others."
    )
    accountant: str = Field(description="Who computed ε: pld, prv, rdp, or a plug-in.")
    accountant_version: str
    sampler: str = Field(
        description='How batches are drawn: "poisson", "cyclic poisson", "none", ...'
    )
    noise_multiplier: float = Field(
        ge=0, description="σ: standard deviation of the noise over the clipping norm."
    )
    sample_rate: float | None = Field(
        description="q: expected batch size over n; null for a run without noise."
    )
    num_steps: int | None = Field(description="T; null for a run without noise.")
    max_grad_norm: float | None = Field(description="Clipping norm c; null: nothing is clipped.")
    clipping: str | None = None
    divisor: str = Field(description="What sums of gradients are divided by.")
    seed_policy: str = Field(description="Where sampling masks and noise come from.")
    claimed_epsilon: float | None = Field(
        default=None, description="ε that a method claims without proof."
    )
    released_weights: ReleasedWeightsDocument | None = None
    mechanism: str | None = Field(
        default=None, description="What was run, if the accounted event only dominates it."
    )
    searched: SearchedDocument | None = None
    guarantee: GuaranteeDocument | None = None
    ledger: LedgerDocument | None = None
    released_together: ReleasedTogetherDocument | None = None


def card_schema() -> dict[str, Any]:
    """Return the JSON Schema of privacy.json (draft 2020-12)."""
    # A method and the policy of another tuning each add a part under its own name.
    tunings = names("policies")
    parts = {name: (resolve("record_parts", name) | None, None) for name in names("record_parts")}
    parts |= {
        tuning: (resolve("policies", tuning).document | None, None)
        for tuning in tunings
        if tuning != PrivacyCardDocument.model_fields["tuning"].default
    }
    model: type[PrivacyCardDocument] = create_model(  # type: ignore[call-overload]
        "PrivacyCardDocument", __base__=PrivacyCardDocument, **parts
    )
    # Pydantic titles the schema by the class; readers know the file as "Privacy card".
    schema = model.model_json_schema()
    schema["properties"]["tuning"]["enum"] = tunings
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:raydp:privacy-card:1",
        **schema,
        "title": "Privacy card",
    }
