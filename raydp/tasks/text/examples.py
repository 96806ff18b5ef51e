"""Examples as token ids: packed one after another, padded into batches, with hidden states."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.tasks.task import Batch
from raydp.tasks.text.token_loss import IGNORE


@dataclass(frozen=True, kw_only=True)
class TokenizedExamples:
    """Token ids of examples of different lengths.

    Attributes:
        token_ids: [total] int32, the examples one after another.
        offsets: [n + 1] int64, example i is token_ids[offsets[i]:offsets[i + 1]].
        target_starts: [n] int32, position in the example of its first target token. Position 0 is
            never a target, because no token predicts it.
        ignored: [total] whether a token is no target; None if all tokens from target_starts on are
            targets.
    """

    token_ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    target_starts: NDArray[np.int32]
    ignored: NDArray[np.bool_] | None = None

    @classmethod
    def with_targets(
        cls, examples: Sequence[Sequence[int]], targets: Sequence[Sequence[bool]]
    ) -> TokenizedExamples:
        """Pack token ids, and whether each token is a target. The first one never is."""
        # The first token is never a target: nothing predicts it.
        ignored = [np.array([True, *(not target for target in chosen[1:])]) for chosen in targets]
        # argmin of booleans finds the first token that is not ignored.
        plain = cls.from_lists(examples, [int(row.argmin()) for row in ignored])
        return replace(plain, ignored=np.concatenate(ignored) if ignored else np.zeros(0, np.bool_))

    @classmethod
    def from_lists(
        cls, examples: Sequence[Sequence[int]], target_starts: Sequence[int] | None = None
    ) -> TokenizedExamples:
        """Pack lists of token ids. Without target_starts, every token but the first is a target."""
        starts = (
            np.ones(len(examples), np.int32)
            if target_starts is None
            else np.asarray(target_starts, np.int32)
        )
        lengths = np.array([len(e) for e in examples], np.int64)
        assert (starts >= 1).all(), "position 0 cannot be a target"
        assert (starts < lengths).all(), "an example without a target token has no loss"
        # An empty concatenation would fail, and an empty list of rows is a valid selection.
        flat = (
            np.concatenate([np.asarray(e, np.int32) for e in examples])
            if len(examples)
            else np.zeros(0, np.int32)
        )
        return cls(
            token_ids=flat, offsets=np.concatenate([[0], np.cumsum(lengths)]), target_starts=starts
        )

    @classmethod
    def concatenated(cls, *parts: TokenizedExamples) -> TokenizedExamples:
        """Concatenate the examples of all parts."""
        return cls(
            token_ids=np.concatenate([p.token_ids for p in parts]),
            # Offsets are recomputed: each part counts its tokens from 0.
            offsets=np.concatenate([[0], np.cumsum(np.concatenate([p.lengths() for p in parts]))]),
            target_starts=np.concatenate([p.target_starts for p in parts]),
            # If one part marks its targets token by token, all parts must.
            ignored=np.concatenate([p._not_targets() for p in parts])
            if any(p.ignored is not None for p in parts)
            else None,
        )

    def __len__(self) -> int:
        return len(self.target_starts)

    def lengths(self) -> NDArray[np.int64]:
        """Return [n] the number of tokens of each example."""
        return np.diff(self.offsets)

    def select(self, indices: NDArray[np.int64]) -> TokenizedExamples:
        """Return the chosen examples, in the order given."""
        rows = [slice(self.offsets[i], self.offsets[i + 1]) for i in indices]
        chosen = TokenizedExamples.from_lists(
            [self.token_ids[row].tolist() for row in rows], self.target_starts[indices].tolist()
        )
        if self.ignored is None:
            return chosen
        return replace(
            chosen,
            ignored=np.concatenate([self.ignored[row] for row in rows])
            if rows
            else self.ignored[:0],
        )

    def _not_targets(self) -> NDArray[np.bool_]:
        """Return [total] whether a token is no target."""
        if self.ignored is not None:
            return self.ignored
        # These are the positions of tokens in their own examples.
        positions = np.arange(len(self.token_ids)) - np.repeat(self.offsets[:-1], self.lengths())
        below: NDArray[np.bool_] = positions < np.repeat(self.target_starts, self.lengths())
        return below

    def targets_of(self, index: int) -> NDArray[np.int32]:
        """Return the target tokens of an example, in order."""
        row = slice(self.offsets[index] + self.target_starts[index], self.offsets[index + 1])
        return (
            self.token_ids[row] if self.ignored is None else self.token_ids[row][~self.ignored[row]]
        )

    def contents(self) -> list[bytes]:
        """Return the content of each example as bytes. Copies have equal contents."""
        bounds = zip(self.offsets[:-1], self.offsets[1:], strict=True)
        return [self.token_ids[begin:end].tobytes() for begin, end in bounds]

    def num_targets(self) -> int:
        """Return the number of target tokens in all examples."""
        if self.ignored is not None:
            return int((~self.ignored).sum())
        return int((self.lengths() - self.target_starts).sum())

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """Pad the chosen examples on the right. The padding has id 0 and is never a target.

        Under causal attention no real token sees the padding, so no attention mask is needed.
        """
        lengths = self.lengths()[indices]
        # A loss compares a token with the next one, so there are at least two columns.
        width = int(lengths.max(initial=2))
        # Padding has id 0, which every vocabulary has.
        input_ids = np.zeros((len(indices), width), np.int64)
        labels = np.full((len(indices), width), IGNORE, np.int64)
        for row, (i, length) in enumerate(zip(indices, lengths, strict=True)):
            ids = self.token_ids[self.offsets[i] : self.offsets[i] + length]
            input_ids[row, :length] = ids
            labels[row, self.target_starts[i] : length] = ids[self.target_starts[i] :]
            if self.ignored is not None:
                labels[row, :length][self.ignored[self.offsets[i] : self.offsets[i] + length]] = (
                    IGNORE
                )
        return Batch(input_ids=torch.from_numpy(input_ids), labels=torch.from_numpy(labels))

    def update_hash(self, digest: hashlib._Hash) -> None:
        """Add the content to a running hash."""
        # `ignored` is hashed only where it exists, so that the hashes of other tasks stay as
        # recorded.
        for array in (self.token_ids, self.offsets, self.target_starts, self.ignored):
            if array is not None:
                digest.update(np.ascontiguousarray(array).tobytes())


@dataclass(frozen=True, kw_only=True)
class HiddenStates:
    """Cached hidden states of every token that enter one decoder layer.

    Attributes:
        values: [total, H] one row a token; bfloat16 as its int16 bits.
        starts: [n] the row of each example's first token; the rows of its other tokens follow.
        dtype: dtype of the hidden states.
        first_layer: position of the layer that they enter.
    """

    values: NDArray[np.generic]
    starts: NDArray[np.int64]
    dtype: torch.dtype
    first_layer: int

    def select(self, indices: NDArray[np.int64]) -> HiddenStates:
        """Return the states of the chosen examples, in the order given. No state is copied."""
        return replace(self, starts=self.starts[indices])

    def rows(
        self, examples: TokenizedExamples, indices: NDArray[np.int64], width: int
    ) -> torch.Tensor:
        """Return [B, width, H] the states of chosen examples, padded with zeros on the right."""
        out = np.zeros((len(indices), width, self.values.shape[1]), self.values.dtype)
        for row, (start, length) in enumerate(
            zip(self.starts[indices], examples.lengths()[indices], strict=True)
        ):
            out[row, :length] = self.values[start : start + length]
        # numpy has no bfloat16: its bits are stored as int16 and viewed, never converted.
        tensor = torch.from_numpy(out)
        return tensor.view(self.dtype) if self.dtype == torch.bfloat16 else tensor
