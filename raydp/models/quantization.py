"""Base weights in 4 or 8 bits: where they are asked for, and what keeps others free of their cost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from raydp.models.pretrained import PretrainedModel
from raydp.plugins.registries import service

_FIELD = "model.quantization"


def check_quantization(quantization: str | None) -> None:
    """Raise ValueError if a quantisation is asked for and what it needs is not installed."""
    if quantization is not None:
        service("check_quantisation", needed_by=_FIELD)(quantization)


def quantise(base: PretrainedModel, device: torch.device | str | None = None) -> None:
    """Put a base model's linear layers into 4 or 8 bits, in place, if it asks for it."""
    if base.quantization is not None:
        service("quantise", needed_by=_FIELD)(base, device)


@contextmanager
def without_bitsandbytes() -> Iterator[None]:
    """Keep peft from importing bitsandbytes while it attaches an adapter to a plain model.

    Where bitsandbytes is installed, peft imports it for every model, and with it torch's compiler.
    This costs each process more than a second of processor time. peft remembers whether
    bitsandbytes is installed, and must ask again afterwards.
    """
    # If it was imported already, nothing is saved by hiding it.
    if "bitsandbytes" in sys.modules:
        yield
        return
    sys.modules["bitsandbytes"] = None  # type: ignore[assignment] # Python's own mark of a module that is not to be found
    try:
        yield
    finally:
        del sys.modules["bitsandbytes"]
        from peft.import_utils import is_bnb_4bit_available, is_bnb_available

        # peft caches the answer, which would hide bitsandbytes for good.
        is_bnb_available.cache_clear()
        is_bnb_4bit_available.cache_clear()
