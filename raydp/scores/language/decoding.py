"""Forward passes for scores: left padding, and decoding from a key-value cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from raydp.models.reading import reading

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to eval and inference mode for the block, and restore every module's own mode."""
    # Remember the modules in training mode one by one: a model may be in eval mode in parts.
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def input_embeddings(model: nn.Module) -> nn.Embedding:
    """Return the input embedding of a language model, whether a peft model wraps it or not."""
    return cast("nn.Embedding", cast("PreTrainedModel", model).get_input_embeddings())


class CachedDecoder:
    """Reads sequences in one pass, then decodes token by token from the key-value cache.

    Sequences are padded on the left, so that all end at the last position. Padding is masked and
    takes no position id. Virtual tokens take the positions directly before their sequence.

    Args:
        model: a transformers causal language model or a PeftModel around one, in eval mode.
        sequences: non-empty lists of token ids.
    """

    def __init__(self, model: nn.Module, sequences: Sequence[Sequence[int]]) -> None:
        self._device = input_embeddings(model).weight.device
        width = max(len(sequence) for sequence in sequences)
        # Left padding lets all rows end in one column, where the next token is read.
        self._padding = torch.tensor([width - len(sequence) for sequence in sequences])
        ids = torch.zeros(len(sequences), width, dtype=torch.int64)
        for row, sequence in enumerate(sequences):
            ids[row, width - len(sequence) :] = torch.tensor(sequence)
        self._model, self._ids, self._cache = model, ids.to(self._device), None

    def read(self, keep: int = 1, *, use_cache: bool = True) -> torch.Tensor:
        """Return [B, keep, V] next-token logits after each of the last `keep` positions.

        Only these positions go through the output layer.
        """
        read = reading(self._model, self._ids, self._padding, cache_grows=use_cache)
        output = read.model(
            **read.inputs,
            # Positions are a tensor and not a number: the slice that a number takes is not
            # contiguous, and a bf16 matrix product with such a slice is a hundred times slower on
            # CPUs.
            logits_to_keep=torch.arange(-keep, 0, device=self._device),
            use_cache=use_cache,
        )
        self._called, self._mask = read.model, read.inputs["attention_mask"]
        self._cache = output.past_key_values if use_cache else None
        logits: torch.Tensor = output.logits
        return logits

    def step(self, parents: NDArray[np.int64], tokens: NDArray[np.int64]) -> torch.Tensor:
        """Append one token to each of the chosen rows; rows may be dropped or repeated.

        Args:
            parents: [R] rows of the last call that the new rows continue.
            tokens: [R] the token to append to each row.

        Returns:
            [R, V] next-token logits.
        """
        assert self._cache is not None, "read comes first"
        # Rows that go on unchanged need no copy of the cache.
        if not np.array_equal(parents, np.arange(len(self._mask))):
            rows = torch.from_numpy(parents).to(self._device)
            self._cache.batch_select_indices(rows)
            self._mask = self._mask[rows]
        # The mask counts real tokens, so its sum is the next position id.
        positions = self._mask.sum(dim=1, keepdim=True)
        self._mask = torch.cat([self._mask, torch.ones_like(positions)], dim=1)
        output = self._called(
            input_ids=torch.from_numpy(tokens).to(self._device)[:, None],
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits
