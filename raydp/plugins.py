"""Plug-ins as users write them, `{name: ..., **parameters}`: resolved by name, parameters checked."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, InstanceOf, PlainSerializer, ValidationError, WithJsonSchema

from raydp import registries


@dataclass(frozen=True)
class Plugin:
    """A plug-in of a seam with its checked parameters, written `{name: ..., **parameters}`."""

    name: str
    params: Any

    def as_dict(self) -> dict[str, Any]:
        """As it is written in a spec."""
        return {"name": self.name, **self.params.model_dump(mode="json")}


PluginField = Annotated[InstanceOf[Plugin], PlainSerializer(Plugin.as_dict), WithJsonSchema({"type": "object"})]


class _Short(reprlib.Repr):
    """As repr, cut where a value is long."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 4, 300, 300, 60
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 30

    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to write numbers of thousands of digits."""
        return super().repr_int(x, level) if x.bit_length() < 4096 else f"a number of {x.bit_length()} bits"  # type: ignore[no-any-return,misc]


def shown(value: Any) -> str:
    """A value in a message: a spec may hold one of megabytes."""
    return _Short().repr(value)


def resolve_plugin(kind: registries.Kind, field: str, value: Any, problems: list[str]) -> Plugin | None:
    """Resolve `{name: ..., **parameters}`; mistakes are appended to problems."""
    if isinstance(value, Plugin):
        return value
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        problems.append(
            f"{field} must be a mapping with a name, got {shown(value)}. Known: {', '.join(registries.names(kind))}."
        )
        return None
    try:
        cls = registries.resolve(kind, value["name"], field=f"{field}.name")
    except ValueError as error:
        problems.append(str(error))
        return None
    try:
        return Plugin(value["name"], cls.model_validate({k: v for k, v in value.items() if k != "name"}))
    except ValidationError as error:
        problems += messages_of(cls, error, f"{field}.")
        return None


def messages_of(cls: type[BaseModel], error: ValidationError, prefix: str, *, skip_plugins: bool = False) -> list[str]:
    """Pydantic's errors as "<field> must <rule>, got <value>. <remedy>."."""
    messages = []
    for e in error.errors():
        field = prefix + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in _path(e["loc"])).lstrip(".")
        field = field.rstrip(".")
        unresolved = e["loc"][:1] == ("scores",) and isinstance(e["input"], list | tuple) and None in e["input"]
        if skip_plugins and (e["type"] == "is_instance_of" or unresolved):
            continue  # reported where the plug-in was resolved
        if e["type"] == "extra_forbidden":
            known = sorted(_section_at(cls, e["loc"][:-1]).model_fields)
            messages.append(registries.unknown_name(f"{field}: the key", str(e["loc"][-1]), known))
        elif e["type"] == "missing":
            messages.append(f"{field} must be given, got nothing. Add it to the spec.")
        else:
            rule = re.sub("^(Value error, |(Input|Tuple) should )", "", e["msg"]).replace("valid tuple", "list")
            rule = rule.replace(" after validation", "")
            said_in_full = e["type"] == "value_error" and ". " in rule
            got = "" if said_in_full else f", got {shown(e['input'])}. Change it."
            messages.append(
                rule if said_in_full and rule.startswith(field) else f"{field or 'SPEC'} {_must(rule)}{got}"
            )
    return messages


def _path(loc: tuple[int | str, ...]) -> list[int | str]:
    """A location without pydantic's names for the alternatives of a union, such as `tuple[int, ...]`."""
    return [p for p in loc if isinstance(p, int) or (p.isidentifier() and p not in ("int", "float", "str", "bool"))]


def _must(rule: str) -> str:
    return (
        rule
        if rule.startswith(("must", "takes"))
        else f"must {rule}"
        if rule.startswith(("be ", "have "))
        else f"must be valid: {rule}"
    )


def _section_at(cls: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel]:
    """The section that a location in the spec belongs to."""
    for part in loc:
        annotation = cls.model_fields[str(part)].annotation if str(part) in cls.model_fields else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            cls = annotation
    return cls


def any_plugin(kind: registries.Kind) -> dict[str, Any]:
    """JSON Schema of every known plug-in of a kind."""
    choices = []
    for name in registries.names(kind):
        plugin = registries.resolve(kind, name).model_json_schema()
        plugin["properties"] = {"name": {"const": name}, **plugin.get("properties", {})}
        plugin["required"] = ["name", *plugin.get("required", [])]
        choices.append(plugin)
    return {"anyOf": choices}
