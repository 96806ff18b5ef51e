"""Give out the runs of several sweeps that share a queue, in one order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from raydp.sweep.engine.adaptive import StepwiseSource
from raydp.sweep.engine.committer import Committer
from raydp.sweep.engine.leases.keys import key_of
from raydp.sweep.engine.training import Training, in_order, own_source
from raydp.sweep.engine.tune.rounds import ListSource, RunSource


class JointSource:
    """Gives out the runs of several sources, of the next run of each the first one in an order.

    Args:
        sources: name of the sweep in the queue -> its source.
        order: the keys of all runs that are left, see `in_order`.
    """

    def __init__(self, sources: Mapping[str, RunSource], order: Iterable[str]) -> None:
        self._sources = sources
        self._place = {key: place for place, key in enumerate(order)}
        self._next: dict[str, str] = {}
        self._known = deque[str]()
        self.handed_out = 0

    @property
    def finished(self) -> bool:
        """Return whether no more runs will be given out."""
        waiting = self._next or self._known
        return not waiting and all(source.finished for source in self._sources.values())

    def next_run(self) -> str | None:
        """Return the key of the next run; None if there is none now."""
        if not self.upcoming(1):
            return None
        self.handed_out += 1
        return self._known.popleft()

    def upcoming(self, count: int) -> list[str]:
        """Return at most `count` of the next runs that are known now, as `StepwiseSource` does."""
        while len(self._known) < count and (key := self._choose()) is not None:
            self._known.append(key)
        return list(self._known)[:count]

    def _choose(self) -> str | None:
        """Return the first one in the order of the next runs of all sources."""
        for sweep, source in self._sources.items():
            # A choice from the results waits until a run is needed.
            chooses = isinstance(source, StepwiseSource) and source.must_choose
            if sweep in self._next or (chooses and self._next):
                continue
            if (run_id := source.next_run()) is not None:
                self._next[sweep] = key_of(sweep, run_id)
        if not self._next:
            return None
        first = min(self._next, key=lambda sweep: self._place[self._next[sweep]])
        return self._next.pop(first)

    def given(self) -> list[str]:
        """Return the keys of the runs that were given out, also before a resume."""
        waiting = {*self._next.values(), *self._known}
        keys = [
            key_of(s, run_id) for s, source in self._sources.items() for run_id in source.given()
        ]
        return [key for key in keys if key not in waiting]


def joint_source(
    trainings: Sequence[Training], committers: Sequence[Committer]
) -> JointSource | None:
    """Return the source of the runs of several sweeps; None if every run is trained."""
    sources, stepwise = dict[str, RunSource](), False
    for training, committer in zip(trainings, committers, strict=True):
        own = own_source([training], [committer])
        stepwise |= own is not None
        # Of a sweep without a source all runs are trained.
        sources[training.context.queue_name] = (
            ListSource([trial.run_id for trial in training.left]) if own is None else own
        )
    if (question := trainings[0].context.question) is not None:
        question.begin({k: s for k, s in sources.items() if isinstance(s, StepwiseSource)})
    return JointSource(sources, in_order(trainings)) if stepwise else None
