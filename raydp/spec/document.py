"""The specification of a sweep: one YAML file, which is checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    SerializeAsAny,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from raydp.analysis.selection.default import DEFAULT_RULE, WITHOUT_SCORES
from raydp.plugins import registries
from raydp.plugins.described import PluginField, listed, messages_of
from raydp.search_spaces.settings import Settings, settings_in_words
from raydp.spec.changes import Changes, attribute_of, value_at, with_values
from raydp.spec.sections.cluster import ClusterSpec, TrackingSpec
from raydp.spec.sections.model import ModelSpec
from raydp.spec.sections.privacy import IGNORED, PrivacySpec
from raydp.spec.sections.section import Section
from raydp.spec.sections.seeds import AdaptiveSeeds
from raydp.spec.sections.selection import SelectSpec
from raydp.spec.sections.space import SpaceSpec
from raydp.spec.sections.stopping import StoppingSpec

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class SweepSpec(Section):
    """A sweep: task, model, method, guarantee, configurations, scores and the selection."""

    name: Annotated[str, Field(max_length=200, json_schema_extra={"pattern": _NAME})]
    """Name of the sweep: letters, digits, '.', '_' and '-'. Its folder is storage/name."""
    task: PluginField
    """The task: data, loss, utility and secrets, written {name: ..., **parameters}."""
    model: ModelSpec
    """The base model and what is trained on it."""
    method: PluginField
    """The training method, written {name: ..., **parameters}.

    It draws the batches and declares the accounted event.
    """
    privacy: SerializeAsAny[PrivacySpec]
    """The guarantee that every configuration is calibrated to."""
    space: SpaceSpec
    """The configurations (b, T, η), and which of them are run."""
    seeds: Annotated[
        Annotated[AdaptiveSeeds, Tag("{}")]
        | Annotated[
            tuple[Annotated[int, Field(ge=0, lt=2**63)], ...], Field(min_length=1), Tag("[]")
        ],
        Discriminator(lambda given: "{}" if isinstance(given, Mapping | AdaptiveSeeds) else "[]"),
    ] = (0,)
    """Labels of repetitions (initialisation, score sampling), or {first, at_most, ...} for seeds
    where they matter. The labels are public and never the source of the noise."""
    scores: tuple[PluginField, ...]
    """The scores that are measured of every trained model, each written {name: ..., **parameters}.

    With [] nothing is measured, and the selection is by hyperparameters and utility alone.
    """
    select: SelectSpec
    """How one configuration is chosen at the end."""
    stopping: StoppingSpec | None = None
    """Which runs end before their last step. By default none does."""
    evaluate_every: Annotated[int, Field(ge=1)] | None = None
    """Number of steps after which the utility is measured in training too: `heldout_loss` of a
    run's history, in Ray Tune and in MLflow. By default it is measured at the end alone."""
    cluster: ClusterSpec = ClusterSpec()
    """Where the sweep runs. Nothing here changes a result."""
    storage: str = "raydp_runs"
    """Folder that sweeps live in; the folder of this sweep is storage/name."""
    tracking: TrackingSpec = TrackingSpec()
    """Where MLflow keeps runs and models, and which further logs of the runs are written."""

    @field_validator("name")
    @classmethod
    def _name_of_a_folder(cls, name: str) -> str:
        if not re.fullmatch(_NAME, name):
            raise ValueError(
                "must begin with a letter or digit, and hold letters, digits, '.', '_' and '-' "
                "alone"
            )
        return name

    @field_validator("seeds")
    @classmethod
    def _distinct_seeds(
        cls, seeds: AdaptiveSeeds | tuple[int, ...]
    ) -> AdaptiveSeeds | tuple[int, ...]:
        if isinstance(seeds, tuple) and len(set(seeds)) < len(seeds):
            raise ValueError("must be distinct. Remove the repeated ones.")
        return seeds

    @field_validator("storage")
    @classmethod
    def _storage_is_a_folder(cls, storage: str) -> str:
        # Ray's workers write into the folder directly, so an object store does not serve.
        if "://" in storage:
            raise ValueError("must be a folder that every node sees. Give a path.")
        return storage

    @model_validator(mode="before")
    @classmethod
    def _policy_completes_it(cls, data: object) -> object:
        # This runs before validation, because the default rule depends on another section.
        privacy = data.get("privacy") if isinstance(data, Mapping) else None
        tuning = privacy.get("tuning", IGNORED) if isinstance(privacy, Mapping) else IGNORED
        # An unknown tuning is refused with the section.
        if tuning == IGNORED or tuning not in registries.names("policies"):
            return data
        return registries.resolve("policies", tuning).completed(data)

    @model_validator(mode="before")
    @classmethod
    def _without_scores_the_procedure_selects(cls, data: object) -> object:
        # Without scores only some rules apply, so the default becomes one of them.
        if not isinstance(data, Mapping) or data.get("scores") not in ([], ()):
            return data
        select = data.get("select", {})
        return (
            {**data, "select": {"rule": "procedure", **select}}
            if isinstance(select, Mapping)
            else data
        )

    @model_validator(mode="after")
    def _policy_covers_it(self) -> SweepSpec:
        # A guarantee that covers a choice covers one way to choose: everything else is refused.
        if self.privacy.tuning == IGNORED:
            return self
        policy = registries.resolve("policies", self.privacy.tuning)
        if problems := policy.conflicts(self):
            raise ValueError("\n".join(problems))
        return self

    @model_validator(mode="after")
    def _adaptive_seeds_follow_the_scores(self) -> SweepSpec:
        if not isinstance(self.seeds, AdaptiveSeeds):
            return self
        # Adaptive seeds follow the decision of one rule: no other rule says which runs are still
        # needed.
        if self.select.rule != DEFAULT_RULE:
            raise ValueError(
                f"seeds must be a list with select.rule {self.select.rule!r}, got first and "
                "at_most: adaptive seeds end with a decision about the scores. Use the rule "
                f"{DEFAULT_RULE}, or give a list."
            )
        if self.space.search is not None:
            raise ValueError(
                f"seeds must be a list with space.search {self.space.search.name!r}, got first and "
                "at_most: the first pass runs every configuration. Remove the search, or give a "
                "list."
            )
        return self

    @model_validator(mode="after")
    def _further_fields_fit(self) -> SweepSpec:
        """Check the spec of every combination of the further fields of `space`."""
        # Every combination must give a valid spec before anything is trained.
        self._check_names()
        combinations = self.field_combinations()
        known: dict[Settings, Mapping[str, object]] = {}
        for fields in combinations:
            try:
                settings = self.settings(fields)
                self.of_run(settings)
            except ValueError as error:
                raise ValueError(f"space with {settings_in_words(fields)}: {error}") from error
            # Two ways to write one configuration would train it twice.
            if not self.space.depends_on_the_point and settings in known:
                raise ValueError(
                    "space must not repeat a configuration, got "
                    f"{settings_in_words(known[settings])} and {settings_in_words(fields)}, which "
                    "are the same. Remove one of the values."
                )
            known[settings] = fields
        # A condition that never holds is a mistake of the user.
        for path in self.space.further:
            if not any(path in fields for fields in combinations):
                raise ValueError(
                    f"space.{path}.only_where must hold for a configuration, got conditions that "
                    "hold for none. Correct them, or remove the field."
                )
        return self

    def _check_names(self) -> None:
        """Refuse two paths of one configuration that name one field, or contain each other."""
        for paths in self.space.further_paths:
            known: dict[str, str] = {}
            for path in paths:
                # Compare by the fields' own names: `alpha` and `lora_alpha` are one field.
                canonical = self._canonical(path)
                for other, written in known.items():
                    if (
                        canonical == other
                        or canonical.startswith(f"{other}.")
                        or other.startswith(f"{canonical}.")
                    ):
                        raise ValueError(
                            f"space must have keys that do not contain each other, got {written!r} "
                            f"and {path!r}. Remove one of them."
                        )
                known[canonical] = path

    def _canonical(self, path: str) -> str:
        """Return a path with the fields' own names in place of other names, such as peft's."""
        section, *rest = path.split(".")
        value: object = self.method.params if section == "method" else self.model
        names = [section]
        for given in rest:
            name = attribute_of(type(value), given) if isinstance(value, BaseModel) else None
            value = None if name is None else getattr(value, name)
            names.append(name or given)
        return ".".join(names)

    def run_specs(self) -> list[SweepSpec]:
        """Return the runs' specs: one for each combination of further fields, or this one."""
        return [self.of_run(fields) for fields in self.field_combinations()] or [self]

    def field_combinations(self) -> list[dict[str, object]]:
        """Return the distinct combinations of the further fields, as they are written."""
        space = self.space
        if space.depends_on_the_point:
            every = [
                fields
                for configuration, own in space.listed()
                for fields in space.combinations(configuration, own)
            ]
        else:
            every = space.combinations({}, {}) if space.further else []
        # Values may be lists, which no dictionary takes as keys.
        return list({Settings(fields): fields for fields in every}.values())

    def of_run(self, fields: Mapping[str, object]) -> SweepSpec:
        """Return the spec of the configurations that set these further fields.

        Its own space has none of them.

        Args:
            fields: dotted path of a field of `method` or `model` -> its value.

        Raises:
            ValueError: there is no such field, or the spec is not valid with this value.
        """
        if not fields:
            return self
        # Nest the paths by section, because one section is validated as a whole.
        nested: dict[str, Any] = {}
        for path, value in fields.items():
            *sections, name = path.split(".")
            inner = nested
            for section in sections:
                inner = inner.setdefault(section, Changes())
                if not isinstance(inner, Changes):
                    raise ValueError(
                        f"space must have keys that do not contain each other, got {path!r} and "
                        "another."
                    )
            inner[name] = value
        # Change method and model.
        changed: dict[str, object] = {}
        if "method" in nested:
            params = with_values(self.method.params, nested["method"], "method")
            changed["method"] = replace(self.method, params=params)
        if "model" in nested:
            changed["model"] = with_values(self.model, nested["model"], "model")
        # Further fields that a point sets are now part of the spec, so the space keeps only (b, T,
        # η).
        one = None if self.space.points is None else (self.space.points[0][:3],)
        space = self.space.model_copy(update={"further": {}, "points": one})
        # Pass on only what was given: a default that is written out would count as given.
        given = {name: getattr(self, name) for name in self.model_fields_set}
        try:
            return type(self).model_validate({**given, **changed, "space": space})
        except ValidationError as error:
            raise ValueError(listed(messages_of(type(self), error, ""))) from error

    def settings(self, fields: Mapping[str, object]) -> Settings:
        """Return the settings of a configuration that sets these further fields.

        They have every field that the space varies: one whose condition does not hold has the
        spec's own value. The values are as the spec reads them: 1 and 1e0 are one number.
        """
        spec = self.of_run(fields)
        return Settings({path: spec._value_of(path) for path in (*self.space.paths, *fields)})

    def _value_of(self, path: str) -> object:
        """Return the value of a field of the method or the model, as data for JSON."""
        section, *names = path.split(".")
        return value_at(self.method.params if section == "method" else self.model, names)

    @property
    def seed_labels(self) -> tuple[int, ...]:
        """Return the labels of all seeds that may be run."""
        return self.seeds.labels if isinstance(self.seeds, AdaptiveSeeds) else self.seeds

    @model_validator(mode="after")
    def _selected_score_is_measured(self) -> SweepSpec:
        # Every score is measured once; a second one with other parameters goes through `raydp
        # score`.
        names = [score.name for score in self.scores]
        if len(set(names)) < len(names):
            raise ValueError(f"scores must be distinct, got {names}. Remove the repeated ones.")
        if not names:
            return self._checked_without_scores()
        if self.select.score is None:
            raise ValueError(
                "select.score must name the score to select by, got none. Use "
                f"{' or '.join(names)}."
            )
        # A known score that is not measured is another mistake than a misspelt one.
        if self.select.score not in names and self.select.score in registries.names("scores"):
            raise ValueError(
                f"select.score {self.select.score!r} is not measured in this sweep. Add it to "
                f"scores, or choose one of: {', '.join(names)}."
            )
        if self.select.score not in names:
            raise ValueError(registries.unknown_name("select.score", self.select.score, names))
        return self

    def _checked_without_scores(self) -> SweepSpec:
        """Refuse what needs a score."""
        given = "if scores is empty, got"
        if self.select.rule not in WITHOUT_SCORES:
            raise ValueError(
                f"select.rule must need no score {given} {self.select.rule!r}. Use "
                f"{', '.join(WITHOUT_SCORES)}, or measure a score."
            )
        for name in ("score", "max_score"):
            if (value := getattr(self.select, name)) is not None:
                raise ValueError(
                    f"select.{name} must be left out {given} {value!r}. Remove it, or measure a "
                    "score."
                )
        if self.space.search is not None and self.space.search.name != "random":
            raise ValueError(
                f"space.search must be random or left out {given} {self.space.search.name!r}. It "
                "chooses by scores."
            )
        return self

    @model_validator(mode="after")
    def _sharded_weights_do_not_decay_in_the_loss(self) -> SweepSpec:
        # λθ is added to each unit's gradient, for which a worker would need all of θ.
        params = dict(self.method.params)
        decay = params["weight_decay"] if params.get("decay") == "in_loss" else 0.0
        if decay and self.cluster.sharding == "full":
            raise ValueError(
                "method.decay must be decoupled with cluster.sharding full, got weight_decay "
                f"{decay:g} in the loss: no worker has all weights at hand. Use decay decoupled, "
                "or do without sharding."
            )
        return self
