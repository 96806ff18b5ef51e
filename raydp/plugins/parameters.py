"""Parameters of plug-ins, known without importing them: most need torch, which takes seconds.

`data/plugin_parameters.json` holds names, types and bounds of the core's plug-ins, and the lines
of its commands in the help. A package may have such a file beside the modules of its plug-ins; each
extension has one. `python -m raydp.plugins.parameters [PACKAGE]` generates the files from the plug-ins.

A spec is checked against the file first, so that most mistakes are reported at once. A plug-in's
own checks run after its import. The first check never refuses what the plug-in accepts: constraints
that the file cannot express are left to the plug-in.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WrapValidator,
    create_model,
)

from raydp.plugins import files, registries

KINDS: tuple[registries.Kind, ...] = ("tasks", "methods", "scores", "searches")
_BOUNDS = {
    "minimum": "ge",
    "exclusiveMinimum": "gt",
    "maximum": "le",
    "exclusiveMaximum": "lt",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_length",
    "maxItems": "max_length",
}
"""Keyword of JSON Schema -> keyword of pydantic."""
CONSTANTS: dict[registries.Kind, tuple[str, ...]] = {
    "tasks": ("early_check",),
    "methods": ("private",),
    "scores": ("logarithmic", "log_base", "no_leak", "in_words", "worded_for", "secret_kinds"),
}
"""Attributes of the plug-ins' classes that are known without importing the plug-ins."""
_PLAIN: Mapping[str, object] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": None,
}


class Unchecked(BaseModel):
    """Parameters of a plug-in that only the plug-in itself can check."""

    model_config = ConfigDict(extra="allow", frozen=True)


@cache
def light_model(kind: registries.Kind, name: str) -> type[BaseModel]:
    """Return a model of a plug-in's parameters that accepts at least what the plug-in accepts.

    Raises:
        ValueError: the name is unknown, or its file does not exist. The message names the nearest
            name.
    """
    # A plug-in of another package, or with checks before validation, checks itself.
    if (place := files.place_of(name)) is not None:
        files.checked_file(place[0], field=f"{kind.removesuffix('s')}.name")
        return Unchecked
    known = registries.description(kind, name)
    if name not in registries.names(kind):
        raise ValueError(
            registries.unknown_name(f"{kind.removesuffix('s')}.name", name, registries.names(kind))
        )
    if known is None or known["fields"] is None:
        return Unchecked
    # Make one field for each parameter, with the type and the default of the file.
    fields: dict[str, Any] = {
        field: (
            _annotation(entry["schema"]),
            Field(entry["default"]) if "default" in entry else ...,
        )
        for field, entry in known["fields"].items()
    }
    # With validate_default, a default of the file is converted as a given value is.
    made: type[BaseModel] = create_model(
        name, __config__=ConfigDict(extra="forbid", frozen=True, validate_default=True), **fields
    )
    for constant, value in known["constants"].items():
        setattr(made, constant, value)
    return made


def constant(kind: registries.Kind, name: str, attribute: str) -> Any:
    """Return an attribute of a plug-in's class, one of CONSTANTS.

    Only a plug-in that no file describes is imported.

    Raises:
        ValueError: the name is unknown. The message names the nearest name.
    """
    known = registries.description(kind, name)
    return (
        getattr(registries.resolve(kind, name), attribute)
        if known is None
        else known["constants"][attribute]
    )


def _annotation(schema: Mapping[str, Any]) -> Any:
    """Return the type that a schema of the file describes: any value for the schema {}."""
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if "const" in schema:
        return Literal[schema["const"]]
    if "anyOf" in schema:
        return reduce(or_, (_annotation(part) for part in schema["anyOf"]))
    # Bounds apply to numbers, and to lengths of texts and lists.
    bounds = {_BOUNDS[word]: value for word, value in schema.items() if word in _BOUNDS}
    kind = _PLAIN.get(schema.get("type", ""), Any)
    if schema.get("type") == "array":
        # prefixItems describe a tuple of fixed length, with a type for each position.
        parts = schema.get("prefixItems")
        if parts is not None:
            return tuple[tuple(map(_annotation, parts))]  # type: ignore[misc]
        kind = tuple[_annotation(schema.get("items", {})), ...]  # type: ignore[misc]
    return Annotated[kind, Field(**bounds)] if bounds and kind is not Any else kind


Described = dict[str, dict[str, dict[str, object]]]


def described(package: str = "raydp") -> dict[Path, Described]:
    """Generate the content of the parameter files of a package's plug-ins.

    Returns:
        file -> kind -> name -> {"fields", "constants"}, or what the help needs of a command.
    """
    files: dict[Path, Described] = {}
    for kind in (*KINDS, "commands"):
        for name in registries.names(kind):
            for place in {registries.target(kind, name), registries.BUILTIN[kind].get(name)}:
                path = place and registries.file_of(kind, name, place)
                if place and path and place.startswith(f"{package}."):
                    of_kind = files.setdefault(path, {}).setdefault(kind, {})
                    of_kind[name] = _described(kind, registries.at(place))
    return files


def _described(kind: registries.Kind, cls: Any) -> dict[str, object]:
    """Return a plug-in's entry of the file. Its fields are None if it rewrites them."""
    if kind == "commands":
        return dict(cls.described())
    decorators = cls.__pydantic_decorators__
    constants = {name: getattr(cls, name) for name in CONSTANTS.get(kind, ())}
    # A validator before validation may rewrite everything, so nothing is known of the fields.
    if any(validator.info.mode != "after" for validator in decorators.model_validators.values()):
        return {"fields": None, "constants": constants}
    # The same holds for single fields.
    own = {
        f
        for v in decorators.field_validators.values()
        if v.info.mode != "after"
        for f in v.info.fields
    }
    properties = cls.model_json_schema().get("properties", {})
    fields = {}
    for field, info in cls.model_fields.items():
        converted = any(
            isinstance(m, BeforeValidator | WrapValidator | PlainValidator) for m in info.metadata
        )
        schema = {} if field in own or converted else _readable(properties[field])
        default = (
            {"default": info.get_default(call_default_factory=True)}
            if not info.is_required()
            else {}
        )
        # A default that JSON cannot hold is left to the plug-in.
        fields[field] = {"schema": schema, **(default if _is_json(default) else {"default": None})}
    return {"fields": fields, "constants": constants}


def _readable(schema: Mapping[str, Any]) -> dict[str, object]:
    """Return a JSON Schema without title and default; {} if `_annotation` cannot express it."""
    words = {k: v for k, v in schema.items() if k not in ("title", "description", "default")}
    for key in ("anyOf", "prefixItems"):
        if key in words:
            words[key] = [_readable(part) for part in words[key]]
            # One alternative that cannot be described makes the whole field unknown.
            if {} in words[key]:
                return {}
    if "items" in words:
        words["items"] = _readable(words["items"])
    readable = {*_BOUNDS, "type", "enum", "const", "anyOf", "prefixItems", "items"}
    return (
        words
        if set(words) <= readable and (set(words) & {"type", "enum", "const", "anyOf"})
        else {}
    )


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def as_text(content: Mapping[str, Mapping[str, object]]) -> str:
    """Return the text of the file, with a line for each plug-in."""
    kinds = (
        f"{json.dumps(kind)}: {{\n"
        + ",\n".join(f" {json.dumps(n)}: {json.dumps(p)}" for n, p in plugins.items())
        + "\n}"
        for kind, plugins in content.items()
    )
    return "{\n" + ",\n".join(kinds) + "\n}\n"


if __name__ == "__main__":
    for path, content in described(*sys.argv[1:]).items():
        path.write_text(as_text(content), encoding="utf-8")
