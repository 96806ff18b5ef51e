"""Plug-ins as users write them, `{name: ..., **parameters}`, with checked parameters."""

from __future__ import annotations

import inspect
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, InstanceOf, PlainSerializer, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from raydp.plugins import files, registries
from raydp.search_spaces.names import nearest

LONGEST_NAME, LONGEST_VALUE = 60, 100
"""Numbers of characters of a key and of a text that a message shows."""
MOST_PROBLEMS = 50
"""The largest number of mistakes that a message lists."""


@dataclass(frozen=True)
class Plugin:
    """A plug-in with its checked parameters, written `{name: ..., **parameters}`.

    Attributes:
        name: its registered name, or the name of its class in a file of the user's.
        params: an object of its class, which holds the parameters.
        file: absolute path of the user's file, for `{name: file.py:Class}`.
    """

    name: str
    params: Any
    file: Path | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the plug-in as written in a spec."""
        name = self.name if self.file is None else f"{self.file}:{self.name}"
        return {"name": name, **self.params.model_dump(mode="json")}


PluginField = Annotated[
    InstanceOf[Plugin], PlainSerializer(Plugin.as_dict), WithJsonSchema({"type": "object"})
]


_KEY = re.compile(r"[^\W\d]\w*(\.\w+)*")
"""A key of a spec: a name, or the path of a field."""


class _Short(reprlib.Repr):
    """A repr that cuts long values."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 4, LONGEST_VALUE, 300, 60
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 30

    def repr_NoneType(self, x: None, level: int) -> str:  # noqa: N802 - as reprlib calls it
        """Return "null", as YAML writes None."""
        return "null"

    def repr_int(self, x: int, level: int) -> str:
        """Describe huge integers by their size: Python refuses to write thousands of digits."""
        return (
            super().repr_int(x, level)
            # 4096 bits are about 1,230 digits, far below Python's limit of 4,300.
            if x.bit_length() < 4096
            else f"a number of {x.bit_length()} bits"
        )


def shortened(name: str) -> str:
    """Shorten a name for a message. A longer name may be misplaced text."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."


def shown(value: object) -> str:
    """Return a value for a message, shortened, because a spec may hold values of megabytes."""
    return _Short().repr(value)


Resolve = Callable[[registries.Kind, str], type[BaseModel]]
MUST_HAVE: dict[registries.Kind, str] = {
    "tasks": "build",
    "methods": "train",
    "scores": "measure",
    "searches": "propose",
}
"""Kind -> the function by which a class in a user's file is known to be a plug-in of this kind."""


def class_of(kind: registries.Kind, name: str, *, field: str | None = None) -> type[BaseModel]:
    """Import the class of a plug-in: a registered name, or `file.py:Class`.

    Raises:
        ValueError: there is no such plug-in.
    """
    if (place := files.place_of(name)) is None:
        cls: type[BaseModel] = registries.resolve(kind, name)
        return cls
    field = field or f"{kind.removesuffix('s')}.name"
    found = files.attribute_of(*place, field=field)
    if not (inspect.isclass(found) and issubclass(found, BaseModel)) or not hasattr(
        found, MUST_HAVE[kind]
    ):
        raise ValueError(
            f"{field} must name a class with the fields of a plug-in and the function "
            f"{MUST_HAVE[kind]!r}, got {place[1]!r} of {str(place[0])!r}. See docs/extending.md."
        )
    # The name stands in records, where it must not be taken for a method that has a guarantee.
    if place[1] in registries.names(kind):
        raise ValueError(
            f"{field} must name a class whose name no registered plug-in has, got {place[1]!r} of "
            f"{str(place[0])!r}. Rename the class."
        )
    return found


def resolve_plugin(
    kind: registries.Kind,
    field: str,
    value: object,
    problems: list[str],
    resolve: Resolve = class_of,
) -> Plugin | None:
    """Resolve `{name: ..., **parameters}`. Mistakes are appended to problems, and None is returned.

    Args:
        kind: kind of the plug-in.
        field: the field of the spec, for messages.
        value: the value of the field, or an object of a plug-in's class.
        problems: list that mistakes are appended to.
        resolve: returns the model of the parameters; by default it imports the plug-in.
    """
    if isinstance(value, Plugin):
        return value
    if isinstance(value, BaseModel):
        return _of_object(kind, field, value, problems)
    # Check the form: a mapping with a name.
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        problems.append(_nameless(kind, field, value))
        return None
    # Check the name: it must be known and importable.
    place = files.place_of(value["name"])
    try:
        if place is None and value["name"] not in (known := registries.names(kind)):
            raise ValueError(
                registries.unknown_name(f"{field}.name", shortened(value["name"]), known)
            )
        cls = resolve(kind, value["name"])
    except ValueError as error:
        problems.append(str(error))
        return None
    # Check the parameters.
    try:
        params = cls.model_validate({k: v for k, v in value.items() if k != "name"})
    except ValidationError as error:
        problems += messages_of(cls, error, f"{field}.")
        return None
    return Plugin(value["name"], params) if place is None else Plugin(place[1], params, place[0])


def _nameless(kind: registries.Kind, field: str, value: object) -> str:
    """Return the message for a plug-in without a name. A row of data may have been given instead,
    so no key is shown."""
    keys = [key for key in value if isinstance(key, str)] if isinstance(value, Mapping) else []
    misspelt = "name" not in keys and nearest("name", keys) is not None
    without = (
        "one with a misspelt key: did you mean 'name'?" if misspelt else "a mapping without one"
    )
    got = without if isinstance(value, Mapping) else shown(value)
    return (
        f"{field} must be a mapping with a name, got {got}. Known: "
        f"{', '.join(registries.names(kind))}."
    )


def _of_object(
    kind: registries.Kind, field: str, value: BaseModel, problems: list[str]
) -> Plugin | None:
    """Return the plug-in that an object in Python is, by its class's name or its class's file."""
    cls = type(value)
    where = f"{cls.__module__}:{cls.__qualname__}"
    # An extension may stand in for a class of the core, with further fields.
    for name in registries.names(kind):
        if where in (registries.target(kind, name), registries.BUILTIN[kind].get(name)):
            written = {"name": name, **value.model_dump(mode="json")}
            return resolve_plugin(kind, field, written, problems)
    # Workers and later commands read the class from its file.
    if (place := place_of_object(cls)) is None:
        problems.append(
            f"{field} must be an object of a class that workers can import, got one of "
            f"{cls.__qualname__!r} in {cls.__module__!r}. Move the class to the top of a file of "
            "its own, and import it from there."
        )
        return None
    files.trust(place)
    written = {"name": place, **value.model_dump(mode="json")}
    return resolve_plugin(kind, field, written, problems)


def place_of_object(found: Callable[..., object]) -> str | None:
    """Return `file.py:NAME` of a class or a function; None if another process cannot import it."""
    name, module = getattr(found, "__qualname__", "."), getattr(found, "__module__", "__main__")
    if not name.isidentifier() or module == "__main__":
        return None
    file = Path(inspect.getsourcefile(found) or "")
    return f"{file.absolute()}:{name}" if file.is_file() else None


def listed(problems: list[str]) -> str:
    """Return the first mistakes, one per line, and the number of the others."""
    more = (
        [f"... and {len(problems) - MOST_PROBLEMS} more."] if len(problems) > MOST_PROBLEMS else []
    )
    return "\n".join([*problems[:MOST_PROBLEMS], *more])


def messages_of(
    cls: type[BaseModel], error: ValidationError, prefix: str, *, skip_plugins: bool = False
) -> list[str]:
    """Return pydantic's errors as messages of the form "<field> must <rule>, got <value>.".

    A message ends with a remedy.

    Unknown keys come first. A key that is missing because it is misspelt is reported as the
    misspelt key alone.
    """
    messages = []
    # False sorts first: unknown keys explain many of the other errors.
    errors = sorted(_primary_errors(error.errors()), key=lambda e: e["type"] != "extra_forbidden")
    unknown = [e["loc"] for e in errors if e["type"] == "extra_forbidden"]
    # A missing key that resembles an unknown key of the same section was misspelt.
    misspelt = {(*loc[:-1], nearest(str(loc[-1]), _keys_at(cls, loc[:-1]))) for loc in unknown}
    for e in errors:
        field = prefix + _field_of(e["loc"]).lstrip(".")
        field = field.rstrip(".")
        unresolved = (
            e["loc"][:1] == ("scores",)
            and isinstance(e["input"], list | tuple)
            and None in e["input"]
        )
        if skip_plugins and (e["type"] == "is_instance_of" or unresolved):
            continue  # reported where the plug-in was resolved
        # Write each type of error in the project's words.
        if e["type"] == "extra_forbidden":
            known = _keys_at(cls, e["loc"][:-1])
            messages.append(
                registries.unknown_name(f"{field}: the key", shortened(str(e["loc"][-1])), known)
            )
        elif e["type"] == "missing":
            if e["loc"] not in misspelt:
                messages.append(f"{field} must be given, got nothing. Add it to the spec.")
        else:
            # Take pydantic's own phrases out of the rule.
            rule = re.sub("^(Value error, |(Input|Tuple) should )", "", e["msg"]).replace(
                "valid tuple", "list"
            )
            rule = re.sub(r" after validation|, unable to parse string as an? \w+", "", rule)
            rule = re.sub(r"valid dictionary( or instance of \w+)?", "mapping", rule)
            said_in_full = e["type"] == "value_error" and ". " in rule
            got = "" if said_in_full else f", got {shown(e['input'])}. Change it."
            # A validator of the project's own has written the whole message.
            messages.append(
                rule
                if said_in_full and rule.startswith(field)
                else f"{field or 'SPEC'} {_must(rule)}{got}"
            )
    return messages


def _field_of(loc: tuple[int | str, ...]) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in _path(loc))


def _primary_errors(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Return the errors without those that follow from another error.

    Omitted are lists that are too short only because their values are wrong, and alternatives of a
    field that the user did not mean.
    """
    alternatives = Counter(_field_of(e["loc"]) for e in errors)
    # These are the paths above an error: a container may be wrong only for what is inside it.
    wrong_inside = {e["loc"][:depth] for e in errors for depth in range(len(e["loc"]))}
    kept = []
    for e in errors:
        # In a union of a list and a scalar, an error of the type that was not written is dropped.
        is_list = isinstance(e["input"], list | tuple)
        follows = e["type"] == "too_short" and bool(e["input"]) and e["loc"] in wrong_inside
        not_meant = e["type"].endswith(("list_type", "tuple_type")) or (
            is_list and e["type"].endswith("_type")
        )
        if not follows and not (not_meant and alternatives[_field_of(e["loc"])] > 1):
            kept.append(e)
    return kept


def _path(loc: tuple[int | str, ...]) -> list[int | str]:
    """Return a location without pydantic's names for alternatives, such as `tuple[int, ...]`."""
    return [
        p
        for p in loc
        if isinstance(p, int) or (_KEY.fullmatch(p) and p not in ("int", "float", "str", "bool"))
    ]


def _must(rule: str) -> str:
    return (
        rule
        if rule.startswith(("must", "takes"))
        else f"must {rule}"
        if rule.startswith(("be ", "have "))
        else f"must be valid: {rule}"
    )


def _section_at(cls: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel]:
    """Return the section that a location in the spec belongs to."""
    for part in loc:
        fields = {
            key: field
            for name, field in _fields(cls).items()
            for key in (name, field.validation_alias)
        }
        # An alternative may be generic: its origin is the class.
        annotation = fields[str(part)].annotation if str(part) in fields else None
        alternatives = [getattr(a, "__origin__", a) for a in (annotation, *get_args(annotation))]
        sections = [a for a in alternatives if isinstance(a, type) and issubclass(a, BaseModel)]
        cls = sections[0] if sections else cls
    return cls


def _fields(cls: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """Return the fields of a section, with the fields that extensions add."""
    return {**cls.model_fields, **getattr(cls, "further_fields", dict)()}


def _keys_at(cls: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys that the section at a location may have."""
    fields = _fields(_section_at(cls, loc))
    return sorted(
        name for name, field in fields.items() if not str(field.validation_alias).startswith("<")
    )


def any_plugin(kind: registries.Kind) -> dict[str, object]:
    """Return the JSON Schema of a kind's known plug-ins, with their docstrings' first paragraph."""
    choices = []
    for name in registries.names(kind):
        plugin = registries.resolve(kind, name).model_json_schema()
        # The first paragraph of the class's docstring describes it in editors.
        summary = " ".join(plugin.get("description", "").split("\n\n")[0].split())
        about = {"const": name, "description": f"{name}: {summary}"}
        plugin["properties"] = {"name": about, **plugin.get("properties", {})}
        plugin["required"] = ["name", *plugin.get("required", [])]
        choices.append(plugin)
    of_a_file = {
        "type": "string",
        "pattern": "\\.py:[A-Za-z_]\\w*$",
        "description": "A class in a file of your own, `file.py:Class`.",
    }
    choices.append({"properties": {"name": of_a_file}, "required": ["name"]})
    return {"anyOf": choices}
