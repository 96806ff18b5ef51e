"""Base models: find them by name, check and load them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from raydp.models.adapters import (
    attach_adapter,
    check_modules_to_save,
    shardable_layers,
    trainable_parameters,
    without_adapter,
)
from raydp.models.families import family_of, family_of_type
from raydp.models.lookup import SMOLLM2, TINY, hub_folder, local_folder, smollm2_package
from raydp.models.one_at_a_time import one_at_a_time
from raydp.models.pretrained import PretrainedModel
from raydp.models.quantization import check_quantization
from raydp.spec.sections.model import ModelSpec
from raydp.system.cache import cache_dir, stored_once
from raydp.system.files import digest_of
from raydp.system.locations import local_copy

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model to measure: the base model with its trained weights.

    Attributes:
        model: transformers or peft model in eval mode.
        base_weights: values of the trained parameters before training, for full fine-tuning. An
            adapter is switched off instead.
        before_exchange: called before trained and base weights are exchanged.
        is_base: whether this is the untrained base model. Its base is the model itself.
        base_results: results that `of_base` keeps.
        observed: what the task's observer saw in training (`TaskObserver.seen`); None without one.
    """

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    base_weights: dict[str, torch.Tensor] = field(default_factory=dict)
    before_exchange: Callable[[], object] | None = None
    is_base: bool = False
    base_results: dict[Hashable, object] = field(default_factory=dict)
    observed: NDArray[np.float64] | None = None

    @contextmanager
    def base(self) -> Iterator[LoadedModel]:
        """Return the untrained base model for the block."""
        if self.is_base:  # peft would switch the adapter on at the end of an inner block
            yield self
            return
        base = replace(self, base_weights={}, before_exchange=None, is_base=True, observed=None)
        if hasattr(self.model, "disable_adapter"):
            with without_adapter(self.model):
                yield base
            return
        # Full fine-tuning exchanges the values, and restores them whatever happens.
        self.exchange()
        try:
            yield base
        finally:
            self.exchange()

    def of_base(self, key: Hashable, measure_fn: Callable[[LoadedModel], T]) -> T:
        """Measure the untrained base model, once for all trained models that share the base.

        Args:
            key: everything besides the base that the result depends on.
        """
        # Many models share one base, whose measurement would cost as much as a model's.
        if key not in self.base_results:
            with self.base() as base:
                self.base_results[key] = measure_fn(base)
        return cast(T, self.base_results[key])

    def exchange(self) -> None:
        """Exchange the base's and the trained values; a second call restores them.

        The parameters keep their memory, which a sharded model relies on.
        """
        if self.before_exchange is not None:
            self.before_exchange()
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            # Swap tensor by tensor, because a third copy of a large model's weights may not fit.
            for name, value in self.base_weights.items():
                trained = parameters[name].detach().clone()
                parameters[name].copy_(value)
                value.copy_(trained)


@one_at_a_time()
def model_folder(name: str) -> tuple[Path, str]:
    """Return the folder with a model's config, tokenizer and weights, and a note on the weights.

    Raises:
        ValueError: no model of this name can be loaded; the message says what was tried.
    """
    if name == "tiny":
        return TINY, ""
    if name == SMOLLM2:
        return _converted_smollm2(), "SmolLM2-135M-Instruct, dequantised from 4-bit (Q4_1) weights"
    if (family := family_of(name)) is not None:
        return family.folder(name), "an untrained network"
    return local_folder(local_copy(name, "model.name"), name) or hub_folder(name), ""


def weight_hash(folder: Path) -> str:
    """Return the SHA-256 (hex) over a folder's safetensors files, by name."""
    files = list(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(
            f"model.name must hold safetensors weights, got {folder.name!r}. Save it with "
            "save_pretrained."
        )
    return digest_of(files)


@one_at_a_time()
def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a language model.

    Raises:
        ValueError: the model cannot be found, or it is no language model and has no tokenizer.
    """
    if family_of(name) is not None:
        raise ValueError(
            f"the tokenizer must be a language model's, got the network {name}. Name a language "
            "model."
        )
    return AutoTokenizer.from_pretrained(model_folder(name)[0])


def tokenizer_if_any(name: str) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer of a base model; return None if it is no language model."""
    return load_tokenizer(name) if family_of(name) is None else None


@one_at_a_time()
def check(spec: ModelSpec, *, sharded: bool = False) -> tuple[PreTrainedTokenizerBase | None, str]:
    """Check that a base model can be loaded and takes the adapter, without reading its weights.

    Args:
        sharded: the weights are to be sharded over workers.

    Returns:
        The tokenizer, None if it is no language model, and the hash of the weight files.

    Raises:
        ValueError: the model cannot be found, is not a causal language model, does not fit the
            adapter, or cannot be sharded because its layers are not known.
    """
    # Check what the spec alone decides.
    check_quantization(spec.quantization)
    if sharded and spec.quantization is not None:
        raise ValueError(
            f"cluster.sharding must be none with model.quantization {spec.quantization}, got full: "
            "layers in few bits cannot be cut. Leave one of them out."
        )
    # A model of a family has no tokenizer and no adapter.
    folder, _ = model_folder(spec.name)
    if family_of(spec.name) is not None:
        _check_network(spec, sharded)
        return None, weight_hash(folder)
    # Build the model with shapes alone, on the device "meta".
    try:
        hollow = _hollow(spec.name, folder)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"model.name must be a causal language model, got {spec.name!r}: {error}"
        ) from error
    # Check what the layers decide.
    if sharded:
        shardable_layers(hollow.model)
    if sharded and spec.adapter.virtual_tokens:
        raise ValueError(
            f"cluster.sharding must be none with adapter.type {spec.adapter.type!r}, got full. "
            "Virtual tokens are read outside of the model's own pass; use a LoRA adapter."
        )
    check_modules_to_save(hollow.model, spec.adapter, spec.quantization)
    # Attaching the adapter to shapes raises every mistake that the real one would.
    if spec.adapter.type != "none":
        with torch.device("meta"):
            attach_adapter(hollow, spec.adapter)
    return hollow.tokenizer, weight_hash(folder)


def num_trained(spec: ModelSpec) -> int:
    """Return the number of trained weights of a model with its adapter, without reading weights."""
    trained = trainable_parameters(trained_form(spec), spec.adapter)
    return sum(parameter.numel() for parameter in trained.values())


@one_at_a_time()
def trained_form(spec: ModelSpec) -> nn.Module:
    """Return the model with its adapter as it is trained.

    The weights of a language model are not read: they have shapes alone.
    """
    folder, _ = model_folder(spec.name)
    if family_of(spec.name) is not None:
        return load_base(spec).model
    hollow = _hollow(spec.name, folder)
    with torch.device("meta"):
        return attach_adapter(hollow, spec.adapter)


def _hollow(name: str, folder: Path) -> PretrainedModel:
    """Return the causal language model in a folder without its weights, and its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    return PretrainedModel(name=name, model=model, tokenizer=tokenizer, weight_hash="")


def _check_network(spec: ModelSpec, sharded: bool) -> None:
    if spec.adapter.type != "none":
        raise ValueError(
            f"model.adapter.type must be none for {spec.name!r}, got {spec.adapter.type!r}: the "
            "network is untrained. Write `adapter: {type: none}`."
        )
    if sharded:
        raise ValueError(
            f"cluster.sharding must be none for {spec.name!r}, got full. Leave it out."
        )


@one_at_a_time()
def read_model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Read the whole model in a folder: a language model, or a model of a family."""
    # A family's config names a type that AutoModelForCausalLM does not know.
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if (family := family_of_type(config.get("model_type"))) is not None:
        return family.read(folder, dtype)
    # Only safetensors are read, because a pickled checkpoint could run code.
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, use_safetensors=True
    )
    return model


def config_of(name: str) -> PretrainedConfig:
    """Return the configuration of a language model."""
    config: PretrainedConfig = AutoConfig.from_pretrained(model_folder(name)[0])
    return config


def positions(config: PretrainedConfig) -> int | None:
    """Return how many tokens a language model can read at once; None if it does not say."""
    return getattr(config, "max_position_embeddings", None)


def _switch_of_positions(config: PretrainedConfig) -> int | None:
    """Return the width of a batch above which its rotary positions change; None if never.

    `rope_type: dynamic` depends on it, too, but only above `positions`.
    """
    rotary: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    # one for each type of layer
    parts = [rotary, *(part for part in rotary.values() if isinstance(part, Mapping))]
    own = getattr(config, "original_max_position_embeddings", None)
    limits = [
        part.get("original_max_position_embeddings", own)
        for part in parts
        if part.get("rope_type") == "longrope"
    ]
    return min((int(limit) for limit in limits if limit is not None), default=None)


def check_length(spec: ModelSpec, longest: int) -> None:
    """Check that the longest example fits a model and leaves other examples' positions alone.

    Args:
        longest: number of its tokens, without virtual tokens.

    Raises:
        ValueError: there are fewer positions. Training would fail, or use positions that the model
            has never seen. Or the rotary positions of a whole batch change with its longest
            example.
    """
    # Virtual tokens take positions too.
    config = config_of(spec.name)
    room, switch = positions(config), _switch_of_positions(config.get_text_config())
    virtual = spec.adapter.virtual_tokens
    prompt = f" and a {spec.adapter.type.replace('_', ' ')} of {virtual}" if virtual else ""
    # With longrope, one long example would change the others' gradients, and ε would not hold.
    if switch is not None and longest + virtual > switch:
        raise ValueError(
            f"task must give examples of at most {switch} tokens to {spec.name!r}, got one of "
            f"{longest}{prompt}. Beyond {switch} its rotary positions (longrope) change for a "
            "whole batch, so that a long example changes the gradients of the others, and no ε "
            "would hold. Shorten them (task.max_length), or choose another model."
        )
    if room is not None and longest + virtual > room:
        raise ValueError(
            f"task must give examples that fit the {room} positions of {spec.name!r}, got one of "
            f"{longest} tokens{prompt}. Shorten them (task.max_length), or choose another model."
        )


@one_at_a_time()
def load_base(spec: ModelSpec, *, new_tokens: int = 0) -> PretrainedModel:
    """Load a base model, frozen and in eval mode, on the CPU.

    Args:
        new_tokens: number of token ids to add after the tokenizer's (`first_new_token`). They have
            no text, and their embeddings start at zero. For a model of a family, the number of
            outputs to add.

    Raises:
        ValueError: the model cannot be found, or its files cannot be read.
    """
    # Read the model and its tokenizer.
    folder, note = model_folder(spec.name)
    try:
        model = read_model(folder, getattr(torch, spec.weight_dtype))
        family = family_of_type(model.config.model_type)
        tokenizer = AutoTokenizer.from_pretrained(folder) if family is None else None
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ValueError(
            f"model.name must be a causal language model, got {spec.name!r}: {error}"
        ) from error
    # Add tokens, or outputs.
    if new_tokens and family is not None:
        family.add_outputs(model, new_tokens)
    elif new_tokens:
        assert tokenizer is not None, "only a model of a family has no tokenizer"
        _add_tokens(model, first_new_token(tokenizer), new_tokens)
    # `attach_adapter` switches on what is trained.
    model.requires_grad_(False).eval()
    return PretrainedModel(
        name=spec.name,
        model=model,
        tokenizer=tokenizer,
        weight_hash=weight_hash(folder),
        note=note,
        quantization=spec.quantization,
    )


def first_new_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id after the tokenizer's largest."""
    return int(max(tokenizer.get_vocab().values())) + 1


def _add_tokens(model: PreTrainedModel, first: int, count: int) -> None:
    """Add the ids first .. first + count - 1 to embeddings, output layer and configuration."""
    embeddings = cast(nn.Embedding, model.get_input_embeddings())
    rows = max(embeddings.num_embeddings, first + count)  # many models have more rows than tokens
    # mean_resizing would start new rows at the mean of the others, at a cost and with randomness.
    model.resize_token_embeddings(rows, mean_resizing=False)
    head = model.get_output_embeddings()
    resized = cast(nn.Embedding, model.get_input_embeddings())
    # Zero also rows that existed before: a model may hold untrained ones beyond its vocabulary.
    with torch.no_grad():
        for tensor in (resized.weight, head.weight, getattr(head, "bias", None)):
            if tensor is not None:
                tensor[first : first + count] = 0


def _converted_smollm2() -> Path:
    """Return SmolLM2's weights as safetensors, converted once from the installed package."""
    (gguf,) = smollm2_package().glob("*.gguf")
    # The digest is in the path, so that another release of the package converts anew.
    with gguf.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()[:16]
    return stored_once(
        cache_dir() / "models" / f"{SMOLLM2}-{digest}", lambda part: _convert(gguf, part)
    )


def _convert(gguf: Path, part: Path) -> None:
    """Write dequantised weights and the tokenizer into a folder."""
    # Its bar is tqdm's own, which no setting of transformers hides.
    with redirect_stderr(io.StringIO()):
        quantised = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # save_pretrained refuses a model from a GGUF file.
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(part)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(part)
