"""Many trained models on one copy of their base. Only one of them is in memory at a time."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from raydp.models.adapters import MODULES_TO_SAVE, attach_adapter, building_peft_model
from raydp.models.base_models import LoadedModel
from raydp.models.one_at_a_time import one_at_a_time
from raydp.models.pretrained import PretrainedModel
from raydp.models.quantization import quantise
from raydp.spec.sections.model import AdapterSpec
from raydp.tracking.portable import ADAPTER_CONFIG

if TYPE_CHECKING:
    from peft import PeftConfig
    from torch.nn.modules.module import _IncompatibleKeys
    from transformers import PreTrainedTokenizerBase

ABOUT_THE_FILE = {"base_model_name_or_path", "inference_mode", "peft_version", "revision"}
"""Fields that may differ between two adapters of one kind."""


class TrainedModels:
    """Models that were trained on one base, by name (see raydp.scores.score.ModelSet).

    The base is in memory once. `loaded` puts a model's own weights into the adapter. In full
    fine-tuning it overwrites the base's weights, of which a second copy is kept.

    Args:
        base: the base model; the adapter is attached to it in place.
        folders: name -> folder that save_pretrained wrote, with an adapter or a whole model; None
            for the untrained base itself.
        device: device of the measurements.
    """

    def __init__(
        self,
        base: PretrainedModel,
        folders: Mapping[str, Path | None],
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self.names: Sequence[str] = tuple(folders)
        self._folders = dict(folders)
        # All models must have the first one's adapter; a folder without an adapter is a whole
        # model.
        trained = [folder for folder in folders.values() if folder is not None]
        self._config = next(
            (_adapter_of(f) for f in trained if (f / ADAPTER_CONFIG).is_file()), None
        )
        self._full = bool(trained) and self._config is None
        # Quantise before the adapter is attached: peft adapts the layers that it finds.
        quantise(base, device)
        model: nn.Module = base.model
        if self._full:
            model = attach_adapter(base, AdapterSpec(type="none"))
        elif self._config is not None:
            model = _adapted(base, self._config)
        model.to(device).requires_grad_(False).eval()
        # Full fine-tuning keeps a copy of the base's values, as a model's weights overwrite them.
        values = (
            {name: p.detach().clone() for name, p in model.named_parameters()} if self._full else {}
        )
        # None for a network, whose scores never ask for it.
        tokenizer = cast("PreTrainedTokenizerBase", base.tokenizer)
        self._loaded = LoadedModel(model=model, tokenizer=tokenizer, base_weights=values)

    def of(self, folders: Mapping[str, Path | None]) -> TrainedModels:
        """Return the set of other models with adapters of the same kind on the shared base."""
        # A shallow copy shares the model in memory.
        other = copy.copy(self)
        other.names, other._folders = tuple(folders), dict(folders)
        return other

    @contextmanager
    def loaded(self, index: int) -> Iterator[LoadedModel]:
        """Load one model for the block.

        Raises:
            ValueError: its weights do not fit the base, or its adapter differs in kind or size from
                the others.
        """
        name = self.names[index]
        folder = self._folders[name]
        if folder is None:
            with self._untrained() as base:
                yield base
            return
        adapter = _adapter_of(folder) if (folder / ADAPTER_CONFIG).is_file() else None
        # Weights of another adapter might fit by name and mean something else.
        if _kind(adapter) != _kind(self._config):
            raise ValueError(
                f"{name} must have the adapter of the other models, got another. Score it "
                "separately."
            )
        self._put(weights_of(folder), name)
        yield self._loaded

    @contextmanager
    def _untrained(self) -> Iterator[LoadedModel]:
        # the model may hold another model's weights; `base()` exchanges them with the kept values
        if self._full:
            self._copy_in(self._loaded.base_weights)
        with self._loaded.base() as base:
            yield base

    def _put(self, weights: dict[str, torch.Tensor], name: str) -> None:
        """Put a trained model's weights into the model in memory."""
        # All weights must be there: a missing one would keep the value of the model before.
        if self._full:
            missing = sorted(set(self._loaded.base_weights) - set(weights))
            if missing:
                raise ValueError(
                    f"the weights of {name} must be those of the base model, got none of "
                    f"{missing[0]!r}."
                )
            self._copy_in({key: weights[key] for key in self._loaded.base_weights})
            return
        put_adapter(self._loaded.model, weights, name)

    def _copy_in(self, values: Mapping[str, torch.Tensor]) -> None:
        parameters = dict(self._loaded.model.named_parameters())
        with torch.no_grad():
            for name, value in values.items():
                parameters[name].copy_(value)


def put_adapter(model: nn.Module, weights: dict[str, torch.Tensor], name: str) -> None:
    """Put an adapter's weights, as peft saves them, into a model with the same adapter.

    Args:
        name: the adapter's name, for the message.

    Raises:
        ValueError: the weights belong to other layers.
    """
    from peft import set_peft_model_state_dict

    # peft ignores missing and surplus weights, so both are checked here.
    placed = cast("_IncompatibleKeys", set_peft_model_state_dict(model, weights))
    own = (".lora_", ".ia3_l.", MODULES_TO_SAVE)
    wrong = [key for key in placed.missing_keys if any(part in key for part in own)]
    # peft handles these separately.
    wrong += [key for key in placed.unexpected_keys if key != "prompt_embeddings"]
    if wrong:
        raise ValueError(
            f"the weights of {name} must be those of its adapter's layers, got others: "
            f"{wrong[0]!r}."
        )


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """Read every tensor of a folder's safetensors files."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(
            f"a trained model must hold safetensors weights, got none in {folder.name!r}. Restore "
            "it."
        )
    try:
        return {name: tensor for file in files for name, tensor in load_file(file).items()}
    except SafetensorError as error:
        raise ValueError(
            f"a trained model must hold whole safetensors weights, got {folder.name!r} ({error}). "
            "Restore it."
        ) from error


@one_at_a_time()
def _adapted(base: PretrainedModel, config: PeftConfig) -> nn.Module:
    """Attach an adapter to the base. Its weights are set later."""
    from peft import get_peft_model

    name = cast(str, config.base_model_name_or_path)
    base.model.name_or_path = base.model.config._name_or_path = name  # otherwise peft warns
    with building_peft_model():
        return get_peft_model(base.model, config)


def _adapter_of(folder: Path) -> PeftConfig:
    """Read an adapter's configuration with peft."""
    from peft import PeftConfig

    config: PeftConfig = PeftConfig.from_pretrained(str(folder))
    return config


def adapter_kind(folder: Path) -> str:
    """Return a text that is equal for trained models with the same adapter, or with none."""
    adapter = _adapter_of(folder) if (folder / ADAPTER_CONFIG).is_file() else None
    return json.dumps(_kind(adapter), sort_keys=True, default=str)


def _kind(config: PeftConfig | None) -> dict[str, object] | None:
    if config is None:
        return None
    return {key: value for key, value in config.to_dict().items() if key not in ABOUT_THE_FILE}
