"""The parts of a privacy record: accounted ε, mechanism, the method's statements, the choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypedDict

from raydp.analysis.statistics.results import given
from raydp.privacy.accounting.events import Event, NonPrivateEvent, check_delta

EVERY_STEP = "sees every step"
"""The strongest observer. Records of earlier versions name no observer and mean this one."""


@dataclass(frozen=True, kw_only=True)
class AccountedEpsilon:
    """The guarantee (ε, δ) of a run, and who computed it.

    Attributes:
        epsilon: the accountant's bound for the event at delta; inf for NonPrivateEvent.
        delta: in (0, 1).
        target_epsilon: the requested ε; None if none was requested.
        accountant: registry name.
        accountant_version: library and version.

    Raises:
        ValueError: epsilon is negative, NaN or above the target, or delta is out of its range.
    """

    epsilon: float
    delta: float
    target_epsilon: float | None
    accountant: str
    accountant_version: str

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if not self.epsilon >= 0:
            raise ValueError(
                f"epsilon must be >= 0, got {self.epsilon}. Take it from the accountant."
            )
        # A failed calibration must not pass for one that met its target.
        if self.target_epsilon is not None and self.epsilon > self.target_epsilon:
            raise ValueError(
                f"epsilon must be <= target_epsilon {self.target_epsilon}, got {self.epsilon}. "
                "Calibrate the run again."
            )


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """The accounted mechanism.

    Attributes:
        event: what the run released.
        max_grad_norm: clipping norm c; None if nothing is clipped.
        clipping: how gradients are scaled to max_grad_norm: "flat", "automatic", or "adaptive",
            which starts from it.
    """

    event: Event
    max_grad_norm: float | None = None
    clipping: str | None = None

    @property
    def private(self) -> bool:
        """Return whether the mechanism adds noise."""
        return not isinstance(self.event, NonPrivateEvent)

    @property
    def noise_multiplier(self) -> float:
        """Return σ; 0 without noise."""
        return 0.0 if isinstance(self.event, NonPrivateEvent) else self.event.noise_multiplier

    @property
    def sample_rate(self) -> float | None:
        """Return q; None without noise."""
        return None if isinstance(self.event, NonPrivateEvent) else self.event.sample_rate

    @property
    def num_steps(self) -> int | None:
        """Return T of the event; None without noise."""
        return None if isinstance(self.event, NonPrivateEvent) else self.event.num_steps


@dataclass(frozen=True, kw_only=True)
class ReleasedWeights:
    """The noise of a method that perturbs its trained weights once, before their release.

    Attributes:
        noise_std: standard deviation of the noise on each weight.
        sensitivity: proven sensitivity of the weights; None if there is only a claim.
        claimed_sensitivity: sensitivity that the method claims without proof.
        formula: name of the formula that gives noise_std, if the sensitivity is only claimed.
    """

    noise_std: float
    sensitivity: float | None = None
    claimed_sensitivity: float | None = None
    formula: str | None = None

    def to_json(self) -> dict[str, float | str]:
        """Return the known values as JSON."""
        return given(
            formula=self.formula,
            sensitivity=self.sensitivity,
            claimed_sensitivity=self.claimed_sensitivity,
            noise_std=self.noise_std,
        )


@dataclass(frozen=True, kw_only=True)
class Procedure:
    """How the method runs the mechanism, as the record states it.

    Attributes:
        sampler: how batches are drawn; None means as the event says.
        divisor: divisor of the sums of gradients.
        observer: what the attacker, against whom the guarantee holds, may see.
        description: the mechanism in words, if the event is not the mechanism but dominates it.
        released_weights: the noise on the trained weights; None without such noise.
    """

    sampler: str | None = None
    divisor: str = "expected batch size"
    observer: str = EVERY_STEP
    description: str | None = None
    released_weights: ReleasedWeights | None = None


@dataclass(frozen=True, kw_only=True)
class MethodRecord:
    """A method's part of a run's privacy record.

    Attributes:
        procedure: how the method runs the mechanism.
        caveats: further reasons why the guarantee does not hold as stated (a sampler that shuffles,
            a claim without proof). Each makes the record uncertified.
        also_not_covered: further items that epsilon does not cover.
        seed_policy: where masks and noise come from, if not from the sweep's key.
    """

    procedure: Procedure = field(default_factory=Procedure)
    caveats: tuple[str, ...] = ()
    also_not_covered: tuple[str, ...] = ()
    seed_policy: str | None = None


class MethodPart(Protocol):
    """A further part of a run's privacy record, which only some methods add.

    An entry point of the group `raydp.record_parts` names its class, a pydantic model of the JSON.
    Implemented by `DataSetsRecord` of the extension `reference_data`.

    Attributes:
        name: key of the part in the record, and name of the entry point.
    """

    name: ClassVar[str]

    def to_json(self) -> dict[str, object]:
        """Return the values as JSON."""

    def columns(self) -> dict[str, float | None]:
        """Return further columns of the plan's table."""

    def remarks(self, unit: str) -> list[str]:
        """Return sentences that a table's ε needs beside it; `unit` is the privacy unit."""

    def rows(self) -> list[tuple[str, str]]:
        """Return rows of the card's table: a name and a cell."""


class ChoiceRecord(Protocol):
    """How one run was chosen among others. The record's epsilon is the ε of the whole choice.

    A policy of `privacy.tuning` has such a class (`raydp.sweep.policy.SweepPolicy`). Implemented by
    `PrivateSelectionRecord` of the extension `private_selection`.

    Attributes:
        tuning: name of the policy. The record keeps the content of `to_json` under this name.
        single_run_epsilon: ε of the released run alone.
        assumed: further assumptions of the guarantee.
        not_covered: items that ε does not cover, in place of those of an ordinary sweep.
    """

    tuning: ClassVar[str]
    not_covered: ClassVar[tuple[str, ...]]

    @property
    def single_run_epsilon(self) -> float: ...

    @property
    def assumed(self) -> tuple[str, ...]: ...

    def in_words(self) -> str:
        """Return how the run was chosen, for one cell of a card's table."""

    def terms(self) -> object:
        """Return the values that a stored record must share with the record of today."""

    def to_json(self) -> dict[str, object]:
        """Return the values as JSON."""


class LedgerSummary(TypedDict):
    """The noisy steps that a run executed; see `raydp.training.ledger.Ledger.summary`."""

    noisy_steps: int
    executions: int
    replays: int
    note: str
