"""Tasks with pairs of planted canaries.

A run trains on one twin of each pair; the other twin is its control.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from raydp.tasks.task import Secret, Task
from raydp.tasks.text.examples import HiddenStates, TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask, content_hash

T = TypeVar("T")
COINS_NOTE = "planted_twins"
"""The note of a task that says that a coin for each seed decides."""


class DrawsAbsent(Protocol):
    """Draws further texts like the twins. They are in no training data.

    Implemented by `raydp.tasks.wrappers.planted_task.FurtherCanaries`.
    """

    def most_per_pair(self) -> int:
        """Return the largest number of further texts that can be drawn for each pair."""

    def draw(self, per_pair: int, *, seed: int) -> list[tuple[Secret, ...]]:
        """Return further texts for each pair, others for each seed; fewer are the first of more."""


@dataclass(frozen=True, kw_only=True)
class TwinTask(LanguageModelingTask):
    """A language modelling task with pairs of canaries, as the runs of one seed see it.

    Each pair is two texts of one format, drawn alike, with one number of copies. For every seed of
    a run a fair coin, independent of all other coins, decides which twin of the pair is in the
    training data. The other twin is not, and is a control. So the number of units n is the same for
    every seed, whatever the coins show. The scores of a twin that is in and of a twin that is not
    differ in distribution by the effect of training alone.

    The coins are public: the canaries are nobody's data. A task that is made of this one, with
    examples added, left out or divided, has the first twins for all seeds.

    Attributes:
        pool: the examples of the task `of`, then all copies of the first twins, then all copies of
            the second twins.
        twins: the two twins of each pair. Both have the number of the pair.
        of_secrets: the secrets of the task `of` that are scored.
        of_controls: the controls of the task `of`.
        coin_seed: seed of the coins.
        further: draws further texts like the twins.
        seed: the seed whose runs see the task so. It is 0 in a task that shows the first twins.
        second: [pair] the coins: whether the second twin is in the training data, and not the
            first.
        pool_hidden: the hidden states of the pool, if they are cached.
    """

    pool: TokenizedExamples
    twins: tuple[tuple[Secret, Secret], ...]
    of_secrets: tuple[Secret, ...]
    of_controls: tuple[Secret, ...]
    coin_seed: int
    further: DrawsAbsent
    second: NDArray[np.bool_]
    seed: int = 0
    pool_hidden: HiddenStates | None = None

    @classmethod
    def of(
        cls,
        task: LanguageModelingTask,
        examples: tuple[TokenizedExamples, TokenizedExamples],
        twins: tuple[tuple[Secret, Secret], ...],
        *,
        unit: str,
        coin_seed: int,
        further: DrawsAbsent,
    ) -> TwinTask:
        """Return a task with the first twins in its training data.

        Args:
            examples: all copies of the first twins, and of the second twins, by pair.
            unit: a copy in words, for the name of the unit of privacy.
            coin_seed, further: see the class.

        Raises:
            ValueError: the task cannot be extended.
        """
        # The training data begin as the first twins; `_showing` swaps them by the coins.
        extended = task.extended(examples[0], unit=unit)
        pool = TokenizedExamples.concatenated(extended.train, examples[1])
        everything = [
            *task.task_secrets,
            *task.task_controls,
            *(twin for pair in twins for twin in pair),
        ]
        # The identity covers both twins: the coins are public and change with the seed alone.
        facts = replace(
            extended.task_facts, content_hash=content_hash(pool, task.heldout, everything)
        )
        known = {f.name: getattr(extended, f.name) for f in fields(extended)} | {
            "task_facts": facts
        }
        whole = cls(
            **known,
            pool=pool,
            twins=twins,
            of_secrets=task.task_secrets,
            of_controls=task.task_controls,
            coin_seed=coin_seed,
            further=further,
            second=np.zeros(len(twins), np.bool_),
        )
        # Show the first twins, as for coins that are all False.
        return whole._showing(whole.second)

    def for_seed(self, seed: int) -> TwinTask:
        """Return the task as the runs of a seed see it."""
        # The coins depend on coin_seed and the run's seed: fair, and independent between seeds.
        coins = np.random.default_rng([self.coin_seed, seed]).random(len(self.twins)) < 0.5
        return replace(self._showing(coins), seed=seed)

    def pairs(self) -> list[tuple[Secret, Secret]]:
        """Return the twin that is in the training data and the twin that is not, for every pair."""
        # The secrets of the task `of` come first, then one twin of each pair, in pair order.
        own = len(self.of_secrets), len(self.of_controls)
        return list(zip(self.task_secrets[own[0] :], self.task_controls[own[1] :], strict=True))

    @property
    def most_absent(self) -> int:
        """Return the largest number of absent texts for the contrast with a present twin."""
        return 1 + self.further.most_per_pair()

    def absent(self, per_pair: int) -> list[tuple[Secret, ...]]:
        """Return the absent texts of each pair: the absent twin, and others drawn alike.

        Every seed has others, so that the errors of their choice are independent between seeds, as
        those of the coins.

        Args:
            per_pair: number of texts of each pair, at most `most_absent`.
        """
        further = self.further.draw(per_pair - 1, seed=self.seed)
        return [(twin, *others) for (_, twin), others in zip(self.pairs(), further, strict=True)]

    def all_examples(self) -> TokenizedExamples:
        return self.pool

    def with_hidden(self, train: HiddenStates, heldout: HiddenStates) -> Self:
        # The states are cached for the whole pool once; a seed takes its rows.
        return replace(
            self, pool_hidden=train, heldout_hidden=heldout, train_hidden=train.select(self._rows())
        )

    def with_fixed_twins(self) -> LanguageModelingTask:
        """Return the task with the same twins for all seeds: those in the training data now."""
        # The result must be no TwinTask, so that no seed swaps its twins.
        known = {f.name: getattr(self, f.name) for f in fields(LanguageModelingTask)}
        notes = {name: note for name, note in self.task_facts.notes.items() if name != COINS_NOTE}
        return LanguageModelingTask(**known | {"task_facts": replace(self.task_facts, notes=notes)})

    def extended(self, extra: TokenizedExamples, *, unit: str) -> LanguageModelingTask:
        """Return this task with more training examples, and with the same twins for all seeds."""
        return self.with_fixed_twins().extended(extra, unit=unit)

    def subset(self, indices: NDArray[np.int64]) -> LanguageModelingTask:
        """Return this task with some of its training examples, and with fixed twins."""
        return self.with_fixed_twins().subset(indices)

    def by_user(self) -> LanguageModelingTask:
        raise ValueError(
            "privacy.unit must be example with planted canaries, got user. Leave it out of the "
            "spec."
        )

    def _showing(self, second: NDArray[np.bool_]) -> TwinTask:
        """Return the task with other coins."""
        # Order each pair as (in the training data, not in it).
        ordered = [
            pair[::-1] if swapped else pair
            for pair, swapped in zip(self.twins, second, strict=True)
        ]
        shown = replace(
            self,
            second=second,
            task_secrets=self.of_secrets + tuple(present for present, _ in ordered),
            # An absent twin is a control: no training example contains it.
            task_controls=self.of_controls
            + tuple(replace(absent, count=0) for _, absent in ordered),
        )
        # Take the rows of the pool that these coins show, and their cached states.
        rows = shown._rows()
        hidden = None if self.pool_hidden is None else self.pool_hidden.select(rows)
        return replace(shown, train=self.pool.select(rows), train_hidden=hidden)

    def _rows(self) -> NDArray[np.int64]:
        """Return [n] the positions in the pool of the examples that are in the training data."""
        # Each copy has an entry: 0 takes the first twin's copy, 1 the second twin's.
        of_copy = self.second.repeat([first.count for first, _ in self.twins])
        # Both twins have as many copies, so the pool ends in two blocks of one length.
        num_own = len(self.pool) - 2 * len(of_copy)
        return np.concatenate(
            [np.arange(num_own), num_own + np.arange(len(of_copy)) + len(of_copy) * of_copy]
        )


def with_fixed_twins(task: T) -> T | LanguageModelingTask:
    """Return a task with the same examples for all seeds, from which another task can be made."""
    return task.with_fixed_twins() if isinstance(task, TwinTask) else task


def for_seed(task: Task, seed: int) -> Task:
    """Return a task as the runs of a seed see it: another one only if the task has twins."""
    return task.for_seed(seed) if isinstance(task, TwinTask) else task
