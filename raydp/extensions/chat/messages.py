"""Messages of a conversation, from files of OpenAI's fine-tuning, trl and ShareGPT."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raydp.search_spaces.names import kind_of

ROLES = ("system", "user", "assistant", "tool")
_OF_SHAREGPT = {"human": "user", "gpt": "assistant", "observation": "tool"}
"""Name of a speaker in ShareGPT files -> role. The names of `ROLES` are taken there too."""
WRITTEN_BY_SOME = ("name", "tool_call_id", "reasoning_content")
"""Keys of a message that some templates write and others ignore."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a conversation, by a role of `ROLES`.

    Attributes:
        trained: False for a message with `weight: 0`: it is context, and never a target.
        more: JSON object of the other keys that a template may write: `tool_calls` and
            `WRITTEN_BY_SOME`.
        unread: keys of the file's message that nothing reads.
    """

    role: str
    content: str
    trained: bool = True
    more: str = "{}"
    unread: tuple[str, ...] = field(default=(), compare=False)

    @property
    def others(self) -> dict[str, Any]:
        """Return the keys of `more`."""
        keys: dict[str, Any] = json.loads(self.more)
        return keys


def messages_of(value: object, field: str, place: str) -> tuple[Message, ...]:
    """Return messages from a list of {"role", "content"}, or of ShareGPT's {"from", "value"}.

    Raises:
        ValueError: the value is something else, names another role, or has a key that is not as it
            must be.
    """
    if not isinstance(value, list) or not value:
        raise ValueError(
            f"{field} must hold messages as a list of objects with role and content, got "
            f"{kind_of(value)} in {place}. Correct the row."
        )
    return tuple(
        _message(entry, field, f"message {n} in {place}") for n, entry in enumerate(value, start=1)
    )


def tools_of(value: object, field: str, place: str) -> str:
    """Return the functions that an assistant may call as a JSON list; "" for none.

    Args:
        value: a list of JSON schemas, or the same as a JSON text.

    Raises:
        ValueError: the value is something else.
    """
    given = _parsed(value) if isinstance(value, str) and value.strip() else value
    if not given:
        return ""
    if not isinstance(given, list) or not all(
        isinstance(tool, Mapping) and _function_of(tool) for tool in given
    ):
        raise ValueError(
            f"{field} must hold tools as a list of functions with a name, got {kind_of(value)} of "
            f"another form in {place}. Correct the row."
        )
    # The result is a text, because a Conversation must be hashable: equal rows are found by hash.
    return json.dumps(given, ensure_ascii=False)


def _message(entry: object, field: str, place: str) -> Message:
    """Return a message; keys with null are absent, because Parquet has every key in every row."""
    # Drop nulls, and read ShareGPT's names of the keys as OpenAI's.
    given = {k: v for k, v in entry.items() if v is not None} if isinstance(entry, Mapping) else {}
    shared = "from" in given and "role" not in given
    role, content = (
        given.pop(key, None) for key in (("from", "value") if shared else ("role", "content"))
    )
    role = _OF_SHAREGPT.get(role, role) if shared and isinstance(role, str) else role
    # A tool call may replace the text; OpenAI writes `content: null` beside it.
    more: dict[str, object] = {}
    if role == "assistant" and (calls := given.pop("tool_calls", None)):
        more["tool_calls"] = [
            _call(call, field, place) for call in (calls if isinstance(calls, list) else [calls])
        ]
        content = "" if content is None else content
    # Check what is left. Messages name the place and never quote the row, which is private.
    if not isinstance(role, str) or not isinstance(content, str):
        raise ValueError(
            f"{field} must hold messages as a list of objects with role and content, both texts, "
            f"got another {place}. Correct the row."
        )
    if role not in ROLES:
        raise ValueError(
            f"{field} must hold messages of the roles {', '.join(ROLES)}, got another role in "
            f"{place}. Rename it."
        )
    # A bool is an int in Python: `weight: true` is more likely a mistake than 1.
    weight = given.pop("weight", 1)
    if isinstance(weight, bool) or weight not in (0, 1):
        raise ValueError(
            f"{field} must have a weight of 0 or 1, got another value in {place}. Correct the row."
        )
    # Keep what a template may write; everything else is reported as unread, not dropped silently.
    more |= {key: given.pop(key) for key in WRITTEN_BY_SOME if isinstance(given.get(key), str)}
    # An assistant's message without any text would be a target of no tokens.
    if (
        given
        and role == "assistant"
        and weight
        and not content.strip()
        and "tool_calls" not in more
    ):
        raise ValueError(
            f"{field} must have a text or tool_calls in every message of the assistant, got other "
            f"keys alone in {place}. Write a function_call as tool_calls, or give the message the "
            "weight 0."
        )
    return Message(
        role=role,
        content=content,
        trained=weight == 1,
        more=json.dumps(more, ensure_ascii=False),
        unread=tuple(map(str, given)),
    )


def _call(call: object, field: str, place: str) -> dict[str, object]:
    """Return a tool call as templates take it: arguments as an object, not as JSON text."""
    function = _function_of(call) if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if function else None
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    if function is None or not isinstance(arguments, Mapping | None):
        raise ValueError(
            f"{field} must hold tool_calls as a list of functions with a name and arguments that "
            f"are a JSON object, got another one in {place}. Correct the row."
        )
    named = (
        {"id": call["id"]} if isinstance(call, Mapping) and isinstance(call.get("id"), str) else {}
    )
    return {
        **named,
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments or {}},
    }


def _function_of(value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the function in a tool or a tool call, or the value itself; None without a name."""
    function = value.get("function", value)
    named = (
        isinstance(function, Mapping)
        and isinstance(function.get("name"), str)
        and function["name"].strip()
    )
    return function if named else None


def _parsed(text: str) -> object:
    """Return the value of a JSON text; the text itself if it is none."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value
