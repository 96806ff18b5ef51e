"""What each slot of a sweep says of its workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


@dataclass
class _Slot:
    """State of one slot.

    Attributes:
        starts: how often its workers have started.
        idle_starts: starts in a row without a lease.
        placement_group, nodes: where its newest workers are.
        preparing: what they do before they take a run; None if they hold a run or have ended.
        reason: why its workers die before they take a run.
    """

    starts: int = 0
    idle_starts: int = 0
    placement_group: PlacementGroup | None = None
    nodes: frozenset[str] = frozenset()
    preparing: str | None = None
    reason: str | None = None


class SlotBoard:
    """Notes where the workers of each slot are, what they prepare, and why they die.

    Args:
        max_idle_starts: how often in a row a slot's workers may die before they lease a run.
    """

    def __init__(self, *, max_idle_starts: int) -> None:
        self._max_idle_starts = max_idle_starts
        self._slots: defaultdict[int, _Slot] = defaultdict(_Slot)
        self._draining: frozenset[str] = frozenset()

    def register(self, slot: int, group: PlacementGroup | None, nodes: Iterable[str]) -> bool:
        """Note that a slot's workers have started, and return whether they go on.

        Starts count that have no lease between them: a slot whose workers always die gives up.
        """
        own = self._slots[slot]
        own.placement_group, own.nodes = group, frozenset(nodes)
        own.starts, own.idle_starts = own.starts + 1, own.idle_starts + 1
        if self.may_start(slot):
            own.preparing = "waits for the base model"
        return self.may_start(slot)

    def may_start(self, slot: int) -> bool:
        """Return whether the slot's workers have not died too often before they leased a run."""
        return self._slots[slot].idle_starts <= self._max_idle_starts

    def starts(self, slot: int) -> int:
        """Return how often the slot's workers have started."""
        return self._slots[slot].starts

    def placement_group(self, slot: int) -> PlacementGroup | None:
        """Return the placement group of a slot's newest workers; None before its first workers."""
        return self._slots[slot].placement_group

    def prepare(self, slot: int, work: str) -> None:
        """Note what a slot's workers do. A note that comes after their lease says nothing."""
        if self._slots[slot].preparing is not None:
            self._slots[slot].preparing = work

    @property
    def preparing(self) -> dict[int, str]:
        """Return slot -> what its workers do before they take a run."""
        return {k: own.preparing for k, own in self._slots.items() if own.preparing is not None}

    def leased(self, slot: int) -> None:
        """Note that a slot's workers have taken a run."""
        self._slots[slot].idle_starts = 0
        self._slots[slot].preparing = None

    def rest(self, *slots: int) -> None:
        """Note that the workers of these slots prepare nothing any more; without slots, of all."""
        for slot in slots or list(self._slots):
            self._slots[slot].preparing = None

    def drain(self, nodes: Iterable[str]) -> None:
        """Note the nodes that will be removed."""
        self._draining = frozenset(nodes)

    def leaves(self, slot: int) -> bool:
        """Return whether a node of the slot's workers will be removed."""
        return not self._draining.isdisjoint(self._slots[slot].nodes)

    def explain(self, slot: int, reason: str, *, for_good: bool) -> None:
        """Note why a slot's workers die before they lease a run; `for_good` if they always will."""
        self._slots[slot].reason = reason
        if for_good:  # as if the workers had died too often, so that no other group follows
            self._slots[slot].idle_starts = self._max_idle_starts

    def reasons(self) -> list[str]:
        """Return the reasons of all slots, each once."""
        return list(dict.fromkeys(own.reason for own in self._slots.values() if own.reason))
