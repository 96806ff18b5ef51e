"""Whether a trained weight is read by anything but its own layer, where no hook would see what becomes of it."""

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
    """Watch a forward pass.

    Args:
        owners: the layers with trained weights: layer -> its own name of the weight -> name of the parameter.
        parameters: name -> trained parameter.

    Raises:
        ValueError: at the read of a weight outside of a call of a layer that has it.
    """
    running: Counter[str] = Counter()  # parameter -> calls of its layers that have begun and not ended

    def enter(module: nn.Module, args: tuple[object, ...]) -> None:
        running.update(owners[module].values())

    def leave(module: nn.Module, args: tuple[object, ...], output: object) -> None:
        running.subtract(owners[module].values())

    handles = [
        handle for m in owners for handle in (m.register_forward_pre_hook(enter), m.register_forward_hook(leave))
    ]
    try:
        with _Reads({id(p): name for name, p in parameters.items()}, running):
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Reads(TorchFunctionMode):
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
        if isinstance(result, torch.Tensor | tuple | list):  # not what asks for a type or a device
            for value in tree_iter((args, kwargs)):
                name = self._names.get(id(value))
                if name is not None and self._running[name] == 0:
                    raise ValueError(
                        f"model.adapter must train weights that only their own layers use, got {name!r}, which "
                        f"{getattr(func, '__name__', func)} reads directly. Its per-example gradient is unknown; leave "
                        "it untrained."
                    )
        return result
