"""Whether ε covers the choice among a sweep's runs: the policy that `privacy.tuning` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from pydantic import BaseModel

from raydp.plugins.registries import resolve
from raydp.privacy import (
    Calibration,
    CalibrationRequest,
    ChoiceRecord,
    Event,
    calibrate_many,
    composed_epsilon,
)
from raydp.spec.document import SweepSpec
from raydp.spec.sections import PrivacySpec
from raydp.sweep.store.disclosure import Disclosure
from raydp.tasks.task import TaskFacts

if TYPE_CHECKING:
    from raydp.analysis import Selection
    from raydp.sweep.ending.finish import Finish
    from raydp.sweep.engine.context import SweepContext
    from raydp.sweep.engine.listeners import RunListener
    from raydp.sweep.store.folder import SweepFolder

Progress = Callable[[int, int], None]


class Ending(Protocol):
    """How a sweep ends: who hears of committed runs, when training stops, and what is selected.

    Implemented by `SelectionEnding`, `MeasuringEnding`, and the endings of policies in extensions.
    """

    @property
    def listener(self) -> RunListener:
        """Return the listener of committed runs."""
        ...

    def is_over(self) -> bool:
        """Return whether no further run may be trained."""
        ...

    def finish(self) -> Finish:
        """Write the tables; select, set aliases and report if this kind of sweep does."""
        ...


class SweepPolicy(Protocol):
    """A value of `privacy.tuning`: how runs are calibrated, drawn, disclosed and ended.

    An entry point of the group `raydp.policies` names a class with these. Its name is the value of
    `privacy.tuning`. The class is called with the spec; the members that need no spec belong to
    the class. The spec's reader imports it, so it imports what it needs to end a sweep inside
    `ending` and `select`. Implemented by `OrdinarySweep`, and by `PrivateSelection` of the
    extension `private_selection`.

    Attributes:
        section: class of the section `privacy`: the fields of `PrivacySpec`, and the policy's own.
        record: class of the policy's part of a privacy record, with `from_json`.
        document: model of this part for the JSON Schema of privacy.json.
    """

    section: ClassVar[type[PrivacySpec]]
    record: ClassVar[type[ChoiceRecord] | None]
    document: ClassVar[type[BaseModel] | None]

    def __init__(self, spec: SweepSpec) -> None: ...

    @staticmethod
    def completed(data: Mapping[str, object]) -> Mapping[str, object]:
        """Return a spec's content with the defaults that this policy has for other sections."""

    @staticmethod
    def conflicts(spec: SweepSpec) -> list[str]:
        """Return the parts of a spec that the policy does not cover, each with a remedy."""

    @staticmethod
    def disclosure(decision: str | None) -> Disclosure:
        """Return which runs may be shown outside the sweep's folder.

        Args:
            decision: id of the run that the sweep has chosen for good; None if it has not chosen.
        """

    @staticmethod
    def select(folder: SweepFolder, **options: object) -> Selection:
        """Answer `raydp.select` on a sweep whose runs may not be shown.

        Args:
            options: the options of `select` that the user gave.
        """

    def check(self, facts: TaskFacts) -> None:
        """Raise ValueError if the policy's guarantee does not cover the task."""

    def calibrate(
        self, requests: Sequence[CalibrationRequest], *, cache: Path, progress: Progress | None
    ) -> tuple[Sequence[Calibration], float | None]:
        """Return each configuration's calibration, and ε of the whole choice if ε covers it."""

    def choice(self, num_configurations: int, single_run_epsilon: float) -> ChoiceRecord | None:
        """Return the part of a run's privacy record on the choice; None if ε does not cover it."""

    def epsilon(
        self, event: Event, configurations: Sequence[Event], delta: float, accountant: str
    ) -> float:
        """Return ε of a released run.

        Args:
            event: the event of the run.
            configurations: events of all configurations that could have been drawn; empty if
                nothing is drawn.
            delta, accountant: δ and the registry name of the accountant.
        """

    def sentence(self, num_configurations: int) -> str | None:
        """Return a sentence about the draw of the runs; None if all runs of the plan are made."""

    def draw(self, num_configurations: int, key: bytes) -> list[tuple[int, int]] | None:
        """Return the drawn runs; None if nothing is drawn.

        A run is (position of the configuration, label of the seed).
        """

    def ending(self, context: SweepContext) -> Ending:
        """Return how the sweep ends."""


class OrdinarySweep:
    """ε covers one model, and not the choice among several.

    Each configuration meets the target alone, all runs are made, and all may be shown. See
    `SweepPolicy`.
    """

    section: ClassVar[type[PrivacySpec]] = PrivacySpec
    record: ClassVar[type[ChoiceRecord] | None] = None
    document: ClassVar[type[BaseModel] | None] = None

    def __init__(self, spec: SweepSpec) -> None:
        self._accountant = spec.privacy.accountant

    @staticmethod
    def completed(data: Mapping[str, object]) -> Mapping[str, object]:
        """Return the content as it is."""
        return data

    @staticmethod
    def conflicts(spec: SweepSpec) -> list[str]:
        """Return an empty list: every valid spec is covered."""
        return []

    @staticmethod
    def disclosure(decision: str | None) -> Disclosure:
        """Allow all: ε covers each model."""
        return Disclosure()

    @staticmethod
    def select(folder: SweepFolder, **options: object) -> Selection:
        """Raise AssertionError: `raydp.select` reads the points of such a sweep."""
        raise AssertionError("the runs of an ordinary sweep may be shown")

    def check(self, facts: TaskFacts) -> None:
        """Allow every task."""

    def calibrate(
        self, requests: Sequence[CalibrationRequest], *, cache: Path, progress: Progress | None
    ) -> tuple[Sequence[Calibration], float | None]:
        """Calibrate each configuration alone."""
        return calibrate_many(requests, self._accountant, cache_dir=cache, progress=progress), None

    def choice(self, num_configurations: int, single_run_epsilon: float) -> ChoiceRecord | None:
        """Return None: a model's record says nothing about a choice."""
        return None

    def epsilon(
        self, event: Event, configurations: Sequence[Event], delta: float, accountant: str
    ) -> float:
        """Return ε of the run alone."""
        return composed_epsilon([event], delta, accountant)

    def sentence(self, num_configurations: int) -> str | None:
        """Return None: all runs of the plan are made."""
        return None

    def draw(self, num_configurations: int, key: bytes) -> list[tuple[int, int]] | None:
        """Return None: nothing is drawn."""
        return None

    def ending(self, context: SweepContext) -> Ending:
        """Return the ending that selects."""
        from raydp.sweep.ending.finish import SelectionEnding

        return SelectionEnding(context)


def policy_of(spec: SweepSpec) -> SweepPolicy:
    """Return the policy of a sweep."""
    policy: SweepPolicy = resolve("policies", spec.privacy.tuning)(spec)
    return policy
