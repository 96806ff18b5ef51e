"""The sweep specification: one YAML file, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from raydp import registries
from raydp.plugins import Plugin, PluginField, any_plugin, messages_of, resolve_plugin
from raydp.reading_yaml import read_yaml
from raydp.sections import (
    ClusterSpec,
    ModelSpec,
    PrivacySpec,
    Section,
    SelectSpec,
    SpaceSpec,
    StoppingSpec,
    TrackingSpec,
)
from raydp.sections.selection import conflicts, with_the_only_rule

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from raydp.tasks.base import Task

MOST_PROBLEMS = 50
"""So many mistakes of a spec are told at once."""


class SweepSpec(Section):
    """A sweep: task, model, method and guarantee, the configurations, the scores and how one is selected.

    Attributes:
        seeds: labels of repetitions (initialisation, score sampling); public, never the source of the noise.
        stopping: which runs end early; without it none does.
        storage: folder that sweeps live in; this one in storage/name.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
    task: PluginField
    model: ModelSpec
    method: PluginField
    privacy: PrivacySpec
    space: SpaceSpec
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**63)], ...], Field(min_length=1)] = (0,)
    scores: Annotated[tuple[PluginField, ...], Field(min_length=1)]
    select: SelectSpec
    stopping: StoppingSpec | None = None
    cluster: ClusterSpec = ClusterSpec()
    storage: str = "raydp_runs"
    tracking: TrackingSpec = TrackingSpec()

    @field_validator("seeds")
    @classmethod
    def _distinct_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("must be distinct. Remove the repeated ones.")
        return seeds

    @field_validator("storage")
    @classmethod
    def _storage_is_a_folder(cls, storage: str) -> str:
        if "://" in storage:
            raise ValueError("must be a folder that every node sees. Give a path.")
        return storage

    @model_validator(mode="before")
    @classmethod
    def _private_selection_has_one_rule(cls, data: Any) -> Any:
        return with_the_only_rule(data)

    @model_validator(mode="after")
    def _private_selection_is_covered(self) -> SweepSpec:
        if problems := conflicts(self):
            raise ValueError("\n".join(problems))
        return self

    @model_validator(mode="after")
    def _selected_score_is_measured(self) -> SweepSpec:
        names = [score.name for score in self.scores]
        if len(set(names)) < len(names):
            raise ValueError(f"scores must be distinct, got {names}. Remove the repeated ones.")
        if self.select.score not in names and self.select.score in registries.names("scores"):
            raise ValueError(
                f"select.score {self.select.score!r} is not measured in this sweep. Add it to scores, or choose one "
                f"of: {', '.join(names)}."
            )
        if self.select.score not in names:
            raise ValueError(registries.unknown_name("select.score", self.select.score, names))
        return self

    @model_validator(mode="after")
    def _sharded_weights_do_not_decay_in_the_loss(self) -> SweepSpec:
        decay = getattr(self.method.params, "loss_decay", 0.0)
        if decay and self.cluster.sharding == "full":
            raise ValueError(
                f"method.decay must be decoupled with cluster.sharding full, got weight_decay {decay:g} in the loss: "
                "no worker has all weights at hand. Use decay decoupled, or do without sharding."
            )
        return self

    def build_task(self, tokenizer: PreTrainedTokenizerBase) -> Task:
        """The task with the unit of privacy that is asked for.

        Raises:
            ValueError: the data or the secrets are not usable, or the task does not know its users.
        """
        task: Task = self.task.params.build(tokenizer)
        return task.by_user() if self.privacy.unit == "user" else task


def load_spec(source: str | Path | Mapping[str, Any]) -> SweepSpec:
    """Read and check a spec.

    Args:
        source: a YAML file, or its content as a mapping.

    Raises:
        ValueError: every mistake found, one per line, each with what to change.
    """
    if isinstance(source, Mapping):
        data = dict(source)
    else:
        data = read_yaml(Path(source), "SPEC")
        if not isinstance(data, dict):
            raise ValueError(f"SPEC must be a mapping of sections, got {type(data).__name__}. See `raydp schema`.")
    problems: list[str] = []
    kinds: dict[str, registries.Kind] = {"task": "tasks", "method": "methods"}
    for key, kind in kinds.items():
        if key in data:
            data[key] = resolve_plugin(kind, key, data[key], problems)
    if isinstance(data.get("scores"), list | tuple):
        data["scores"] = [resolve_plugin("scores", f"scores[{i}]", s, problems) for i, s in enumerate(data["scores"])]
    if isinstance(space := data.get("space"), Mapping) and "search" in space:
        data["space"] = {**space, "search": _search(space["search"], problems)}
    try:
        spec = SweepSpec.model_validate(data)
    except ValidationError as error:
        problems += messages_of(SweepSpec, error, "", skip_plugins=True)
        raise ValueError(_listed(problems)) from error
    if problems:
        raise ValueError(_listed(problems))
    return spec


def _listed(problems: list[str]) -> str:
    """The first of them, a line each: nobody reads thousands."""
    more = [f"... and {len(problems) - MOST_PROBLEMS} more."] if len(problems) > MOST_PROBLEMS else []
    return "\n".join([*problems[:MOST_PROBLEMS], *more])


def _search(written: Any, problems: list[str]) -> Plugin | None:
    """A name alone has no parameters; "grid" is every configuration."""
    if written is None or written == "grid":
        return None
    named = {"name": written} if isinstance(written, str) else written
    return resolve_plugin("searches", "space.search", named, problems)


def json_schema() -> dict[str, Any]:
    """JSON Schema of the spec with every known plug-in's parameters, for editors."""
    schema = SweepSpec.model_json_schema()
    properties = schema["properties"]
    properties["task"] = any_plugin("tasks")
    properties["method"] = any_plugin("methods")
    properties["scores"]["items"] = any_plugin("scores")
    search = {"anyOf": [{"enum": ["grid", *registries.names("searches")]}, any_plugin("searches"), {"type": "null"}]}
    schema["$defs"]["SpaceSpec"]["properties"]["search"] = search
    return schema
