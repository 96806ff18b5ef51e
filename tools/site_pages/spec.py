"""The reference of the spec, made of its JSON Schema: every section and plug-in, with fields, types
and defaults."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from raydp.spec.reading import json_schema
from site_pages.prose import escaped, paragraphs, table

Schema = Mapping[str, Any]
_PLUGINS = {
    "tasks": ("Tasks", "task", "What is learnt, and what of it must not leak."),
    "methods": (
        "Methods",
        "method",
        "How a model is trained, and which guarantee its training has.",
    ),
    "scores": (
        "Scores",
        "scores",
        "What is measured of every trained model. A higher value means that it leaks more.",
    ),
    "searches": ("Searches", "space.search", "Which configurations are run, and in which order."),
}
"""Kind -> title of its page, the field of the spec that names it, and what it is."""
_PAGE_OF_FIELD = {
    "task": "tasks",
    "method": "methods",
    "scores": "scores",
    "space.search": "searches",
}
_WORDS = {
    "integer": "integer",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
    "object": "mapping",
}
_BOUNDS = {
    "minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}",
    "minLength": "at least {} characters", "maxLength": "at most {} characters", "pattern": "matches `{}`",
    "minItems": "at least {}", "maxItems": "at most {}",
}  # fmt: skip


def pages() -> dict[str, str]:
    """Return the pages on the spec: page of the site -> its Markdown."""
    schema = json_schema()
    made = {"reference/spec.md": _spec_page(schema)}
    for kind, (title, field, about) in _PLUGINS.items():
        made[f"reference/{kind}.md"] = _plugin_page(title, field, about, _plugins(schema, field))
    return made


def _plugins(schema: Any, field: str) -> list[Schema]:
    """Return the schemas of the registered plug-ins that a field may name."""
    if field == "space.search":
        known = schema["$defs"]["SpaceSpec"]["properties"]["search"]["anyOf"]
        choices = next(part for part in known if "anyOf" in part)["anyOf"]
    else:
        chosen = schema["properties"][field]
        choices = chosen.get("items", chosen)["anyOf"]
    # A class in a user's file is one more choice, without a name of its own.
    return [choice for choice in choices if "const" in choice["properties"]["name"]]


def _spec_page(schema: Any) -> str:
    fields = schema["properties"]
    text = [
        "# The spec",
        "One YAML file is a sweep. This page has every section and field, with its type, default "
        "and meaning. A field without a default is required. An unknown field is an error. `raydp "
        "schema` prints the same as JSON Schema, for editors.",
        _fields(schema, ""),
    ]
    for name, field in fields.items():
        for described in _definitions(field):
            text += list(_section(name, schema["$defs"][described], schema["$defs"]))
    return "\n\n".join(text) + "\n"


def _section(path: str, section: Schema, definitions: Schema) -> Iterator[str]:
    """A section of the spec, and after it the sections in it."""
    yield f"{'#' * (path.count('.') + 2)} {path} {{ #{_anchor(path)} }}"
    yield paragraphs(section.get("description", ""))
    yield _fields(section, f"{path}.")
    for pattern, field in section.get("patternProperties", {}).items():
        yield f"Further fields: every key that matches `{pattern}`. Its value: {_type(field, path)}."
    further = [("FIELD", field) for field in section.get("patternProperties", {}).values()]
    for name, field in [*section["properties"].items(), *further]:
        for described in _definitions(field):
            yield from _section(f"{path}.{name}", definitions[described], definitions)


def _plugin_page(title: str, field: str, about: str, plugins: list[Schema]) -> str:
    text = [
        f"# {title}",
        f"{about} A spec names one in [`{field}`](spec.md), written `{{name: ..., **fields}}`. A "
        "field without a default is required.",
    ]
    for plugin in plugins:
        own = {name: value for name, value in plugin["properties"].items() if name != "name"}
        text += [
            f"## `{plugin['properties']['name']['const']}`",
            paragraphs(plugin.get("description", "")),
        ]
        text.append(_fields({**plugin, "properties": own}, "") if own else "It has no fields.")
        for name, described in plugin.get("$defs", {}).items():
            text += [
                f"### {name}",
                paragraphs(described.get("description", "")),
                _fields(described, ""),
            ]
    return "\n\n".join(text) + "\n"


def _fields(section: Schema, prefix: str) -> str:
    required = section.get("required", [])
    rows = []
    for name, field in section["properties"].items():
        default = "required" if name in required else _default(field)
        kind = _type(field, f"{prefix}{name}")
        rows.append([f"`{name}`", kind, default, escaped(field.get("description", ""))])
    return table(["field", "type", "default", "meaning"], rows)


def _default(field: Schema) -> str:
    if "default" not in field:
        return (
            "made from the other fields"
            if field.get("type") not in ("object", "array")
            else "empty"
        )
    value = field["default"]
    if value is None:
        return "none"
    if isinstance(value, dict):
        return "its own defaults"
    return (
        f"`{json.dumps(value, ensure_ascii=False)}`" if not isinstance(value, str) else f"`{value}`"
    )


def _type(field: Schema, path: str) -> str:
    """Return the type of a field in words, with its bounds and the values that it allows."""
    if path in _PAGE_OF_FIELD:
        page = _PAGE_OF_FIELD[path]
        return (
            f"one of the [{page}]({page}.md)" if path != "scores" else "list of [scores](scores.md)"
        )
    if "$ref" in field:
        return f"[section](#{_anchor(path)})"
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    for choice in ("anyOf", "oneOf"):
        if choice in field:
            return " or ".join(
                dict.fromkeys(
                    _type(part, path) for part in field[choice] if part.get("type") != "null"
                )
            )
    bounds = [
        words.format(_number(field[word])) for word, words in _BOUNDS.items() if word in field
    ]
    bounds = [re.sub("(?<=^[≥>≤<]) ", "\N{NO-BREAK SPACE}", bound) for bound in bounds]
    kind = (
        _array(field, path)
        if field.get("type") == "array"
        else _WORDS.get(field.get("type", ""), "any value")
    )
    return ", ".join([kind, *(bound.replace("|", "\\|") for bound in bounds)])


def _array(field: Schema, path: str) -> str:
    if "prefixItems" in field:
        return f"list of ({', '.join(_type(part, path) for part in field['prefixItems'])})"
    return f"list of ({_type(field['items'], path)})" if field.get("items") else "list"


def _number(value: object) -> str:
    return "2⁶³" if value == 2**63 else f"{value:,}" if isinstance(value, int) else str(value)


def _definitions(field: Schema) -> list[str]:
    """Return the names of the sections that a field may hold."""
    if "$ref" in field:
        return [field["$ref"].rpartition("/")[2]]
    return [
        name
        for choice in ("anyOf", "oneOf")
        for part in field.get(choice, [])
        for name in _definitions(part)
    ]


def _anchor(path: str) -> str:
    return path.replace("_", "-").replace(".", "-").lower()
