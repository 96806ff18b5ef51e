"""README.md of an exported model: what the model is, how to load it without raydp, and its guarantee in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydp.privacy.records.card import epsilon_sentence
from raydp.tracking.portable import ADAPTER_CONFIG
from raydp.tracking.sealing.seal import BASE_FILE, EXPORTED_BASE, PRIVACY_FILE, README_FILE, SEAL_FILE

KINDS = {"LORA": "LoRA adapter", "IA3": "IA3 adapter", "PROMPT_TUNING": "soft prompt", "PREFIX_TUNING": "prefix"}
_TRY = """prompt = tokenizer("Hello", return_tensors="pt", return_token_type_ids=False)
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=20)[0]))"""


def write_readme(folder: Path, uri: str, *, merged: bool = False) -> None:
    """Write README.md into an exported folder, from the files in the folder.

    Args:
        folder: has the model's files, base.json, privacy.json, and seal.json unless the seal is made afterwards.
        uri: URI of the model in the registry.
        merged: whether the folder holds an adapter merged into its base's weights.
    """
    recorded = _read(folder / BASE_FILE)
    privacy = _read(folder / PRIVACY_FILE)
    config = _read(folder / ADAPTER_CONFIG)
    what = "adapter merged into" if merged else "whole model, trained from"
    if config:
        what = f"{KINDS.get(config['peft_type'], 'adapter')} on"
    lines = [
        *_head(recorded["name"], adapted=bool(config)),
        f"# {uri.removeprefix('models:/')}",
        "",
        f"A {what} the base model `{recorded['name']}`. raydp trained it, and exported it from its registry ({uri}).",
        *_configuration(folder),
        "",
        "## Load it",
        "",
        *_loading(folder, recorded, adapted=bool(config), merged=merged),
        "",
        "## Privacy",
        "",
        *_privacy(privacy),
        "",
    ]
    (folder / README_FILE).write_text("\n".join(lines), encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, object] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def _head(base: str, *, adapted: bool) -> list[str]:
    """Return metadata for the Hugging Face hub. A base that is not a hub id is left out."""
    named = [f"base_model: {json.dumps(base)}"] if "/" in base else []
    kind = [] if ":" in base else ["pipeline_tag: text-generation"]
    library = "peft" if adapted else "pytorch" if ":" in base else "transformers"
    return ["---", f"library_name: {library}", *named, *kind, "tags: [differential-privacy, raydp]", "---", ""]


def _configuration(folder: Path) -> list[str]:
    statement = _read(folder / SEAL_FILE).get("statement", {})
    values = [f"{name} {value}" for name, value in statement.get("configuration", {}).items()]
    return [f"Configuration: {', '.join(values)}."] if values else []


def _loading(folder: Path, recorded: Mapping[str, str], *, adapted: bool, merged: bool) -> list[str]:
    """Return the code that loads the model, for a reader in the folder."""
    name, dtype = recorded["name"], recorded.get("dtype", "float32")
    if ":" in name:
        return _network(folder, name)
    if not adapted:
        code = [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f'model = AutoModelForCausalLM.from_pretrained(".", dtype="{"auto" if merged else dtype}")',
            'tokenizer = AutoTokenizer.from_pretrained(".")',
        ]
        return ["With `transformers`, in this folder:", "", *_python(code)]
    where, remark = _base(folder, recorded)
    words = "." if (folder / "tokenizer_config.json").is_file() else where
    code = [
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f'base = AutoModelForCausalLM.from_pretrained({json.dumps(where)}, dtype="{dtype}")',
        'model = PeftModel.from_pretrained(base, ".")',
        f"tokenizer = AutoTokenizer.from_pretrained({json.dumps(words)})",
    ]
    if quantization := recorded.get("quantization"):
        remark = [
            *remark,
            f"It was trained and scored on the base with linear layers in {quantization}; on whole weights it is a "
            "slightly different model.",
        ]
    return ["With `transformers` and `peft`, in this folder:", "", *_python(code), "", *remark]


def _base(folder: Path, recorded: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return where the base model is loaded from, and a remark for the reader."""
    name = recorded["name"]
    hashed = f"The adapter fits weights with the hash {recorded['weight_hash']} alone (`weight_hash` in `base.json`)."
    if (folder / EXPORTED_BASE).is_dir():
        from raydp.models.finding import SMOLLM2

        note = " Its weights are dequantised from 4-bit weights (Q4_1)." if name == SMOLLM2 else ""
        return EXPORTED_BASE, [f"The folder `{EXPORTED_BASE}` holds the base model `{name}`.{note}"]
    if "/" in name:
        return name, [f"`{name}` is the base model as the sweep named it, on the Hugging Face hub. {hashed}"]
    return EXPORTED_BASE, [
        f"The base model `{name}` is not in this folder, and it need not be on the Hugging Face hub. Export again with "
        f"`--with-base`, which writes it to `{EXPORTED_BASE}`, or with `--merge`; or put its files there. {hashed}"
    ]


def _network(folder: Path, name: str) -> list[str]:
    """Return code that builds a classification network from torch's own layers."""
    import torch

    from raydp.models.base_models import read_model

    layers: Any = read_model(folder, torch.float32).layers
    if any(type(layer).__module__.partition(".")[0] != "torch" for layer in layers.modules()):
        return [
            f"The layers of `{name}` are raydp's own: `raydp.load_model` loads it, and the names of the tensors in "
            "`model.safetensors` say what each is."
        ]
    code = [
        "from safetensors.torch import load_file",
        "from torch import nn",
        "",
        f"model = nn.Sequential({', '.join(f'nn.{layer!r}' for layer in layers)})",
        'weights = load_file("model.safetensors")',
        'model.load_state_dict({name.removeprefix("layers."): value for name, value in weights.items()})',
        "model.eval()",
    ]
    return [f"With `torch` and `safetensors`, in this folder ({name} says the shape of an input and the number of "
            "classes; the outputs are logits):", "", *_python(code)]  # fmt: skip


def _python(code: list[str]) -> list[str]:
    shown = [*code, *_TRY.split("\n")] if any("tokenizer" in line for line in code) else code
    return ["```python", *shown, "```"]


def _privacy(record: Mapping[str, Any]) -> list[str]:
    """Return the guarantee in words."""
    reasons = record.get("not_certified_because", ())
    certified = "This guarantee is certified." if record.get("certified") else "This guarantee is not certified."
    epsilon, claimed = float(record["epsilon"]), record.get("claimed_epsilon")
    sentence = epsilon_sentence(epsilon, record["delta"], record["unit"], claimed)
    lines = [f"{sentence} {certified}", *[f"- Not certified: {reason}." for reason in reasons]]
    lines += ["", "`privacy.md` and `privacy.json` hold the whole record, where the sweep wrote them."]
    if uncovered := record.get("not_covered"):
        lines += ["", "The guarantee does not cover:", "", *[f"- {item}" for item in uncovered]]
    return lines
