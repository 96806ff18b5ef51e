"""Conversations: the forms in which files hold them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from raydp.extensions.chat.messages import Message, messages_of, tools_of
from raydp.search_spaces.names import columns_in_words, kind_of

Form = Literal["messages", "sharegpt", "prompt_completion", "instruction"]
FORMS: Mapping[Form, frozenset[str]] = {
    "messages": frozenset({"messages"}),
    "sharegpt": frozenset({"conversations"}),
    "prompt_completion": frozenset({"prompt", "completion"}),
    "instruction": frozenset({"instruction", "output"}),
}
"""Form of a row -> the columns that it must have.

An instruction may also have `input`, and messages may have `tools`.
"""
_ALPACA = (
    "Below is an instruction that describes a task{paired}. Write a response that appropriately "
    "completes the request.\n\n### Instruction:\n{instruction}\n\n{input}### Response:\n"
)
"""The prompt of Stanford Alpaca."""
_PAIRED = ", paired with an input that provides further context"


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A row of a file: messages, or a prompt and a completion as plain texts.

    Attributes:
        messages: the messages; empty for plain texts.
        texts: prompt and completion; empty for messages.
        form: the form that the row had.
        tools: JSON list of the functions that the assistant may call; "" for none.
        unread: columns of the row, and keys of its messages as `messages.KEY`, that nothing reads.
    """

    form: Form
    messages: tuple[Message, ...] = ()
    texts: tuple[str, str] | None = None
    tools: str = ""
    unread: tuple[str, ...] = field(default=(), compare=False)


def fitting_forms(columns: Collection[str]) -> list[Form]:
    """Return the forms whose columns a row has."""
    return [form for form, needed in FORMS.items() if needed <= set(columns)]


def form_of(columns: Sequence[str], field: str) -> Form:
    """Return the form of a file by the columns of its first row.

    Raises:
        ValueError: the columns fit no form, or several.
    """
    fitting = fitting_forms(columns)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ValueError(
            f"{field} must hold rows of one form, got the columns of {' and '.join(fitting)}. Name "
            "one by task.form."
        )
    raise ValueError(
        f"{field} must hold `messages`, or `prompt` and `completion`, or `instruction` and "
        f"`output`, or `conversations`, got {columns_in_words(columns)}. Rename the columns, or "
        "use the task text."
    )


def conversation_of(row: Mapping[str, object], form: Form, field: str, place: str) -> Conversation:
    """Return a row's conversation.

    Raises:
        ValueError: the row lacks a column of the form, or holds something else than texts and
            messages there.
    """
    # Only missing columns are named: their names are the form's own, while other keys may be
    # private.
    lacking = sorted(FORMS[form] - row.keys())
    if lacking:
        raise ValueError(
            f"{field} must have the form {form} in every row, got a row without "
            f"{' and '.join(lacking)} in {place}. Correct the row, or name the form by task.form."
        )
    # Read plain texts: the loss then covers the completion, and no chat template is needed.
    first, last = ("instruction", "output") if form == "instruction" else ("prompt", "completion")
    if form == "instruction" or (
        form == "prompt_completion" and all(isinstance(row[c], str) for c in FORMS[form])
    ):
        asked, answer = (_text(row[name], name, field, place) for name in (first, last))
        given = (
            _text(row.get("input") or "", "input", field, place) if form == "instruction" else ""
        )
        return Conversation(
            form=form,
            texts=(_alpaca(asked, given) if form == "instruction" else asked, answer),
            messages=_asked(asked, given, answer),
            unread=_unread(row, {first, last, *(["input"] if form == "instruction" else [])}),
        )
    # Read messages. A prompt and a completion in messages are one conversation, in this order.
    columns = ("prompt", "completion") if form == "prompt_completion" else tuple(FORMS[form])
    messages = tuple(
        message for column in columns for message in messages_of(row[column], field, place)
    )
    return Conversation(
        form=form,
        messages=messages,
        tools=tools_of(row.get("tools"), field, place),
        unread=(
            *_unread(row, {*columns, "tools"}),
            *(f"messages.{key}" for m in messages for key in m.unread),
        ),
    )


def _unread(row: Mapping[str, object], read: Collection[str]) -> tuple[str, ...]:
    return tuple(
        str(column) for column, value in row.items() if column not in read and value is not None
    )


def _alpaca(instruction: str, given: str) -> str:
    return _ALPACA.format(
        paired=_PAIRED if given else "",
        instruction=instruction,
        input=f"### Input:\n{given}\n\n" if given else "",
    )


def _asked(question: str, given: str, answer: str) -> tuple[Message, ...]:
    """Return a question and its answer as messages, for a template of conversations."""
    # Stanford Alpaca separates instruction and input by a blank line.
    asked = f"{question}\n\n{given}" if given else question
    return Message(role="user", content=asked), Message(role="assistant", content=answer)


def _text(value: object, column: str, field: str, place: str) -> str:
    if not isinstance(value, str):
        raise ValueError(
            f"{field} must have a text {column!r} in every row, got {kind_of(value)} in {place}. "
            "Correct it."
        )
    return value
