"""Conversations: the forms in which files hold them, and their text with the parts that an assistant says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from raydp.search_spaces.names import columns_in_words, kind_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Form = Literal["messages", "prompt_completion", "instruction"]
FORMS: Mapping[Form, frozenset[str]] = {
    "messages": frozenset({"messages"}),
    "prompt_completion": frozenset({"prompt", "completion"}),
    "instruction": frozenset({"instruction", "output"}),
}
"""Form of a row -> the columns that it must have. An instruction may also have the column `input`."""
TemplateName = Literal["model", "chatml", "plain", "alpaca", "none"]
ROLES = ("system", "user", "assistant", "tool")
_ALPACA = (
    "Below is an instruction that describes a task{paired}. Write a response that appropriately completes the request."
    "\n\n### Instruction:\n{instruction}\n\n{input}### Response:\n"
)
"""The prompt of Stanford Alpaca."""
_PAIRED = ", paired with an input that provides further context"


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a conversation, by a role of `ROLES`."""

    role: str
    content: str


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A row of a file: messages, or a prompt and a completion as plain texts.

    Attributes:
        messages: the messages; empty for plain texts.
        texts: prompt and completion; empty for messages.
        form: the form that the row had.
    """

    form: Form
    messages: tuple[Message, ...] = ()
    texts: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class TextPart:
    """A part of a conversation's text, and whether the assistant says it."""

    text: str
    said: bool


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
            f"{field} must hold rows of one form, got the columns of {' and '.join(fitting)}. Name one by task.form."
        )
    raise ValueError(
        f"{field} must hold `messages`, or `prompt` and `completion`, or `instruction` and `output`, got "
        f"{columns_in_words(columns)}. Rename the columns, or use the task text."
    )


def conversation_of(row: Mapping[str, object], form: Form, field: str, place: str) -> Conversation:
    """Return a row's conversation.

    Raises:
        ValueError: the row lacks a column of the form, or holds something else than texts and messages there.
    """
    lacking = sorted(FORMS[form] - row.keys())
    if lacking:
        raise ValueError(
            f"{field} must have the form {form} in every row, got a row without {' and '.join(lacking)} in {place}. "
            "Correct the row, or name the form by task.form."
        )
    if form == "messages":
        return Conversation(form=form, messages=messages_of(row["messages"], field, place))
    if form == "instruction":
        instruction, output = (_text(row[name], name, field, place) for name in ("instruction", "output"))
        given = _text(row.get("input") or "", "input", field, place)
        return Conversation(
            form=form, texts=(_alpaca(instruction, given), output), messages=_asked(instruction, given, output)
        )
    if isinstance(row["prompt"], str) and isinstance(row["completion"], str):
        prompt, completion = row["prompt"], row["completion"]
        return Conversation(form=form, texts=(prompt, completion), messages=_asked(prompt, "", completion))
    return Conversation(
        form=form,
        messages=messages_of(row["prompt"], field, place) + messages_of(row["completion"], field, place),
    )


def messages_of(value: object, field: str, place: str) -> tuple[Message, ...]:
    """Return messages from a list of {"role", "content"}.

    Raises:
        ValueError: the value is something else, or names another role.
    """
    wanted = f"{field} must hold messages as a list of objects with role and content"
    if not isinstance(value, list) or not value:
        raise ValueError(f"{wanted}, got {kind_of(value)} in {place}. Correct the row.")
    messages = []
    for number, entry in enumerate(value, start=1):
        role, content = (entry.get("role"), entry.get("content")) if isinstance(entry, Mapping) else (None, None)
        if not isinstance(role, str) or not isinstance(content, str):
            raise ValueError(f"{wanted}, both texts, got another message {number} in {place}. Correct the row.")
        if role not in ROLES:
            raise ValueError(
                f"{field} must hold messages of the roles {', '.join(ROLES)}, got another role in message {number} in "
                f"{place}. Rename it."
            )
        messages.append(Message(role=role, content=content))
    return tuple(messages)


class ChatTemplate:
    """Writes a conversation as one text.

    Args:
        tokenizer: the model's tokenizer, for its own template and its end-of-text token.
        name: the template: `model` (the tokenizer's own), `chatml`, `plain`, `alpaca` for instructions, or `none` for a
            prompt and a completion one after the other. None: messages are written by the model's own template,
            instructions by Alpaca's, and other prompts and completions by none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: TemplateName | None) -> None:
        self._tokenizer, self._name = tokenizer, name
        self._end = tokenizer.eos_token if isinstance(tokenizer.eos_token, str) else ""

    def name_for(self, form: Form, *, plain_texts: bool) -> TemplateName:
        """Return the template of conversations of a form.

        Raises:
            ValueError: the template does not fit the form, or the model has none of its own.
        """
        usual: TemplateName = "model" if not plain_texts else "alpaca" if form == "instruction" else "none"
        name = self._name or usual
        if (name == "alpaca" and form != "instruction") or (name == "none" and not plain_texts):
            fitting = "instruction" if name == "alpaca" else "plain texts of prompt and completion"
            raise ValueError(
                f"task.template must fit the rows, got {name!r}, which is for {fitting}. Choose another one."
            )
        if name == "model" and not self._tokenizer.chat_template:
            raise ValueError(
                "task.template must be given for a model without a chat template of its own, got none. Use chatml or "
                "plain."
            )
        return name

    def parts(self, conversation: Conversation) -> list[TextPart]:
        """Return the text in parts, up to the end of the assistant's last message.

        Raises:
            ValueError: the model's template refuses the conversation, or writes what came before in another way once
                more has been said, so that a reply has no place of its own.
        """
        name = self.name_for(conversation.form, plain_texts=conversation.texts is not None)
        if name in ("none", "alpaca"):
            assert conversation.texts is not None, "checked by name_for"
            prompt, completion = conversation.texts
            return [TextPart(text=prompt, said=False), TextPart(text=completion + self._end, said=True)]
        write = self._writer(name)
        parts: list[TextPart] = []
        done = ""
        for number, message in enumerate(conversation.messages):
            if message.role != "assistant":
                continue
            before = write(conversation.messages[:number], True)
            after = write(conversation.messages[: number + 1], False)
            if not (before.startswith(done) and after.startswith(before)):
                raise ValueError(
                    "task.template must write a conversation so that each reply only adds to the text before it, got "
                    f"{name!r}, which does not. Use chatml or plain."
                )
            parts += [TextPart(text=before[len(done) :], said=False), TextPart(text=after[len(before) :], said=True)]
            done = after
        if parts and name == "plain":
            parts[-1] = TextPart(text=parts[-1].text.removesuffix("\n") + self._end, said=True)
        return parts

    def asked(self, messages: Sequence[Message], continuation: str, field: str, place: str) -> tuple[str, str]:
        """Return the text after which the assistant answers the messages, and how a continuation follows it.

        Args:
            continuation: how a reply begins; empty if the prompt alone is needed.
            field, place: where the messages are from, for messages.

        Raises:
            ValueError: the model's template refuses the messages, or does not write the continuation as it is.
        """
        name = self.name_for("messages", plain_texts=False)
        write = self._writer(name)
        before = write(messages, True)
        if not continuation:
            return before, ""
        after = write([*messages, Message(role="assistant", content=continuation)], False)
        said = after[len(before) :]
        if not after.startswith(before) or continuation not in said:
            raise ValueError(
                f"{field} must have continuations that task.template writes unchanged after their prompt, got one that "
                f"{name!r} trims, changes or leaves out in {place}. Remove white space at its ends, or use chatml or "
                "plain."
            )
        return before, said[: said.index(continuation) + len(continuation)]

    def _writer(self, name: TemplateName) -> Callable[[Sequence[Message], bool], str]:
        return {"model": self._by_model, "chatml": _chatml, "plain": _plain}[name]

    def _by_model(self, messages: Sequence[Message], asks: bool) -> str:
        from jinja2 import TemplateError

        listed = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(listed, tokenize=False, add_generation_prompt=asks)
        except Exception as error:
            if type(error) is not TemplateError:  # what a template raises by itself is of this very class
                raise ValueError(
                    f"task.template must write every conversation, got the model's own, {_mistake_of(error)}. Correct "
                    "the chat template of the tokenizer, or use chatml or plain."
                ) from error
            raise ValueError(
                "task.template must take every conversation, got the model's own, which refuses one: usually user and "
                "assistant must alternate, after at most one system message. Correct the row, or use chatml or plain."
            ) from error
        return str(text)


def _mistake_of(error: Exception) -> str:
    """Return in words why a template cannot be filled in, without the error's text, which may quote a conversation."""
    from jinja2 import TemplateSyntaxError, UndefinedError

    if isinstance(error, TemplateSyntaxError):
        return f"which has a mistake in line {error.lineno}"
    if isinstance(error, UndefinedError):
        return "which uses a name that is not defined"
    return f"which fails with {type(error).__name__}"


def _chatml(messages: Sequence[Message], asks: bool) -> str:
    said = "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in messages)
    return said + ("<|im_start|>assistant\n" if asks else "")


def _plain(messages: Sequence[Message], asks: bool) -> str:
    said = "".join(f"{m.role.capitalize()}: {m.content}\n" for m in messages)
    return said + ("Assistant:" if asks else "")


def _alpaca(instruction: str, given: str) -> str:
    return _ALPACA.format(
        paired=_PAIRED if given else "", instruction=instruction, input=f"### Input:\n{given}\n\n" if given else ""
    )


def _asked(question: str, given: str, answer: str) -> tuple[Message, ...]:
    """Return a question and its answer as messages, for a template of conversations."""
    asked = f"{question}\n\n{given}" if given else question
    return Message(role="user", content=asked), Message(role="assistant", content=answer)


def _text(value: object, column: str, field: str, place: str) -> str:
    if not isinstance(value, str):
        raise ValueError(
            f"{field} must have a text {column!r} in every row, got {kind_of(value)} in {place}. Correct it."
        )
    return value
