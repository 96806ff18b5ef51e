"""The section on the configurations of a sweep, and which of them are run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Annotated, Any

from pydantic import (
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from raydp.plugins.described import PluginField
from raydp.privacy.accounting.events import MAX_NUM_STEPS
from raydp.search_spaces.configuration import HYPERPARAMETERS, Hyperparameters
from raydp.search_spaces.loader import load_space
from raydp.search_spaces.settings import Settings
from raydp.spec.sections.section import AtLeastOne, Positive, Section

Steps = Annotated[int, Field(ge=1, le=MAX_NUM_STEPS)]
GATHERED = "<further>"
"""The key under which the further fields are gathered. No spec can have it by accident."""
MAX_CONFIGURATIONS = 100_000
"""The largest number of combinations of a grid. Each is calibrated, named and trained."""
VARIABLE = ("method", "model")
"""The sections of a spec whose fields may vary from configuration to configuration."""

_Row = tuple[AtLeastOne, Steps, Positive]
_RowWithFields = tuple[AtLeastOne, Steps, Positive, dict[str, Any]]
_WITH_FIELDS = len(HYPERPARAMETERS) + 1
Point = Annotated[
    Annotated[_Row, Tag("3")] | Annotated[_RowWithFields, Tag("4")],
    Discriminator(
        lambda row: "4" if isinstance(row, list | tuple) and len(row) == _WITH_FIELDS else "3"
    ),
]


class VariedField(Section):
    """The values of a further field, and the configurations in which it varies."""

    values: Annotated[tuple[Any, ...], Field(min_length=1)]
    """The values to try."""
    only_where: Annotated[dict[str, Any], Field(min_length=1)] | None = None
    """Conditions: another varied field, batch_size, num_steps or learning_rate -> its value, or a
    list of values. Where they do not hold, the field is not varied: it has the value that the spec
    gives it outside of `space`."""

    @field_validator("values")
    @classmethod
    def _distinct(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        # Values are compared as settings are: 1 and 1.0 are one value.
        try:
            texts = [Settings({"": value}).text for value in values]
        except TypeError as error:
            raise ValueError(
                f"must have values whose keys are text, got others ({error}). Correct it."
            ) from error
        seen: set[str] = set()
        for value, text in zip(values, texts, strict=True):
            if text in seen:
                raise ValueError(f"must have distinct values, got {value} twice. Remove one.")
            seen.add(text)
        return values

    def varies_with(self, chosen: Mapping[str, object]) -> bool:
        """Return whether the conditions hold for the values that were chosen before."""
        return all(
            path in chosen and _meets(chosen[path], asked)
            for path, asked in (self.only_where or {}).items()
        )


def _meets(value: object, asked: object) -> bool:
    """Return whether a value is the one that a condition asks for, or one of its list."""
    return _same(value, asked) or (
        isinstance(asked, list | tuple) and any(_same(value, one) for one in asked)
    )


def _same(one: object, other: object) -> bool:
    """Return whether two values of a spec are equal. YAML reads 1e-2 as text, which is a number."""
    # bool is an int in Python: true would equal 1.
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) or isinstance(other, int | float):
        try:
            # YAML 1.1 reads 1e-2 as text.
            return float(one) == float(other)  # type: ignore[arg-type]  # what is no number raises
        except (TypeError, ValueError):
            return False
    return Settings({"": one}) == Settings({"": other})


class SpaceSpec(Section):
    """The configurations: a named space, a list of points, or a grid of three lists; and which of
    them are run.

    A key with a dot is the path of a further field of the spec, such as `method.max_grad_norm` or
    `model.adapter.r`, with the list of its values, or with {values: ..., only_where: ...}. Every
    configuration is tried with each of them.
    """

    name: str | None = None
    """A named space, such as tofu-1; `raydp spaces list` prints the known names."""
    points: Annotated[tuple[Point, ...], Field(min_length=1)] | None = None
    """A list of configurations [b, T, η]; each may be a mapping with the three names instead, and
    then also with paths of further fields and one value for each."""
    batch_size: Annotated[tuple[AtLeastOne, ...], Field(min_length=1)] | None = None
    """Grid: the expected batch sizes b, in units of privacy."""
    num_steps: Annotated[tuple[Steps, ...], Field(min_length=1)] | None = None
    """Grid: the numbers of steps T."""
    learning_rate: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None
    """Grid: the learning rates η."""
    further: Annotated[
        dict[str, VariedField], Field(validation_alias=GATHERED, default_factory=dict)
    ]
    """The further fields, which a spec writes beside the others: path -> values and conditions."""
    search: PluginField | None = None
    """A strategy that runs a part of the configurations, by name or with its parameters.

    By default all are run.
    """

    @model_validator(mode="before")
    @classmethod
    def _paths_are_further_fields(cls, data: object) -> object:
        """Gather the keys with a dot."""
        if not isinstance(data, dict):
            return data
        # A key with a dot is no field of this section, so it is a path.
        paths = [key for key in data if isinstance(key, str) and "." in key]
        further = {
            path: given if isinstance(given := data[path], Mapping) else {"values": given}
            for path in paths
        }
        rest = {key: value for key, value in data.items() if key not in further}
        return {**rest, GATHERED: further} if further else rest

    @model_serializer(mode="wrap")
    def _further_fields_as_written(
        self, handler: SerializerFunctionWrapHandler
    ) -> dict[str, object]:
        """Write the further fields beside the others, and those without conditions as lists."""
        values: dict[str, Any] = handler(self)
        further = {
            path: field if field["only_where"] is not None else field["values"]
            for path, field in values.pop("further").items()
        }
        search = values.pop("search")
        return {**values, **further, "search": search}

    @field_validator("points", mode="before")
    @classmethod
    def _points_as_rows(cls, points: object) -> object:
        """Convert points that are mappings to rows [b, T, η], perhaps with further fields."""
        return [_as_row(point) for point in points] if isinstance(points, list | tuple) else points

    @model_validator(mode="after")
    def _one_kind(self) -> SpaceSpec:
        # Exactly one of a name, a list and a whole grid must be given.
        grid = (self.batch_size, self.num_steps, self.learning_rate)
        kinds = [
            self.name is not None,
            self.points is not None,
            any(axis is not None for axis in grid),
        ]
        missing = [name for name, axis in zip(HYPERPARAMETERS, grid, strict=True) if axis is None]
        if sum(kinds) != 1 or (kinds[2] and missing):
            lacking = (
                f"This grid has no {' and no '.join(missing)}."
                if kinds[2] and missing
                else "Give exactly one."
            )
            raise ValueError(
                "must be {name: ...}, {points: [[b, T, η], ...]} or the three lists batch_size, "
                f"num_steps and learning_rate. {lacking}"
            )
        # Bound the number of configurations before they are written out.
        size = (
            prod(len(axis or ()) for axis in grid)
            if kinds[2]
            else len(self.points or self._named())
        )
        combinations = prod(len(field.values) for field in self.further.values())
        if size * combinations > MAX_CONFIGURATIONS:
            further = f" and {', '.join(self.further)}" if self.further else ""
            raise ValueError(
                f"must have at most {MAX_CONFIGURATIONS:,} configurations, got "
                f"{size * combinations:,} combinations of batch_size, num_steps and "
                f"learning_rate{further}. Give fewer values, or a list of points."
            )
        return self

    @model_validator(mode="after")
    def _fields_of_method_and_model(self) -> SpaceSpec:
        # Only method and model may vary: all configurations share task, guarantee and scores.
        for path in (
            *self.further,
            *(path for point in self.points or () for path in _fields_of(point)),
        ):
            section, _, rest = path.partition(".")
            if section not in VARIABLE or not rest:
                raise ValueError(
                    f"must have keys that are fields of {' or '.join(VARIABLE)}, got {path!r}. "
                    "Every configuration has one task, one guarantee and one set of scores: run a "
                    "sweep for each; `raydp report` compares them."
                )
            if path in ("method.name", "model.name"):
                raise ValueError(
                    f"must not vary {path}: the configurations of a sweep are compared with one "
                    "untrained model. Run a sweep for each; `raydp report` compares them."
                )
        return self

    @model_validator(mode="after")
    def _conditions_can_be_checked(self) -> SpaceSpec:
        # Order the conditions topologically: a field may follow fields that are known before it.
        known = [*HYPERPARAMETERS, *(path for path in self.paths if path not in self.further)]
        left = dict(self.further)
        while ready := [
            path for path, field in left.items() if set(field.only_where or ()) <= set(known)
        ]:
            known += ready
            left = {path: field for path, field in left.items() if path not in ready}
        # What is left waits for a field that does not vary, or for itself.
        for path, field in left.items():
            unknown = sorted(set(field.only_where or ()) - set(self.paths) - set(HYPERPARAMETERS))
            if unknown:
                raise ValueError(
                    f"must have conditions on fields that vary, got {unknown[0]!r} in "
                    f"{path}.only_where. Vary it too, or remove the condition."
                )
            raise ValueError(
                "must have conditions that do not depend on each other, got those of "
                f"{', '.join(left)}. Remove one."
            )
        # A condition that no value meets would silently never vary its field.
        for path, field in self.further.items():
            for other, asked in (field.only_where or {}).items():
                values = self._values_of(other)
                alternatives = (
                    asked if isinstance(asked, list | tuple) and not _in(asked, values) else [asked]
                )
                if wrong := [one for one in alternatives if not _in(one, values)]:
                    raise ValueError(
                        f"must have conditions that can hold, got {wrong[0]!r} for {other} in "
                        f"{path}.only_where, which is {', '.join(map(repr, values))}. Write one of "
                        "these."
                    )
        return self

    def _values_of(self, path: str) -> list[object]:
        """Return the values that a hyperparameter or a further field has in the space."""
        if path in HYPERPARAMETERS:
            return list(dict.fromkeys(point[path] for point, _ in self.listed()))  # type: ignore[literal-required]
        own = [fields[path] for _, fields in self.listed() if path in fields]
        return [*(self.further[path].values if path in self.further else ()), *own]

    def _named(self) -> list[object]:
        """Return the named space's configurations; [None] if the name is unknown."""
        try:
            return [point for point, _ in self.listed()]
        except ValueError:
            return [None]

    @property
    def paths(self) -> list[str]:
        """Return the paths of all fields that the space varies, or that a point sets by itself."""
        own = (path for point in self.points or () for path in _fields_of(point))
        return list(dict.fromkeys([*self.further, *own]))

    @property
    def further_paths(self) -> list[list[str]]:
        """Return each point's paths of further fields; one list for a grid or a named space."""
        own = [_fields_of(point) for point in self.points or ()]
        return [
            [*fields, *(path for path in self.further if path not in fields)]
            for fields in own or [{}]
        ]

    def combinations(
        self, configuration: Mapping[str, object], own: Mapping[str, object]
    ) -> list[dict[str, Any]]:
        """Return a configuration's combinations of further fields, each as path -> value.

        Args:
            configuration: the values of batch_size, num_steps and learning_rate.
            own: path -> value of the further fields that its point sets; they do not vary.
        """
        order = self._in_order()
        return [
            {path: value for path, value in chosen.items() if path not in HYPERPARAMETERS}
            for chosen in _expanded(
                {**configuration, **own}, [item for item in order if item[0] not in own]
            )
        ]

    @property
    def depends_on_the_point(self) -> bool:
        """Return whether the combinations of the further fields differ between (b, T, η)."""
        conditions = {path for field in self.further.values() for path in field.only_where or ()}
        return bool(conditions & set(HYPERPARAMETERS)) or any(map(_fields_of, self.points or ()))

    def _in_order(self) -> list[tuple[str, VariedField]]:
        """Return the further fields, each after those that its conditions name."""
        # Kahn's algorithm sorts topologically. It ends, because `_conditions_can_be_checked`
        # refuses circles.
        ordered: dict[str, VariedField] = {}
        while len(ordered) < len(self.further):
            for path, field in self.further.items():
                if not set(field.only_where or ()) & (set(self.further) - set(ordered)):
                    ordered.setdefault(path, field)
        return list(ordered.items())

    def listed(self) -> Iterator[tuple[Hyperparameters, dict[str, Any]]]:
        """Yield each configuration's (b, T, η), and the further fields that its point sets.

        Raises:
            ValueError: there is no space of this name.
        """
        if self.name is not None:
            yield from (
                (configuration.to_json(), {})
                for configuration in load_space(self.name).configurations
            )
        elif self.points is not None:
            for point in self.points:
                yield (
                    {"batch_size": point[0], "num_steps": point[1], "learning_rate": point[2]},
                    _fields_of(point),
                )
        else:
            for b, t, rate in product(
                self.batch_size or (), self.num_steps or (), self.learning_rate or ()
            ):
                yield {"batch_size": b, "num_steps": t, "learning_rate": rate}, {}


def _in(value: object, values: Sequence[object]) -> bool:
    return any(_same(value, one) for one in values)


def _expanded(
    chosen: dict[str, Any], left: list[tuple[str, VariedField]]
) -> Iterator[dict[str, Any]]:
    """Yield the chosen values with every combination of the fields left, in the values' order."""
    if not left:
        yield chosen
        return
    (path, field), *rest = left
    # A field whose condition does not hold keeps the spec's own value.
    if not field.varies_with(chosen):
        yield from _expanded(chosen, rest)
        return
    for value in field.values:
        yield from _expanded({**chosen, path: value}, rest)


def _fields_of(point: Point) -> dict[str, Any]:
    return dict(point[-1]) if isinstance(point[-1], dict) else {}


def _as_row(point: object) -> object:
    """Return a mapping as a row, and any other point as it is, to be refused."""
    if not isinstance(point, dict) or not set(HYPERPARAMETERS) <= set(point):
        return point
    further = {key: value for key, value in point.items() if key not in HYPERPARAMETERS}
    for key in further:
        if not isinstance(key, str) or "." not in key:
            raise ValueError(
                f"must be lists [b, T, η], or mappings with {', '.join(HYPERPARAMETERS)} and paths "
                f"of further fields, such as method.max_grad_norm, got the key {key!r}. Correct it."
            )
    return [*(point[name] for name in HYPERPARAMETERS), *([further] if further else [])]
