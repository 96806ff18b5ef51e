"""Families of models that are no causal language models. A plug-in names, builds and reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from raydp.plugins.registries import names, resolve

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class ModelFamily(Protocol):
    """Models with a form of name of their own, which have no tokenizer and take no adapter.

    An entry point of the group `raydp.models` names an object with these. Every look-up of a model
    imports its module, so the module imports torch only inside functions. A task asks for such a
    model by `TaskSection.model_family`. Implemented by `Networks` of the extension
    `classification`.

    Attributes:
        model_type: the `model_type` of its models' config.json.
        for_tasks: the tasks that its models learn, in words, for a message.
    """

    model_type: str
    for_tasks: str

    def owns(self, name: str) -> bool:
        """Return whether a model's name has the form of the family's names."""

    def check_task(self, name: str, task: object) -> None:
        """Check that a model fits a task.

        Args:
            name: the model's name, also one of another family or of a language model.

        Raises:
            ValueError: it does not fit. The message names a model that does.
        """

    def folder(self, name: str) -> Path:
        """Return a folder with the untrained weights, written at the first use."""

    def read(self, folder: Path, dtype: torch.dtype) -> PreTrainedModel:
        """Read a model from a folder."""

    def initial_weights(self, name: str, seed: int, num_added: int) -> dict[str, torch.Tensor]:
        """Return the initial weights in the repetition with this seed, with outputs added."""

    def add_outputs(self, model: PreTrainedModel, count: int) -> None:
        """Add outputs after the model's own, with weights of zero."""

    def shapes(self, name: str) -> tuple[tuple[int, ...], int]:
        """Return the shape of an input, and the number of outputs."""

    def served(self, model: torch.nn.Module) -> object:
        """Return a model in the form that MLflow's scoring server calls: it has `predict`."""

    def loading_code(self, folder: Path) -> list[str] | None:
        """Return lines of code that load the model in a folder without raydp; None for none."""


def families() -> Iterator[ModelFamily]:
    """Yield the installed families."""
    yield from (resolve("models", name) for name in names("models"))


def family_of(name: str) -> ModelFamily | None:
    """Return the family that a model's name belongs to; None for a language model."""
    return next((family for family in families() if family.owns(name)), None)


def family_of_type(model_type: object) -> ModelFamily | None:
    """Return the family of models with this `model_type`; None for a language model."""
    return next((family for family in families() if family.model_type == model_type), None)
