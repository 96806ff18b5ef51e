"""Give out a sweep's runs one after another, as the results so far ask for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from raydp.spec.document import SweepSpec
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.results import RunResult
from raydp.training.trial_plan import TrialPlan

if TYPE_CHECKING:
    from raydp.analysis.seeds.allocation import NextSeed


@dataclass(kw_only=True)
class StepwiseSource(ABC):
    """Gives out runs one after another, each of which may depend on the results so far.

    Implemented by `SeedSource`, and by `SearchSource` of the extension `searches`.

    All state is in the sweep's folder, so that a sweep can be resumed.

    Attributes:
        base_fn: waits for the measurement of the untrained model and returns it; None if there is
            no measurement.
        finished: whether no more runs will be chosen. Runs may still wait to be given out.
        handed_out: how many runs were given out.
    """

    spec: SweepSpec
    folder: SweepFolder
    trials: Sequence[TrialPlan]
    base_fn: Callable[[], RunResult | None]
    _waiting: deque[str] = field(default_factory=deque)
    finished: bool = False
    handed_out: int = 0

    def next_run(self) -> str | None:
        """Return the next run. None: there is none now, and never again if `finished` is set."""
        if not self._waiting and not self.finished:
            self._choose()
        if not self._waiting:
            return None
        self.handed_out += 1
        return self._waiting.popleft()

    def upcoming(self, count: int) -> list[str]:
        """Return at most `count` of the next runs that are known now.

        They are not yet given out.
        """
        runs: list[str] = []
        while len(runs) < count and (run_id := self.next_run()) is not None:
            runs.append(run_id)
        # Put them back at the front in their order: they are known, but not given out.
        self._waiting.extendleft(reversed(runs))
        self.handed_out -= len(runs)
        return runs

    @property
    def must_choose(self) -> bool:
        """Whether the next run is not known yet, so that it can follow from the latest results."""
        return not self._waiting and not self.finished

    @abstractmethod
    def given(self) -> list[str]:
        """Return every run that was given out."""

    @abstractmethod
    def _choose(self) -> None:
        """Let further runs wait, if results allow a choice, or set `finished`."""

    def _has_threshold(self) -> bool:
        """Return whether the utility threshold is known.

        The threshold may be a share of the gain over the untrained model.
        """
        return self.folder.result(BASE_RUN) is not None or self.spec.select.max_loss is not None


class SharedQuestion(Protocol):
    """A question that several sweeps answer together. The extension `study` has one."""

    def begin(self, sources: Mapping[str, StepwiseSource]) -> None:
        """Take the sources of the sweeps that train now, by their names."""

    def is_ready(self) -> bool:
        """Return whether the first pass of every sweep has ended."""

    def next_seed(self, source: StepwiseSource) -> NextSeed | None:
        """Return the next seed of a sweep, or the end of its seeds, once `is_ready`.

        One without a state and a configuration means to wait for other sweeps. None: the sweep's
        own decision is to be followed.
        """
