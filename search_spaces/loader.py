"""Named search spaces: YAML files in this package, each a grid or a list with its source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import product

import yaml
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, model_validator

from raydp.search_spaces.configuration import Configuration, exact
from raydp.search_spaces.names import unknown_name

_SUFFIX = ".yaml"


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A configuration that a task cannot run.

    Attributes:
        configuration: the configuration as the space lists it.
        reason: the reason, one sentence for the user.
    """

    configuration: Configuration
    reason: str


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """A named set of configurations.

    Attributes:
        name: name that users write.
        description: purpose of the space.
        source: paper and table, or "ours" with its derivation.
        max_grad_norm: clipping norm c that the source trains with.
        configurations: all configurations, without duplicates, as listed.
    """

    name: str
    description: str
    source: str
    max_grad_norm: float
    configurations: tuple[Configuration, ...]

    def points(self, num_examples: int) -> tuple[list[Configuration], list[Rejected]]:
        """Split the space into configurations that a task of this size can run, and the others.

        Args:
            num_examples: n, training examples; Poisson sampling needs q = b/n <= 1.

        Returns:
            The configurations with b <= n, and the rejected ones with the reason for each.
        """
        fitting = [c for c in self.configurations if c.batch_size <= num_examples]
        rejected = [
            Rejected(
                configuration=c,
                reason=f"batch_size {c.batch_size} exceeds num_examples {num_examples}",
            )
            for c in self.configurations
            if c.batch_size > num_examples
        ]
        return fitting, rejected


class _Grid(BaseModel):
    """Values of each hyperparameter; the space is their product.

    PyYAML reads 5e-4 as text, which pydantic accepts.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    batch_size: tuple[PositiveInt, ...]
    num_steps: tuple[PositiveInt, ...]
    learning_rate: tuple[PositiveFloat, ...]


class _Point(BaseModel):
    """One configuration of a list."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    batch_size: PositiveInt
    num_steps: PositiveInt
    learning_rate: PositiveFloat


class _SpaceFile(BaseModel):
    """The content of a YAML file of this package: a grid or points."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    description: str
    source: str
    max_grad_norm: PositiveFloat
    grid: _Grid | None = None
    points: tuple[_Point, ...] | None = None

    @model_validator(mode="after")
    def _one_form(self) -> _SpaceFile:
        if (self.grid is None) == (self.points is None):
            raise ValueError(
                "space must have either grid or points, got both or neither. Keep one of them."
            )
        return self


def space_names() -> list[str]:
    """Return the names of the search spaces in this package, sorted."""
    return sorted(
        f.name.removesuffix(_SUFFIX)
        for f in files("raydp.search_spaces").iterdir()
        if f.name.endswith(_SUFFIX)
    )


def load_space(name: str) -> SearchSpace:
    """Read a named search space.

    Raises:
        ValueError: the name is unknown (the message names the nearest), or the file repeats a
            configuration.
    """
    # Only a known name becomes a part of a path.
    if name not in space_names():
        raise ValueError(unknown_name("space.name", name, space_names()))
    return parse_space(
        name, files("raydp.search_spaces").joinpath(name + _SUFFIX).read_text(encoding="utf-8")
    )


def parse_space(name: str, text: str) -> SearchSpace:
    """Build a search space from the YAML text of a file.

    Args:
        name: name of the space.
        text: description, source, max_grad_norm and either grid or points.

    Raises:
        ValueError: unknown or missing keys, values that are not positive, or a repeated
            configuration.
    """
    file = _SpaceFile.model_validate(yaml.safe_load(text))
    if file.grid is not None:
        configurations = grid(file.grid.batch_size, file.grid.num_steps, file.grid.learning_rate)
    else:
        configurations = without_duplicates(
            Configuration(**p.model_dump()) for p in file.points or ()
        )
    return SearchSpace(
        name=name,
        description=file.description,
        source=file.source,
        max_grad_norm=file.max_grad_norm,
        configurations=tuple(configurations),
    )


def grid(
    batch_size: Sequence[int], num_steps: Sequence[int], learning_rate: Sequence[float | str]
) -> list[Configuration]:
    """Return every combination of the values, batch size outermost, learning rate innermost.

    Args:
        batch_size: values of b.
        num_steps: values of T.
        learning_rate: values of η, as numbers or decimal text.

    Example:
        grid([256, 1024], [100], ["1e-3", "5e-3"])  # 4 configurations

    Raises:
        ValueError: a value that is not positive, no values, or a combination that occurs twice
            (1e-3 and 0.001).
    """
    for field, values in (
        ("batch_size", batch_size),
        ("num_steps", num_steps),
        ("learning_rate", learning_rate),
    ):
        if len(values) == 0:
            raise ValueError(
                f"{field} must have at least one value, got none. List the values to try."
            )
    # Through the exact decimal, so that 1e-3 and 0.001 are found to be one rate.
    rates = [float(exact(rate)) for rate in learning_rate]
    return without_duplicates(
        Configuration(batch_size=b, num_steps=t, learning_rate=rate)
        for b, t, rate in product(batch_size, num_steps, rates)
    )


def without_duplicates(configurations: Iterable[Configuration]) -> list[Configuration]:
    """Return the configurations as a list, after checking for duplicates.

    Raises:
        ValueError: a configuration occurs twice. The message names it.
    """
    seen: dict[Configuration, None] = {}
    for configuration in configurations:
        if configuration in seen:
            raise ValueError(
                f"space must not repeat a configuration, got {configuration} twice. Remove one of "
                "them."
            )
        seen[configuration] = None
    return list(seen)
