"""The privacy record of a run, and the joint cost of several released runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from raydp.analysis.tables.statements import Statement, stated_columns
from raydp.plugins.registries import names, resolve
from raydp.privacy.accounting.accountant import Accountant
from raydp.privacy.accounting.events import Event, NonPrivateEvent, PoissonGaussian
from raydp.privacy.accounting.infinity import from_json_number, json_number
from raydp.privacy.records.parts import (
    EVERY_STEP,
    AccountedEpsilon,
    ChoiceRecord,
    Mechanism,
    MethodPart,
    MethodRecord,
    Procedure,
    ReleasedWeights,
)

NOT_COVERED: tuple[str, ...] = (
    "the other runs of the sweep: epsilon is one model's; what several releases cost is their "
    "composed epsilon",
    "utility, scores, step metrics and reports, which are computed on private data",
    "identities of runs and data (run_id, task_hash), hashes of the data: who knows all other "
    "records can test for one",
    "rounding: gradients are summed in single precision, noise is a rounded Gaussian of double "
    "precision",
    "how long steps take, for those who can time them",
    "the choice of this configuration among others, where it used private data",
    "data-dependent preprocessing, such as curation, deduplication or a tokeniser trained on the "
    "data",
    "the number of examples n itself",
)
ADJACENCY = "add-or-remove-one"
"""The relation of neighbouring data sets, of every record."""

INFINITE = "epsilon is infinite"
"""The reason why a record with an infinite ε is not certified."""

SEED_POLICY: dict[str, str] = {
    "secret": "sampling masks and noise come from a secret 256-bit sweep key; no two runs share noise; the public seed "
    "only labels a repetition",
    "test": "sampling masks and noise come from the fixed test key, which is public",
    "none": "no noise is drawn; the public seed only labels a repetition",
}


@dataclass(frozen=True, kw_only=True)
class PrivacyRecord:
    """A run's guarantee: for whom, against whom, and what the guarantee leaves open.

    Attributes:
        accounted: ε and δ with their accountant.
        mechanism: the accounted event, and the clipping.
        procedure: how the method ran the mechanism. The sampler is always known.
        unit: the privacy unit, in words: "example", "e-mail", ...
        seed_policy: where masks and noise come from, in words.
        not_certified_because: reasons why epsilon is no proven, finite bound for how the run was
            made.
        not_covered: items that epsilon does not cover.
        stated: ε that the method states without proof; the accounted epsilon is then inf.
        part: a further part that the method adds.
        choice: for a run that was chosen among others, where epsilon is the ε of the whole choice.

    Raises:
        ValueError: epsilon is finite for a run without noise, or an ε is stated although the run's
            ε is known. Also: ε is infinite or the key is the public test key, and no reason not to
            be certified is given.
    """

    accounted: AccountedEpsilon
    mechanism: Mechanism
    procedure: Procedure
    unit: str
    seed_policy: str
    not_certified_because: tuple[str, ...]
    not_covered: tuple[str, ...]
    stated: Statement | None = None
    part: MethodPart | None = None
    choice: ChoiceRecord | None = None

    def __post_init__(self) -> None:
        epsilon, stated = self.accounted.epsilon, self.stated
        # A record cannot be built that states more than is proven: each of the three would be a
        # false claim.
        if not self.mechanism.private and math.isfinite(epsilon):
            raise ValueError(
                f"epsilon must be inf for a run without noise, got {epsilon}. Use math.inf."
            )
        if stated is not None and self.mechanism.private:
            raise ValueError(
                f"{stated.column} must be left out of a run with an epsilon, got {stated.epsilon}. "
                "Remove it."
            )
        if self.certified and (math.isinf(epsilon) or self.seed_policy == SEED_POLICY["test"]):
            raise ValueError(
                f"not_certified_because must have a reason for epsilon {epsilon} and "
                f"{self.seed_policy!r}, got none. Give the reason."
            )

    @property
    def certified(self) -> bool:
        """Return whether epsilon is a proven, finite bound for how the run was made."""
        return not self.not_certified_because

    @property
    def certified_in_words(self) -> str:
        """Return whether epsilon is certified, and if not why."""
        reasons = "; ".join(self.not_certified_because)
        return f"no, because {reasons}" if reasons else "yes"

    @property
    def tuning(self) -> str:
        """Return whether epsilon covers the choice of this run among others."""
        return "ignored" if self.choice is None else self.choice.tuning

    def to_json(self) -> dict[str, object]:
        """Return the record as strict JSON (infinity is the string "inf")."""
        # Parts that only some runs have are left out, not null, so that old readers still
        # understand the file.
        accounted, mechanism, procedure = self.accounted, self.mechanism, self.procedure
        target, released = accounted.target_epsilon, procedure.released_weights
        optional: dict[str, object] = {
            **stated_columns(self.stated),
            "released_weights": None if released is None else released.to_json(),
            "mechanism": procedure.description,
        }
        if self.part is not None:
            optional[self.part.name] = self.part.to_json()
        if self.choice is not None:
            optional[self.choice.tuning] = self.choice.to_json()
        return {
            "accountant": accounted.accountant,
            "accountant_version": accounted.accountant_version,
            "adjacency": ADJACENCY,
            "unit": self.unit,
            "sampler": procedure.sampler,
            "noise_multiplier": mechanism.noise_multiplier,
            "sample_rate": mechanism.sample_rate,
            "num_steps": mechanism.num_steps,
            "epsilon": json_number(accounted.epsilon),
            "delta": accounted.delta,
            "target_epsilon": None if target is None else json_number(target),
            "max_grad_norm": mechanism.max_grad_norm,
            "clipping": mechanism.clipping,
            "divisor": procedure.divisor,
            "seed_policy": self.seed_policy,
            "certified": self.certified,
            "not_certified_because": list(self.not_certified_because),
            "tuning": self.tuning,
            "not_covered": list(self.not_covered),
            "observer": procedure.observer,
            **{name: value for name, value in optional.items() if value is not None},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> PrivacyRecord:
        """Read the result of `to_json`.

        Records of earlier versions may lack "clipping" and "observer".

        Raises:
            ValueError: the record contradicts itself, or has another adjacency.
            KeyError: a field is missing.
        """
        # `certified` is derived, so a file that contradicts its own reasons has been edited.
        reasons = tuple(document["not_certified_because"])
        for name, value, wanted in (
            ("certified", document["certified"], not reasons),
            ("adjacency", document["adjacency"], ADJACENCY),
        ):
            if value != wanted:
                raise ValueError(
                    f"{name} of a privacy record must be {wanted!r} here, got {value!r}. Restore "
                    "the file."
                )
        # Records of earlier versions lack some keys, which then have the meaning of that time.
        target, parts = document.get("target_epsilon"), names("record_parts")
        part = next((name for name in parts if name in document), None)
        released, choice = document.get("released_weights"), document.get(document["tuning"])
        # The parts, each from its own keys of the flat document.
        return cls(
            accounted=AccountedEpsilon(
                epsilon=from_json_number(document["epsilon"]),
                delta=document["delta"],
                target_epsilon=None if target is None else from_json_number(target),
                accountant=document["accountant"],
                accountant_version=document["accountant_version"],
            ),
            mechanism=Mechanism(
                event=NonPrivateEvent()
                if document["num_steps"] is None
                else PoissonGaussian(
                    sample_rate=document["sample_rate"],
                    noise_multiplier=document["noise_multiplier"],
                    num_steps=document["num_steps"],
                ),
                max_grad_norm=document["max_grad_norm"],
                clipping=document.get("clipping"),
            ),
            procedure=Procedure(
                sampler=document["sampler"],
                divisor=document["divisor"],
                observer=document.get("observer", EVERY_STEP),
                description=document.get("mechanism"),
                released_weights=None if released is None else ReleasedWeights(**released),
            ),
            unit=document["unit"],
            seed_policy=document["seed_policy"],
            not_certified_because=reasons,
            not_covered=tuple(document["not_covered"]),
            stated=Statement.of(document),
            part=None
            if part is None
            else resolve("record_parts", part).model_validate(document[part]),
            choice=None
            if choice is None
            else resolve("policies", document["tuning"]).record.from_json(choice),
        )


def privacy_record(
    *,
    accounted: AccountedEpsilon,
    mechanism: Mechanism,
    unit: str,
    noise_key: Literal["secret", "test"],
    method: MethodRecord | None = None,
    stated: Statement | None = None,
    part: MethodPart | None = None,
    choice: ChoiceRecord | None = None,
) -> PrivacyRecord:
    """Return the privacy record of one run. See `PrivacyRecord` for the other arguments.

    Args:
        noise_key: source of masks and noise: the sweep's secret key or the public test key.
        method: the method's part; None for a method that runs the event as it is.

    Returns:
        A record that is certified only if epsilon is a proven, finite bound for how the run was
        made.

    Raises:
        ValueError: epsilon is finite for a run without noise; or an ε is stated although the run's
            ε is known.
    """
    method, private = method or MethodRecord(), mechanism.private
    # Every doubt about the guarantee becomes a reason, and a record with reasons is not certified.
    reasons = list(method.caveats)
    if math.isinf(accounted.epsilon):
        reasons.append(INFINITE)
    if private and noise_key == "test":
        reasons.append("noise comes from the public test key")
    # The sampler is always stated, because the accounted event assumes one.
    sampler = method.procedure.sampler or ("poisson" if private else "none")
    not_covered = NOT_COVERED if choice is None else choice.not_covered
    return PrivacyRecord(
        accounted=accounted,
        mechanism=mechanism,
        procedure=replace(method.procedure, sampler=sampler),
        unit=unit,
        seed_policy=method.seed_policy or SEED_POLICY[noise_key if private or stated else "none"],
        not_certified_because=tuple(reasons),
        not_covered=(*method.also_not_covered, *not_covered),
        stated=stated,
        part=part,
        choice=choice,
    )


def composed_epsilon(events: Sequence[Event], delta: float, accountant_name: str) -> float:
    """Return an upper bound on ε, at one δ, of releasing several runs' models on the same records.

    Args:
        events: one per released run; the result is inf if one of them is NonPrivateEvent.
        delta: in (0, 1), for all runs together.
        accountant_name: registry name. The accountant's own composition is used (pld: convolution
            of loss distributions; prv: heterogeneous composition; rdp: divergences add up).

    Guarantee:
        The bound holds under two conditions. Each record takes part in every run, sampled and
        noised independently of the other runs. The runs' events were fixed before any result was
        seen. (A grid is fixed. A search that reacts to scores is not: trials that steered it count
        even if they are not released.) Gradients may depend on earlier releases.

    Raises:
        ValueError: there are no events, delta is not in (0, 1), or the accountant is unknown.
        AccountantError: the accountant cannot handle the events together; the message names the
            limit.

    Source: Dwork and Roth 2014 (adaptive composition); Doroshenko et al. 2022; Gopi et al. 2021;
    Mironov 2017.
    """
    accountant: Accountant = resolve("accountants", accountant_name, field="accountant")()
    return accountant.composed_epsilons(events, [delta])[0]
