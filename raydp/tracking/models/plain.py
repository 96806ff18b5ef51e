"""Loads a language model's folder by transformers and peft alone, and continues prompts.

Every language model's folder in the registry, and every exported one, holds a copy of this file
beside the loader that its MLmodel names (`raydp.tracking.standalone`). So this file imports nothing
of raydp.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import AutoModelForCausalLM, AutoTokenizer

DEFAULTS = {"max_new_tokens": 32, "temperature": 0.0, "apply_chat_template": False}
LOADING = threading.Lock()
"""One thread at a time builds a model: transformers changes functions of torch meanwhile."""
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt"]


@dataclass(frozen=True, kw_only=True)
class TextGenerator:
    """A model with its tokenizer, in the form that MLflow's scoring server calls."""

    model: Any
    tokenizer: Any

    def predict(self, model_input: Any, params: Mapping[str, float] | None = None) -> list[str]:
        """Continue each prompt.

        Args:
            model_input: a DataFrame with one column, `prompt`.
            params: max_new_tokens; temperature: 0 takes the most likely token, otherwise tokens are
                sampled; apply_chat_template: each prompt is what a user says, and the template
                writes it.

        Returns:
            One text for each row, without the prompt and without special tokens.
        """
        given = {**DEFAULTS, **(params or {})}
        sampling = (
            {"do_sample": True, "temperature": given["temperature"]}
            if given["temperature"] > 0
            else {}
        )
        texts = []
        with torch.inference_mode():
            for prompt in model_input["prompt"]:
                text, chats = str(prompt), bool(given["apply_chat_template"])
                if chats:
                    turn = [{"role": "user", "content": text}]
                    text = self.tokenizer.apply_chat_template(
                        turn, tokenize=False, add_generation_prompt=True
                    )
                tokens = self.tokenizer(
                    text,
                    return_tensors="pt",
                    return_token_type_ids=False,
                    add_special_tokens=not chats,
                )
                said = self.model.generate(
                    **tokens,
                    max_new_tokens=int(given["max_new_tokens"]),
                    **{"do_sample": False, **sampling},
                )
                # The output does not contain the virtual tokens of a soft prompt.
                new = said[0, tokens["input_ids"].shape[1] :]
                texts.append(str(self.tokenizer.decode(new, skip_special_tokens=True)))
        return texts


def load_plainly(folder: Path, options: Mapping[str, Any]) -> TextGenerator:
    """Load a language model's folder by transformers and peft alone.

    Args:
        folder: as `raydp models export` wrote it, or a folder of the registry whose base model is
            on the hub.
        options: base (name or folder of the base model) and dtype, both optional. The weights of a
            base that is given here are not compared with the hash in base.json.

    Raises:
        ValueError: an option is unknown, or the base model is missing.
    """
    if unknown := sorted(set(options) - {"base", "dtype"}):
        raise ValueError(
            f"model_config must hold base, dtype only without raydp, got {', '.join(unknown)}. "
            "Install raydp-tune."
        )
    recorded = json.loads((folder / "base.json").read_text(encoding="utf-8"))
    dtype = getattr(torch, options.get("dtype") or recorded.get("dtype", "float32"))
    source = folder
    adapted = (folder / "adapter_config.json").is_file()
    if adapted:
        source = _base_folder(folder, recorded, options.get("base"))
    with LOADING:
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, use_safetensors=True)
        if adapted:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, str(folder))
    words = folder if (folder / "tokenizer_config.json").is_file() else source
    return TextGenerator(model=model.eval(), tokenizer=AutoTokenizer.from_pretrained(words))


def _base_folder(folder: Path, recorded: Mapping[str, str], given: str | None) -> Path:
    """Return the base's folder: the given, the exported, or the hub's at the recorded commit."""
    name = recorded["name"]
    if quantization := recorded.get("quantization"):
        warnings.warn(
            f"the model was trained and scored on a base in {quantization}; on whole weights, as "
            "here, it is slightly another model",
            stacklevel=3,
        )
    source = Path(given) if given else folder / "base"
    if source.is_dir():
        return source
    if "/" not in (given or name):
        raise ValueError(
            f"base must be the folder of {name!r}, got none beside the adapter. Export the model "
            "by `raydp models export --with-base`, or give the folder in model_config."
        )
    revision = None if given else recorded.get("revision")
    return Path(snapshot_download(given or name, revision=revision, allow_patterns=HUB_FILES))
