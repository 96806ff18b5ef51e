"""README.md of an exported model: the model card of the Hugging Face hub.

It says what the model is, how to load it without raydp, and its guarantee in words and as metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from raydp.analysis.tables.statements import Statement
from raydp.models.families import ModelFamily, family_of
from raydp.privacy.records.card import epsilon_sentence
from raydp.tracking.portable import ADAPTER_CONFIG, CHAT_TEMPLATE
from raydp.tracking.sealing.seal import (
    BASE_FILE,
    EXPORTED_BASE,
    PRIVACY_FILE,
    README_FILE,
    SEAL_FILE,
)

KINDS = {
    "LORA": "LoRA adapter",
    "IA3": "IA3 adapter",
    "PROMPT_TUNING": "soft prompt",
    "PREFIX_TUNING": "prefix",
}
PRIVACY_FIELDS = (
    "epsilon",
    "delta",
    "unit",
    "adjacency",
    "accountant",
    "sampler",
    "tuning",
    "certified",
)
"""The fields of the privacy record that the metadata holds; privacy.json has all."""
_TRY = """prompt = tokenizer("Hello", return_tensors="pt", return_token_type_ids=False)
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=20)[0]))"""


_CHATS = (
    "",
    f"The tokenizer carries the chat template of the training (`{CHAT_TEMPLATE}`). Write a "
    "conversation by",
    "`tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)`. In "
    "`mlflow.pyfunc`, the",
    "parameter `apply_chat_template` writes each prompt as what a user says.",
)


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """The facts on a card that are not in the model's folder.

    Attributes:
        uri: URI of the model in the registry.
        license: identifier of the licence on the hub; None if it is unknown.
        figures: utility and scores by name; empty if they must not leave.
    """

    uri: str
    license: str | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Return the model's name and version."""
        return self.uri.removeprefix("models:/")

    def write(self, folder: Path, *, merged: bool = False) -> None:
        """Write README.md into an exported folder.

        Args:
            folder: has the model's files, base.json, privacy.json, and seal.json unless the seal is
                made afterwards.
            merged: whether the folder holds an adapter merged into its base's weights.
        """
        # Everything on the card comes from files of the folder, so it fits what was exported.
        recorded = _read(folder / BASE_FILE)
        privacy = _read(folder / PRIVACY_FILE)
        config = _read(folder / ADAPTER_CONFIG)
        what = "adapter merged into" if merged else "whole model, trained from"
        if config:
            what = f"{KINDS.get(config['peft_type'], 'adapter')} on"
        # The hub reads the YAML at the top; the rest is for people.
        lines = [
            "---",
            self._metadata(recorded["name"], privacy, adapted=bool(config)),
            "---",
            "",
            f"# {self.title}",
            "",
            f"A {what} the base model `{recorded['name']}`. raydp trained it, and exported it from "
            f"its registry ({self.uri}).",
            *_configuration(folder),
            "",
            "## Load it",
            "",
            *_loading(folder, recorded, adapted=bool(config), merged=merged),
            *(_CHATS if (folder / CHAT_TEMPLATE).is_file() else ()),
            "",
            "## Privacy",
            "",
            *_privacy(privacy),
            *self._measured(),
            "",
        ]
        (folder / README_FILE).write_text("\n".join(lines), encoding="utf-8")

    def _metadata(self, base: str, privacy: Mapping[str, Any], *, adapted: bool) -> str:
        """Return the metadata of the hub as YAML. A base that is not a hub id is left out."""
        network = family_of(base) is not None
        more: dict[str, Any] = {}
        # Only an id with a slash exists on the hub.
        if "/" in base:
            more |= {
                "base_model": base,
                "base_model_relation": "adapter" if adapted else "finetune",
            }
        if not network:
            more["pipeline_tag"] = "text-generation"
        if self.figures:
            more |= {
                "model_name": self.title,
                "eval_results": self._results("other" if network else "text-generation"),
            }
        card = ModelCardData(
            library_name="peft" if adapted else "pytorch" if network else "transformers",
            license=self.license or "unknown",
            tags=["differential-privacy", "raydp"],
            differential_privacy={
                name: privacy[name] for name in PRIVACY_FIELDS if name in privacy
            },
            **more,
        )
        return str(card.to_yaml())

    def _results(self, task: str) -> list[EvalResult]:
        return [
            EvalResult(
                task_type=task,
                dataset_type="private",
                dataset_name="private data",
                metric_type=name,
                metric_name=name,
                metric_value=value,
            )
            for name, value in self.figures.items()
            if not name.endswith(".std_error")
        ]

    def _measured(self) -> list[str]:
        """Return the section of utility and scores, if they may leave."""
        if not self.figures:
            return []
        errors = {n: f"{v:.2g}" for n, v in self.figures.items() if n.endswith(".std_error")}
        rows = [
            f"| {name} | {value:.4g} | {errors.get(f'{name}.std_error', '')} |"
            for name, value in self.figures.items()
            if not name.endswith(".std_error")
        ]
        return [
            "",
            "## Measured",
            "",
            "The registry holds these figures: utility on held-out data, and scores of what the "
            "model leaks. They are computed on private data. The guarantee does not cover them, "
            "and the seal does not bind them.",
            "",
            "| figure | value | standard error |",
            "| --- | --- | --- |",
            *rows,
        ]


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, object] = (
        json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    )
    return content


def _configuration(folder: Path) -> list[str]:
    statement = _read(folder / SEAL_FILE).get("statement", {})
    values = [f"{name} {value}" for name, value in statement.get("configuration", {}).items()]
    return [f"Configuration: {', '.join(values)}."] if values else []


def _loading(
    folder: Path, recorded: Mapping[str, str], *, adapted: bool, merged: bool
) -> list[str]:
    """Return the code that loads the model, for a reader in the folder."""
    name, dtype = recorded["name"], recorded.get("dtype", "float32")
    # Three ways to load: torch's layers, transformers alone, transformers with peft.
    if (family := family_of(name)) is not None:
        return _of_family(family, folder, name)
    if not adapted:
        code = [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'model = AutoModelForCausalLM.from_pretrained(".", '
            f'dtype="{"auto" if merged else dtype}")',
            'tokenizer = AutoTokenizer.from_pretrained(".")',
        ]
        return ["With `transformers`, in this folder:", "", *_python(code)]
    # An adapter needs its base: beside it, on the hub, or from another export.
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
            f"It was trained and scored on the base with linear layers in {quantization}; on whole "
            "weights it is a slightly different model.",
        ]
    return ["With `transformers` and `peft`, in this folder:", "", *_python(code), "", *remark]


def _base(folder: Path, recorded: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return where the base model is loaded from, and a remark for the reader."""
    name = recorded["name"]
    # A name does not fix weights, so the reader gets their hash.
    hashed = f"The adapter fits weights with the hash {recorded['weight_hash']} alone (`weight_hash` in `base.json`)."
    if (folder / EXPORTED_BASE).is_dir():
        from raydp.models.lookup import SMOLLM2

        note = " Its weights are dequantised from 4-bit weights (Q4_1)." if name == SMOLLM2 else ""
        return EXPORTED_BASE, [f"The folder `{EXPORTED_BASE}` holds the base model `{name}`.{note}"]
    if "/" in name:
        return name, [
            f"`{name}` is the base model as the sweep named it, on the Hugging Face hub. {hashed}"
        ]
    return EXPORTED_BASE, [
        f"The base model `{name}` is not in this folder, and it need not be on the Hugging Face "
        f"hub. Export again with `--with-base`, which writes it to `{EXPORTED_BASE}`, or with "
        f"`--merge`; or put its files there. {hashed}"
    ]


def _of_family(family: ModelFamily, folder: Path, name: str) -> list[str]:
    """Return the code that loads a model of a family without raydp, or what to do without any."""
    code = family.loading_code(folder)
    if code is None:
        return [
            f"The layers of `{name}` are raydp's own: `raydp.load_model` loads it, and the names "
            "of the tensors in `model.safetensors` say what each is."
        ]
    return [
        f"With `torch` and `safetensors`, in this folder ({name} says the shape of an input and "
        "the number of classes; the outputs are logits):",
        "",
        *_python(code),
    ]


def _python(code: list[str]) -> list[str]:
    shown = [*code, *_TRY.split("\n")] if any("tokenizer" in line for line in code) else code
    return ["```python", *shown, "```"]


def _privacy(record: Mapping[str, Any]) -> list[str]:
    """Return the guarantee in words."""
    reasons = record.get("not_certified_because", ())
    certified = f"This guarantee is {'' if record.get('certified') else 'not '}certified."
    epsilon, stated = float(record["epsilon"]), Statement.of(record)
    sentence = epsilon_sentence(epsilon, record["delta"], record["unit"], stated)
    lines = [f"{sentence} {certified}", *[f"- Not certified: {reason}." for reason in reasons]]
    lines += [
        "",
        "`privacy.md` and `privacy.json` hold the whole record, where the sweep wrote them.",
    ]
    if uncovered := record.get("not_covered"):
        lines += ["", "The guarantee does not cover:", "", *[f"- {item}" for item in uncovered]]
    return lines
