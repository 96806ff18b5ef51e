"""When it pays to read the keys and values of a shared beginning once for several candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from raydp.scores.language.decoding import input_embeddings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Fixed cost of one pass in floating point operations per layer: starting kernels and reading
# weights. Measured on an AVX-512 core, and derived from the peak for accelerators. It decides how
# candidates are grouped, and no result.
PASS_OVERHEAD = {"cpu": 1e7, "accelerator": 3e10}


def pass_overhead(model: nn.Module, device: torch.device) -> float:
    """Return the number of tokens whose matrix products cost as much as starting one more pass."""
    config = cast("PreTrainedModel", model).config.get_text_config()
    weights = sum(p.numel() for p in model.parameters()) - input_embeddings(model).weight.numel()
    per_layer: float = max(weights / config.num_hidden_layers, 1.0)
    return PASS_OVERHEAD["cpu" if device.type == "cpu" else "accelerator"] / (2 * per_layer)


def groups(changed: NDArray[np.int64], num_tokens: int, overhead: float) -> list[NDArray[np.int64]]:
    """Group candidates to read together.

    A group takes all tokens before its earliest change from the shared prefix.

    Args:
        changed: [N] the first position at which each candidate differs from the shared prompt.
        num_tokens: number of positions from the prompt's first token to the last token to read.
        overhead: see `pass_overhead`.

    Returns:
        Positions in `changed`: the partition with the smallest total cost. The cost is the sum over
        groups of the overhead and the number of tokens to read.
    """
    order = np.argsort(changed, kind="stable")
    values, counts = np.unique(changed, return_counts=True)
    ends = np.cumsum(counts)
    # Dynamic programme over the first k distinct values: the smallest cost, and where the last
    # group of the best partition starts.
    cost, start = [0.0], [0]
    for k in range(1, len(values) + 1):
        options = [
            cost[first]
            + overhead
            + (ends[k - 1] - (ends[first - 1] if first else 0)) * (num_tokens - values[first])
            for first in range(k)
        ]
        start.append(int(np.argmin(options)))
        cost.append(min(options))
    # Follow the starts back from the last group.
    result, k = [], len(values)
    while k:
        first = start[k]
        result.append(order[(ends[first - 1] if first else 0) : ends[k - 1]])
        k = first
    return result[::-1]
