"""Check that only a trained weight's own layer reads it.

No hook sees what another reader computes from the weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter


@contextmanager
def only_by_their_layers(
    owners: dict[nn.Module, dict[str, str]], parameters: dict[str, nn.Parameter]
) -> Iterator[None]:
    """Watch a forward pass for reads of trained weights outside their layers.

    Args:
        owners: the layers with trained weights: layer -> its own name of the weight -> name of the
            parameter.
        parameters: name -> trained parameter.

    Raises:
        ValueError: a weight is read while no layer that owns it is running.
    """
    # Counted, because several layers may own a weight and run inside each other.
    running: Counter[str] = Counter()  # parameter -> running calls of its layers

    def enter(module: nn.Module, args: tuple[object, ...]) -> None:
        running.update(owners[module].values())

    def leave(module: nn.Module, args: tuple[object, ...], output: object) -> None:
        running.subtract(owners[module].values())

    # A weight may be read only between these two hooks of its own layer.
    handles = [
        handle
        for m in owners
        for handle in (m.register_forward_pre_hook(enter), m.register_forward_hook(leave))
    ]
    try:
        with _Reads({id(p): name for name, p in parameters.items()}, running):
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Reads(TorchFunctionMode):
    """Raises ValueError when a function reads a parameter whose layers are not running."""

    def __init__(self, names: dict[int, str], running: Counter[str]) -> None:
        super().__init__()
        self._names, self._running = names, running

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        # Other results are a dtype, a device and the like; without a gradient, a weight counts as a
        # constant.
        if torch.is_grad_enabled() and isinstance(result, torch.Tensor | tuple | list):
            for value in tree_iter((args, kwargs)):
                name = self._names.get(id(value))
                if name is not None and self._running[name] == 0:
                    raise ValueError(
                        "model.adapter must train weights that only their own layers use, got "
                        f"{name!r}, which {getattr(func, '__name__', func)} reads directly. Its "
                        "per-example gradient is unknown; leave it untrained."
                    )
        return result
