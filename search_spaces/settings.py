"""The further fields of a spec that a configuration sets beside (b, T, η), and their one text.

Everywhere but in a spec they are one text: JSON with sorted keys, such as '{"method.max_grad_norm":0.5}', and the empty
text for a configuration that sets none. Two configurations set the same fields if and only if the texts are equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

EMPTY = ""


def settings_text(fields: Mapping[str, object]) -> str:
    """Return the text of some fields: dotted path in the spec -> value."""
    if not fields:
        return EMPTY
    return json.dumps(dict(fields), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def settings_of(text: str) -> dict[str, object]:
    """Return the fields of a text: dotted path in the spec -> value.

    Raises:
        ValueError: the text is not one that `settings_text` returns.
    """
    if text == EMPTY:
        return {}
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or not fields:
        raise ValueError(
            "settings must be empty, or JSON of the fields that a configuration sets, got other text. Write it as "
            '{"method.max_grad_norm":0.5}.'
        )
    return fields


def settings_in_words(fields: Mapping[str, object], *, equals: str = " = ", between: str = ", ") -> str:
    """Return fields for people, such as "max_grad_norm = 0.5, r = 16": each with the end of its path that tells it
    from the others."""
    return between.join(f"{name}{equals}{value_in_words(fields[path])}" for path, name in short_names(fields).items())


def short_names(paths: Mapping[str, object] | list[str]) -> dict[str, str]:
    """Return each path with the shortest end of it that no other path shares, in the order of the paths."""
    return {path: next(end for end in _ends(path) if not _shared(end, path, list(paths))) for path in paths}


def value_in_words(value: object) -> str:
    """Return a value as a spec writes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return json.dumps(value, ensure_ascii=False)


def _ends(path: str) -> list[str]:
    """Return the ends of a path from the shortest to the whole."""
    parts = path.split(".")
    return [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]


def _shared(end: str, path: str, paths: list[str]) -> bool:
    """Return whether another path has the same end."""
    return any(other != path and (other == end or other.endswith(f".{end}")) for other in paths)
