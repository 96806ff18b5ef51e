"""A study: the content of a spec with outer axes, each combination of whose values is a sweep."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from raydp.analysis.selection.equivalents import CONFIDENCE
from raydp.extensions.study.safe_epsilon import EPSILON
from raydp.plugins.described import listed, messages_of, shown
from raydp.search_spaces.names import unknown_name
from raydp.search_spaces.settings import Settings, settings_in_words, short_names, value_in_words
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.system.yaml import read_yaml

KEY, LIMITS = "axes", "limits"
SECTIONS = ("task", "model", "method")
"""Sections that may differ as a whole, by named blocks."""
PATHS = ("task.", "model.", "method.", "privacy.")
"""Beginnings of the paths of single fields that may differ."""
EXCLUDES = {"privacy.noise_multiplier": "target_epsilon", EPSILON: "noise_multiplier"}
"""Field of an axis -> the field of the same section that it takes the place of."""
MOST_CELLS = 200

Content = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One sweep of a study.

    Attributes:
        values: path of the axis -> its value; of a section, the name of the block.
        spec: the sweep.
    """

    values: Settings
    spec: SweepSpec


class Limits(BaseModel):
    """The section `limits`: the question that the study answers if ε is an axis."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_leak: float | None = Field(
        default=None, allow_inf_nan=False, description="The largest score that is allowed."
    )
    confidence: float = Field(
        default=CONFIDENCE,
        ge=0.5,
        lt=1,
        description="The probability with which the leak must keep to it.",
    )


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study.

    Attributes:
        name: its name.
        folder: the folder that holds the sweeps' folders and the study's own files.
        cells: the sweeps, in the order of the axes' values.
        limits: the limit on the leak, if there is one.
    """

    name: str
    folder: Path
    cells: tuple[Cell, ...]
    limits: Limits

    @classmethod
    def read(cls, source: str | Path | Mapping[str, object]) -> Study:
        """Read and check a study: its axes, and the spec of each cell.

        Args:
            source: a YAML file, or its content.

        Raises:
            ValueError: the axes or a spec have mistakes. The message names the cell of a mistake
                that not all have.
        """
        content = dict(source) if isinstance(source, Mapping) else read_yaml(Path(source), "STUDY")
        if not isinstance(content, dict) or KEY not in content:
            raise ValueError(
                f"STUDY must have the section {KEY} beside those of a spec, got none. Give the path "
                "of a study; a spec without axes is for `raydp sweep`."
            )
        base = {name: value for name, value in content.items() if name not in (KEY, LIMITS)}
        axes, limits = _axes(content[KEY]), _limits(content.get(LIMITS))
        name, storage = str(base.get("name", "")), Path(str(base.get("storage", "raydp_runs")))
        folder = storage / name
        specs = list(_cells(base, axes, folder))
        _require_own_sections(base, specs[0][1])
        cells = _checked(specs)
        if limits.max_leak is not None and EPSILON not in axes:
            raise ValueError(
                f"{LIMITS} must be left out without {KEY}.{EPSILON}, got max_leak {limits.max_leak:g}. "
                "The limit asks which ε keeps to it: add the axis, or remove the limit."
            )
        for cell in cells:
            cell.spec.privacy.require_ignored_tuning(
                "in a study", "Run it as a sweep: the table of a study shows every run."
            )
        if cells[0].spec.tracking.loggers:
            raise ValueError(
                "tracking.loggers must be left out of a study, whose sweeps share their runs' trials. "
                "Remove it, and read the runs in MLflow."
            )
        _require_different(cells)
        return cls(name=name, folder=folder, cells=cells, limits=limits)


def _limits(written: object) -> Limits:
    """Return the section `limits`.

    Raises:
        ValueError: it has mistakes.
    """
    if written is None:
        return Limits()
    if not isinstance(written, Mapping):
        raise ValueError(
            f"{LIMITS} must be a mapping such as {{max_leak: 0.05}}, got {shown(written)}. Write one."
        )
    try:
        return Limits.model_validate(dict(written))
    except ValidationError as error:
        raise ValueError(listed(messages_of(Limits, error, f"{LIMITS}."))) from error


def _axes(written: object) -> dict[str, Mapping[str, object] | list[object]]:
    """Return the axes: path -> values of a field, or the blocks of a section.

    Raises:
        ValueError: an axis is unknown, empty, or has a value twice.
    """
    if not isinstance(written, Mapping) or not written:
        raise ValueError(
            f"{KEY} must be a mapping with an axis, such as {{privacy.target_epsilon: [1, 2, 4]}}, got "
            f"{shown(written)}. Write one."
        )
    axes: dict[str, Mapping[str, object] | list[object]] = {}
    for path, values in written.items():
        field, place = str(path), f"{KEY}.{path}"
        if field in SECTIONS:
            blocks = isinstance(values, Mapping) and all(
                isinstance(b, Mapping) for b in values.values()
            )
            if not blocks or not values:
                raise ValueError(
                    f"{place} must be named blocks, such as {{small: {{name: tiny}}}}, got "
                    f"{shown(values)}. Give each block a name."
                )
            axes[field] = {str(name): block for name, block in values.items()}
            continue
        if not field.startswith(PATHS) or not all(field.split(".")):
            raise ValueError(
                unknown_name(
                    f"{KEY}: the axis",
                    field,
                    [*SECTIONS, *EXCLUDES, "privacy.unit", "task.num_examples"],
                )
            )
        # A NaN differs from itself.
        if not isinstance(values, list) or not values or any(v != v for v in values):
            raise ValueError(
                f"{place} must be a list of values, got {shown(values)}. Write [1, 2]."
            )
        if field in EXCLUDES and any(isinstance(v, str | bool) for v in values):
            raise ValueError(
                f"{place} must be a list of numbers, got {shown(values)}. Write them without quotes."
            )
        texts = [value_in_words(value) for value in values]
        if twice := [text for text in texts if texts.count(text) > 1]:
            raise ValueError(
                f"{place} must have each value once, got {twice[0]} twice. Remove one."
            )
        axes[field] = values
    for path in axes:
        if (section := path.split(".")[0]) != path and section in axes:
            raise ValueError(
                f"{KEY} must vary a section or its fields, got {section} and {path}. Write the field "
                "into the blocks."
            )
    if len(both := [path for path in EXCLUDES if path in axes]) > 1:
        raise ValueError(f"{KEY} must give ε or σ, got {' and '.join(both)}. Remove one.")
    return axes


def _cells(
    base: Content, axes: Mapping[str, Mapping[str, object] | list[object]], folder: Path
) -> Iterator[tuple[Settings, Content]]:
    """Yield each combination of the axes' values, with the content of its spec."""
    number = 1
    for values in axes.values():
        number *= len(values)
    if number > MOST_CELLS:
        raise ValueError(
            f"{KEY} must give at most {MOST_CELLS:,} sweeps, got {number:,}. Give fewer values."
        )
    names = short_names(list(axes))
    for combination in product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        content = copy.deepcopy(base)
        for path, value in values.items():
            section, _, field = path.partition(".")
            own = content.get(section)
            own = dict(own) if isinstance(own, Mapping) else {}
            if field:
                own.pop(EXCLUDES.get(path, ""), None)
                _put(own, field.split("."), value)
            else:
                own |= copy.deepcopy(_block(axes[path], str(value)))
            content[section] = own
        cell = "-".join(
            f"{names[path]}-{_slug(value_in_words(value))}" for path, value in values.items()
        )
        tracking = content.get("tracking")
        tracking = dict(tracking) if isinstance(tracking, Mapping) else {}
        # Each cell has a registered model of its own, or the last one to end would have all aliases.
        study = str(base.get("name", ""))
        tracking["registered_model"] = f"{tracking.get('registered_model', study)}-{cell}"
        tracking.setdefault("experiment", study)
        tracking["experiment"] = f"{tracking['experiment']}-{cell}"
        content |= {"name": cell, "storage": str(folder), "tracking": tracking}
        yield Settings(values), content


def _block(axis: Mapping[str, object] | list[object], name: str) -> dict[object, object]:
    """Return a named block of an axis of sections."""
    assert isinstance(axis, Mapping), "a section has named blocks"
    block = axis[name]
    assert isinstance(block, Mapping), "a block is a mapping"
    return dict(block)


def _put(own: Content, path: list[str], value: object) -> None:
    """Put a value into nested mappings, which other cells do not share."""
    *sections, name = path
    for section in sections:
        inner = own.get(section)
        within: Content = dict(inner) if isinstance(inner, Mapping) else {}
        own[section] = within
        own = within
    own[name] = value


def _slug(text: str) -> str:
    """Return a text as a part of a name: letters, digits, dots and dashes."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") or "other"


def _require_own_sections(base: Content, first: Content) -> None:
    """Check what the cells do not take over as it is: the study's name, storage and tracking.

    Raises:
        ValueError: they are not those of a sweep.
    """
    names = {"name", "storage", "tracking"}
    own: Content = {name: base[name] for name in base if name in names}
    spec = {name: value for name, value in first.items() if name not in (*own, "name")}
    try:
        load_spec({**spec, **own})
    except ValueError as error:
        # The other mistakes are those of the cells.
        of_these = [
            p for p in str(error).splitlines() if p.startswith(("name", "storage", "tracking"))
        ]
        if of_these:
            raise ValueError(listed(of_these)) from error


def _checked(contents: Sequence[tuple[Settings, Content]]) -> tuple[Cell, ...]:
    """Return the checked cells.

    Raises:
        ValueError: specs have mistakes. A mistake of all cells is named once.
    """
    cells, problems = list[Cell](), dict[str, list[Settings]]()
    for values, content in contents:
        try:
            cells.append(Cell(values=values, spec=load_spec(content)))
        except ValueError as error:
            for problem in str(error).splitlines():
                problems.setdefault(problem, []).append(values)
    if problems:
        raise ValueError(
            listed(
                [
                    problem
                    if len(where) == len(contents)
                    else f"{settings_in_words(where[0])}: {problem}"
                    for problem, where in problems.items()
                ]
            )
        )
    return tuple(cells)


def _require_different(cells: Sequence[Cell]) -> None:
    """Raise ValueError if two cells are one sweep under two names."""
    own = {"name", "storage", "tracking"}
    seen: dict[str, Settings] = {}
    for cell in cells:
        text = cell.spec.model_dump_json(exclude=own)
        if text in seen:
            raise ValueError(
                f"{KEY} must give different sweeps, got {settings_in_words(seen[text])} and "
                f"{settings_in_words(cell.values)}, which are equal. Remove one."
            )
        seen[text] = cell.values
    names = [cell.spec.name for cell in cells]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"{KEY} must give each sweep a name of its own, got {twice[0]} twice. Give the blocks "
            "names of other letters."
        )
