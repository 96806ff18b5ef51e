"""Micro-batches: which examples go through the model together.

The examples of one privacy unit always do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from raydp.tasks.task import Task, batches_by_length
from raydp.training.comm import Comm


@dataclass(frozen=True, kw_only=True)
class Units:
    """The units of privacy of a task and their examples.

    Attributes:
        offsets: [n + 1] int64, unit i has the examples offsets[i]:offsets[i + 1].
        lengths: [num_examples] tokens of each example.
    """

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, task: Task) -> Units:
        lengths, sizes = task.lengths(), task.unit_sizes()
        offsets = (
            np.arange(len(lengths) + 1)
            if sizes is None
            else np.concatenate([[0], np.cumsum(sizes)])
        )
        assert offsets[-1] == len(lengths), "every example belongs to one unit"
        return cls(offsets=offsets, lengths=lengths)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def examples(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the examples of units, unit by unit."""
        parts = [np.arange(self.offsets[i], self.offsets[i + 1]) for i in units]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    @cached_property
    def tokens(self) -> NDArray[np.int64]:
        """Return [n] the number of tokens of each unit, summed once for all steps."""
        before = np.concatenate([[0], np.cumsum(self.lengths)])
        return np.asarray(before[self.offsets[1:]] - before[self.offsets[:-1]])

    def share(self, units: NDArray[np.int64], comm: Comm) -> NDArray[np.int64]:
        """Return this rank's units of the global batch, every world_size-th by tokens, or none."""
        # Dealt out by falling number of tokens, so that no rank gets all long units. A stable sort
        # keeps the order the same on every rank.
        return units[np.argsort(-self.tokens[units], kind="stable")][comm.rank :: comm.world_size]

    def microbatches(
        self, units: NDArray[np.int64], size: int | None, max_tokens: int
    ) -> Iterator[tuple[NDArray[np.int64], int]]:
        """Yield the examples of each backward pass, and how many successive examples are one unit.

        Units with the same number of examples go together.

        Args:
            size: number of examples in a micro-batch, at least one unit's; None lets the lengths
                decide.
            max_tokens: largest number of padded tokens in a micro-batch if the lengths decide.
        """
        sizes = self.offsets[units + 1] - self.offsets[units]
        # Units of one size at a time, so that each m successive examples of a batch are one unit.
        for count in np.unique(sizes[sizes > 0]).tolist():
            examples = self.offsets[units[sizes == count]][:, None] + np.arange(count)
            if size is None:
                parts = list(
                    batches_by_length(self.lengths[examples].max(axis=1) * count, max_tokens)
                )
            else:
                step = max(1, size // count)
                parts = [
                    np.arange(i, min(i + step, len(examples)))
                    for i in range(0, len(examples), step)
                ]
            for part in parts:
                yield examples[part].reshape(-1), count
