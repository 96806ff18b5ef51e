"""How many tokens go through the model at once: found by trial, and remembered."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from raydp.system.files import write_atomically

START_TOKENS = {"cpu": 1024, "cuda": 16_384}
"""First number of padded tokens of a micro-batch.

On a CPU it fits the caches, and on a GPU it keeps the GPU busy.
"""
NARROW, MOST_NARROW_TOKENS = 2**18, 4096
"""On a CPU, models with narrow hidden states start with more tokens.

Their states have at most NARROW numbers in all, and there are at most MOST_NARROW_TOKENS tokens.
"""


class TokenBudget:
    """Largest number of padded tokens of a micro-batch.

    It is halved when memory runs out, and remembered.

    Args:
        device: the device of the model.
        file: budget that an earlier run found; written when this run finds a smaller one. None
            remembers nothing.
        width: size of the model's hidden states, None if it is not known.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        file: Path | None = None,
        *,
        width: int | None = None,
    ) -> None:
        self._file = file
        kind = torch.device(device).type
        self.tokens = START_TOKENS.get(kind, START_TOKENS["cpu"])
        if kind == "cpu" and width is not None:
            self.tokens = max(self.tokens, min(NARROW // width, MOST_NARROW_TOKENS))
        if file is not None and file.is_file():
            self.tokens = int(json.loads(file.read_text())["tokens"])

    @classmethod
    def remembered(
        cls, device: torch.device, folder: Path, *uses: object, width: int | None = None
    ) -> TokenBudget:
        """Return the budget of this device for `uses`: model, adapter, precision."""
        # A budget holds for one kind of device, one version of torch and one use.
        hardware: list[object] = [device.type]
        if device.type == "cuda":
            hardware = [
                torch.cuda.get_device_name(device),
                torch.cuda.get_device_properties(device).total_memory,
            ]
        name = hashlib.sha256(
            json.dumps([*hardware, torch.__version__, *uses], default=str).encode()
        ).hexdigest()[:32]
        return cls(device, folder / f"{name}.json", width=width)

    def halve(self) -> None:
        """Halve the budget from now on."""
        self.tokens //= 2
        logging.getLogger(__name__).warning(
            "out of memory: micro-batches of at most %d tokens from now on", self.tokens
        )
        # Give back the cached blocks of the failed attempt, so that the next one finds whole
        # memory.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, json.dumps({"tokens": self.tokens}).encode())


def state_bytes(model: nn.Module, parameters: Mapping[str, nn.Parameter], *, copied: bool) -> int:
    """Return the bytes that stay in memory during training.

    They are the weights; gradient and two moments of the trained weights in float32; and with
    `copied` a copy of the trained weights' base values.
    """
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    trained = sum(p.numel() for p in parameters.values())
    copy = sum(p.numel() * p.element_size() for p in parameters.values()) if copied else 0
    # Gradient and two moments, in four bytes each.
    return weights + 3 * 4 * trained + copy


def require_share(device_bytes: int, share: float, needed_bytes: int) -> None:
    """Check that a worker's share of a device holds what stays in memory during training.

    Raises:
        ValueError: the share is too small.
    """
    if share * device_bytes >= needed_bytes:
        return
    least = needed_bytes / device_bytes
    remedy = (
        f"Give at least {least:.2f}"
        if least <= 1
        else "Take cluster.sharding full, or a larger device"
    )
    raise ValueError(
        f"cluster.gpus_per_worker must leave a worker the {needed_bytes / 2**30:.1f} GiB of "
        f"weights, gradients and moments, got {share:g} of {device_bytes / 2**30:.1f} GiB. "
        f"{remedy}."
    )


def take_share(device: torch.device, share: float, needed_bytes: int) -> None:
    """Limit this process to its share of a GPU's memory.

    Processes on one GPU then cannot take each other's memory.

    A worker that needs more memory takes smaller micro-batches.

    Args:
        share: cluster.gpus_per_worker; more than 1 means several whole devices.
        needed_bytes: see `state_bytes`.

    Raises:
        ValueError: the share is too small.
    """
    if device.type != "cuda":
        return
    require_share(
        torch.cuda.get_device_properties(device).total_memory, min(share, 1.0), needed_bytes
    )
    if share < 1:
        torch.cuda.set_per_process_memory_fraction(share, device)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed, on a GPU or on a CPU with a memory limit."""
    # On a CPU torch raises a plain RuntimeError, so only its text tells.
    failed = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return failed or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))


def recompute_layers(model: nn.Module) -> None:
    """Keep only the inputs of each decoder layer, and recompute the rest in the backward pass.

    No result changes (Chen et al. 2016); a step takes about a third longer. Trained layers whose
    per-example gradients are not written out keep their inputs from the backward pass of their
    decoder layer on.

    Raises:
        ValueError: the model has no layers that can be recomputed.
    """
    layers = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not layers:
        raise ValueError(
            f"cluster.gradient_checkpointing must be false for {type(model).__name__}, which has "
            "no layers that transformers can compute again. Remove it."
        )
    for layer in layers:
        # transformers' own switch does nothing in eval mode.
        layer.forward = _Recomputed(layer.forward)


def recomputes_layers(model: nn.Module) -> bool:
    """Return whether the model's layers are recomputed; see `recompute_layers`."""
    return any(isinstance(vars(module).get("forward"), _Recomputed) for module in model.modules())


class _Recomputed:
    """A layer's forward that is computed again in the backward pass."""

    def __init__(self, forward: Callable[..., object]) -> None:
        self._forward = forward
        update_wrapper(self, forward)

    def __call__(self, *args: object, **kwargs: object) -> object:
        caches = [value for value in (*args, *kwargs.values()) if isinstance(value, Cache)]
        if not torch.is_grad_enabled() or any(
            not getattr(cache, "is_fixed", False) for cache in caches
        ):
            # Recomputing would append to the cache a second time.
            return self._forward(*args, **kwargs)
        return checkpoint(
            partial(self._forward, **kwargs), *args, use_reentrant=False, preserve_rng_state=False
        )
