"""The record of one trial, which the driver hands over, and the names of its parts in MLflow."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.search_spaces.settings import Settings, settings_in_words
from raydp.tracking.portable import model_files, portable

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

PRIVACY_PREFERRED, BEST_UTILITY = "privacy-preferred", "best-utility"
"""The aliases of a sweep's selected model, the first one only with a guarantee."""
PRIVACY_TAGS = ("epsilon", "delta", "noise_multiplier", "accountant", "unit", "certified")
RECORD_TAG = "record"
"""The tag of a version with what identifies and guarantees it, as JSON; see `tags_of`."""
SHOWN_NAMES = {"eps": "adam_eps"}
"""Parameters with another name in MLflow, where eps would stand beside epsilon."""
PRIVACY_METRICS = ("epsilon", "delta", "noise_multiplier")


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A trained model with everything that is recorded about it.

    Attributes:
        run_id: the run's identity in its sweep (a hash; docs/design.md: identity).
        batch_size, num_steps, learning_rate: the configuration; None for a method without
            configuration.
        seed: public seed of the repetition.
        settings: the further fields that the configuration sets, as text
            (`raydp.search_spaces.settings`).
        params: other parameters, flat: name -> number or text. `method`, `task_hash` and
            `max_grad_norm` become columns of `find_models`, the others `param.<name>`.
        step_metrics: one mapping a step: "step" and values by name.
        metrics: values of the trained model: utility_loss, utility_gain, score.<name>,
            score.<name>.std_error, ...; undefined values (None, NaN, infinite) are named in a tag
            instead.
        privacy: the privacy record; epsilon is infinite for a non-private model, never 0.
        card: the privacy record as Markdown; stored beside the model if there is one.
        base: the base model's name in the spec, its weight_hash, and its dtype.
        model_dir: folder that save_pretrained wrote: an adapter in PEFT's layout, or a full model.
        seconds: duration of the trial; None if the duration must not be revealed.
        status: "finished", or "stopped" if the trial ended early (then it is not a point of an
            analysis).
        description: what the model's version says to people, as Markdown. It defines nothing.

    The record must not quote training text or a secret. It may hold their ids and hashes.
    """

    run_id: str
    batch_size: int | None
    num_steps: int | None
    learning_rate: float | None
    seed: int
    params: Mapping[str, object]
    metrics: Mapping[str, float | None]
    privacy: Mapping[str, object]
    base: Mapping[str, object]
    model_dir: Path
    seconds: float | None
    step_metrics: Sequence[Mapping[str, float]] = field(default=())
    card: str = ""
    status: Literal["finished", "stopped"] = "finished"
    settings: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        # These would be bugs of ours, and a store would keep them for ever.
        assert re.fullmatch(r"[\w.-]+", self.run_id), "a run's identity is a hash"
        assert number_of(self.privacy["epsilon"]) > 0, (
            "a non-private model has epsilon inf, never 0"
        )
        assert {"name", "weight_hash"} <= set(self.base), "the base model is named and hashed"
        clashes = set(self.params) & {*HYPERPARAMETERS, "seed", "settings"}
        assert not clashes, f"params repeat fields of the record: {sorted(clashes)}"

    def digest(self) -> str:
        """Return the SHA-256 (hex) of the whole record with the model files.

        It is equal only for equal results.
        """
        # Without settings, the digest stays what it was before there were settings.
        left_out = {"model_dir", "description", *(() if self.settings else ("settings",))}
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in left_out}
        digest = hashlib.sha256(json.dumps(portable(values), sort_keys=True).encode())
        # The model's files belong to the record: the same figures with other weights are another
        # result.
        for path in model_files(self.model_dir):
            digest.update(path.name.encode())
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()

    def configuration(self) -> dict[str, str]:
        """Return the configuration, seed and settings, if any, as text; floats round-trip."""
        rate = None if self.learning_rate is None else float(self.learning_rate)
        values = {
            "batch_size": self.batch_size,
            "num_steps": self.num_steps,
            "learning_rate": rate,
            "seed": self.seed,
        }
        return as_params({**values, **({"settings": self.settings} if self.settings else {})})

    def all_params(self) -> dict[str, str]:
        """Return configuration and other parameters as MLflow stores them, in the order shown."""
        params = {SHOWN_NAMES.get(name, name): value for name, value in self.params.items()}
        return {**self.configuration(), **as_params(params)}

    def privacy_tags(self) -> dict[str, str]:
        """Return the values of the guarantee by which models are looked up."""
        return as_params({name: self.privacy.get(name) for name in PRIVACY_TAGS})

    def finite_metrics(self) -> tuple[dict[str, float], list[str]]:
        """Return the finite final metrics with the guarantee's values, and the others' names."""
        # Values that are not finite are only named: no look-up could compare them.
        values = {
            clean_key(name): float(value)
            for name, value in self.metrics.items()
            if value is not None
        }
        missing = [clean_key(name) for name, value in self.metrics.items() if value is None]
        missing += [name for name, value in values.items() if not math.isfinite(value)]
        for name in PRIVACY_METRICS:
            if self.privacy.get(name) is not None:
                values[name] = number_of(self.privacy[name])
        if self.seconds is not None:
            values["seconds"] = self.seconds
        return {name: value for name, value in values.items() if math.isfinite(value)}, sorted(
            missing
        )


def as_params(values: Mapping[str, object]) -> dict[str, str]:
    """Return the defined values as text: floats round-trip, booleans and lists are as in JSON."""
    texts = {}
    for name, value in values.items():
        plain = portable(value)
        if plain is not None:
            texts[clean_key(name)] = (
                plain if isinstance(plain, str) else json.dumps(plain, sort_keys=True)
            )
    return texts


def json_object(content: str | bytes | None) -> dict[str, Any] | None:
    """Return the JSON object in a tag or a file; None if there is none, or something else."""
    try:
        document = json.loads(content or "null")
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def name_of(configuration: Mapping[str, str]) -> str:
    """Return a run's name for people: its configuration, its seed, and further fields."""
    short = {"batch_size": "b", "num_steps": "T", "learning_rate": "η", "seed": "seed"}
    named = [f"{short[key]}={configuration[key]}" for key in short if key in configuration]
    if "settings" in configuration:
        settings = Settings.parse(configuration["settings"])
        named.append(settings_in_words(settings, equals="=", between=" "))
    return " ".join(named)


def tags_of(version: ModelVersion) -> dict[str, str]:
    """Return a version's tags together with the texts in its record.

    Earlier versions of raydp wrote each of these texts as a tag of its own. A name whose tag and
    whose text in the record differ is left out: somebody changed one of them.
    """
    record = json_object(version.tags.get(RECORD_TAG)) or {}
    texts = {name: text for name, text in record.items() if isinstance(text, str)}
    tags: dict[str, str] = version.tags
    both = {**texts, **tags}
    return {k: v for k, v in both.items() if texts.get(k, v) == v}


def number_of(value: object) -> float:
    """Return the number in a field of a privacy record, where infinity may be the string "inf"."""
    assert isinstance(value, int | float | str), (
        f"a record's figure is a number, got {type(value).__name__}"
    )
    return float(value)


def flatten(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten nested mappings into one, with dots between the keys."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def clean_key(name: str) -> str:
    """Replace characters that MLflow refuses in keys by underscores."""
    return re.sub(r"[^/\w.\- ]", "_", name)


def latest_metrics(model: LoggedModel) -> dict[str, float]:
    """Return a logged model's metrics, each with its latest value."""
    metrics = sorted(model.metrics or [], key=lambda metric: metric.timestamp)
    return {metric.key: float(metric.value) for metric in metrics}
