"""The networks of classification, as a family of models. It imports torch only inside functions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from raydp.extensions.classification.names import FORM, MODEL_TYPE

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from raydp.extensions.classification.networks import Network, NetworkName
    from raydp.extensions.classification.serving import Classifier


class Networks:
    """The networks by name, for example "mlp:1x8x8:10" (see raydp.models.families.ModelFamily)."""

    model_type = MODEL_TYPE
    for_tasks = "a classification task, such as digits"

    def owns(self, name: str) -> bool:
        return FORM.fullmatch(name) is not None

    def check_task(self, name: str, task: object) -> None:
        """Check that the network takes the task's inputs and has its classes."""
        from raydp.extensions.classification.labelled import ClassificationTask
        from raydp.extensions.classification.networks import ARCHITECTURES, NetworkName

        assert isinstance(task, ClassificationTask), (
            "a task section that asks for a network builds a classification task"
        )
        architecture = name.partition(":")[0]
        # The network that fits, of the kind that the user named, for the message.
        fitting = NetworkName(
            architecture=architecture if architecture in ARCHITECTURES else "mlp",
            input_shape=task.input_shape,
            num_classes=task.num_classes,
        )
        if NetworkName.parse(name) != fitting:
            raise ValueError(
                f"model.name must be a network for inputs of {'x'.join(map(str, task.input_shape))} "
                f"and {task.num_classes} classes, got {name!r}. Write {str(fitting)!r}; there are "
                f"{', '.join(ARCHITECTURES)}."
            )

    def folder(self, name: str) -> Path:
        return _named(name).folder()

    def read(self, folder: Path, dtype: torch.dtype) -> PreTrainedModel:
        from raydp.extensions.classification.networks import Network

        model: PreTrainedModel = Network.from_pretrained(folder, dtype=dtype, use_safetensors=True)
        return model

    def initial_weights(self, name: str, seed: int, num_added: int) -> dict[str, torch.Tensor]:
        return dict(_named(name).build(seed, new_classes=num_added).named_parameters())

    def add_outputs(self, model: PreTrainedModel, count: int) -> None:
        from raydp.extensions.classification.networks import add_classes

        add_classes(cast("Network", model), count)

    def shapes(self, name: str) -> tuple[tuple[int, ...], int]:
        network = _named(name)
        return network.input_shape, network.num_classes

    def served(self, model: torch.nn.Module) -> Classifier:
        from raydp.extensions.classification.serving import Classifier

        return Classifier(model=model)

    def loading_code(self, folder: Path) -> list[str] | None:
        """Return code that builds a network from torch's own layers."""
        import torch

        layers = cast("Network", self.read(folder, torch.float32)).layers
        # Layers that torch does not have cannot be written as code that runs without raydp.
        if any(type(layer).__module__.partition(".")[0] != "torch" for layer in layers.modules()):
            return None
        return [
            "from safetensors.torch import load_file",
            "from torch import nn",
            "",
            f"model = nn.Sequential({', '.join(f'nn.{layer!r}' for layer in layers)})",
            'weights = load_file("model.safetensors")',
            'model.load_state_dict({name.removeprefix("layers."): value for name, value in '
            "weights.items()})",
            "model.eval()",
        ]


def _named(name: str) -> NetworkName:
    """Return the network of a name.

    Raises:
        ValueError: there is no such architecture.
    """
    from raydp.extensions.classification.networks import ARCHITECTURES, NetworkName

    network = NetworkName.parse(name)
    if network is None:
        raise ValueError(
            f"model.name must begin with a known network, got {name!r}. There are "
            f"{', '.join(ARCHITECTURES)}."
        )
    return network


NETWORKS = Networks()
