"""Reads a spec: a YAML file, or its content."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from raydp.plugins import files, registries
from raydp.plugins.described import (
    Plugin,
    Resolve,
    any_plugin,
    class_of,
    listed,
    messages_of,
    resolve_plugin,
)
from raydp.plugins.parameters import light_model
from raydp.plugins.rules import written_rule
from raydp.search_spaces.names import kind_of
from raydp.spec.document import SweepSpec
from raydp.spec.sections.privacy import IGNORED
from raydp.spec.sections.space import GATHERED, VARIABLE
from raydp.system.yaml import read_yaml

DEMO = Path(__file__).parents[1] / "data" / "demo.yaml"
"""The embedded default of `raydp sweep`."""

MAPPINGS = (
    "task",
    "model",
    "method",
    "privacy",
    "space",
    "select",
    "stopping",
    "cluster",
    "tracking",
)
LEAST_SECTIONS = 2
"""The smallest number of sections with a mapping that make a file a spec.

No message shows content of another file.
"""


def load_spec(source: str | Path | Mapping[str, object], *, stored: bool = False) -> SweepSpec:
    """Read and check a spec.

    Args:
        source: a YAML file, or its content as a mapping.
        stored: the file is of a sweep's folder. Unlike a user's own spec, it must not add to the
            files of code that may be run (see `raydp.plugins.files`).

    Raises:
        ValueError: all mistakes, one per line, each with a remedy.
    """
    content = written_spec(source)
    if not stored:
        files.trust(content)
    # Reports most mistakes before the plug-ins are imported, which takes seconds.
    _checked(content, light_model)
    return _checked(content, class_of)


def draft_spec(source: str | Path | Mapping[str, object]) -> SweepSpec:
    """Read and check a spec without importing its plug-ins.

    Returns:
        A spec whose plug-ins have parameters but no code. It serves to check all other sections.

    Raises:
        ValueError: the mistakes that `load_spec` reports, except those that only a plug-in's own
            code notices.
    """
    content = written_spec(source)
    files.trust(content)
    return _checked(content, light_model)


def written_spec(source: str | Path | Mapping[str, object]) -> dict[str, object]:
    """Return the content of a spec; a message about another file does not show its content."""
    if isinstance(source, Mapping):
        return dict(source)
    # A mapping with too few sections is some other file, perhaps private data.
    path = Path(source)
    data = read_yaml(path, "SPEC")
    if not isinstance(data, dict):
        raise ValueError(
            "SPEC must be a mapping of sections, got "
            f"{'nothing' if data is None else kind_of(data)} in {str(path)!r}. See `raydp schema`."
        )
    if "axes" in data:
        raise ValueError(
            f"SPEC must be of one sweep, got a study with axes in {str(path)!r}. Run `raydp study`."
        )
    if sum(isinstance(data.get(section), Mapping) for section in MAPPINGS) < LEAST_SECTIONS:
        raise ValueError(_no_spec(path, data))
    return data


def _no_spec(path: Path, data: Mapping[str, object]) -> str:
    """Explain why a file is not a spec, without its content: it may be data given by mistake."""
    required = [name for name, field in SweepSpec.model_fields.items() if field.is_required()]
    missing = [name for name in required if name not in data]
    plain = [name for name in MAPPINGS if name in data and not isinstance(data[name], Mapping)]
    got = f"without {', '.join(missing)}" if missing else "with all of them"
    if plain:
        got += f", and {', '.join(plain)} not as {'mappings' if len(plain) > 1 else 'a mapping'}"
    return (
        f"SPEC must be a mapping with the sections {', '.join(required)}, got {str(path)!r} {got}. "
        "Give the path of a spec, or add the sections. See `raydp schema`."
    )


def _checked(content: Mapping[str, object], resolve: Resolve) -> SweepSpec:
    """Check a spec, and its plug-ins' parameters by the models that `resolve` returns."""
    data, problems = dict(content), list[str]()
    # Resolve the plug-ins first; their mistakes are reported together with all others.
    kinds: dict[str, registries.Kind] = {"task": "tasks", "method": "methods"}
    for key, kind in kinds.items():
        if key in data:
            data[key] = resolve_plugin(kind, key, data[key], problems, resolve)
    if isinstance(scores := data.get("scores"), list | tuple):
        data["scores"] = [
            resolve_plugin("scores", f"scores[{i}]", score, problems, resolve)
            for i, score in enumerate(scores)
        ]
    if isinstance(select := data.get("select"), Mapping) and "rule" in select:
        rule = written_rule(select["rule"], problems, run=resolve is class_of)
        data["select"] = {**select, "rule": rule}
    if isinstance(space := data.get("space"), Mapping) and "search" in space:
        data["space"] = {**space, "search": _search(space["search"], problems, resolve)}
    # Validate the whole spec even if a plug-in was wrong: a user corrects the file once.
    try:
        spec = SweepSpec.model_validate(data)
    except ValidationError as error:
        problems += messages_of(SweepSpec, error, "", skip_plugins=True)
        raise ValueError(listed(problems)) from error
    if problems:
        raise ValueError(listed(problems))
    return spec


def _search(written: object, problems: list[str], resolve: Resolve) -> Plugin | None:
    """Resolve space.search. A name alone stands for no parameters, and "grid" for no search."""
    if written is None or written == "grid":
        return None
    named = {"name": written} if isinstance(written, str) else written
    return resolve_plugin("searches", "space.search", named, problems, resolve)


def json_schema() -> dict[str, object]:
    """Return the JSON Schema of the spec with every known plug-in's parameters, for editors."""
    schema = SweepSpec.model_json_schema()
    properties, space = schema["properties"], schema["$defs"]["SpaceSpec"]["properties"]
    search = {
        "anyOf": [
            {"enum": ["grid", *registries.names("searches")]},
            any_plugin("searches"),
            {"type": "null"},
        ]
    }
    # Put each plug-in's parameters in the place of the untyped mapping.
    properties["task"] = {**_description(properties["task"]), **any_plugin("tasks")}
    properties["method"] = {**_description(properties["method"]), **any_plugin("methods")}
    properties["scores"]["items"] = any_plugin("scores")
    # Further fields are written with their paths as keys, and not under the internal key.
    varied = space.pop(GATHERED)["additionalProperties"]
    values = {"type": "array", "minItems": 1, "description": "The values to try."}
    paths = f"^({'|'.join(VARIABLE)})\\.[^.]+(\\.[^.]+)*$"
    schema["$defs"]["SpaceSpec"]["patternProperties"] = {paths: {"anyOf": [values, varied]}}
    space["search"] = {**_description(space["search"]), **search}
    # The section `privacy` also has the fields of every tuning.
    privacy, tunings = schema["$defs"]["PrivacySpec"]["properties"], registries.names("policies")
    for tuning in tunings:
        own = registries.resolve("policies", tuning).section.model_json_schema()
        schema["$defs"] |= own.get("$defs", {})
        if tuning != IGNORED:
            privacy["tuning"]["description"] += (
                f" {_description(own['properties']['tuning'])['description']}"
            )
        privacy |= {k: v for k, v in own["properties"].items() if k not in privacy}
    privacy["tuning"]["enum"] = tunings
    return schema


def _description(field: Mapping[str, object]) -> dict[str, object]:
    return {"description": field["description"]}
