"""Chat templates: the text of a conversation, and which parts of it are targets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from raydp.extensions.chat.conversations import Conversation, Form
from raydp.extensions.chat.messages import WRITTEN_BY_SOME, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TemplateName = Literal["model", "chatml", "plain", "alpaca", "none"]
Loss = Literal["assistant", "all"]
JINJA: Mapping[str, str] = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "plain": "{% for m in messages %}{{ m['role'] | capitalize + ': ' + m['content'] }}"
    "{{ eos_token if loop.last and m['role'] == 'assistant' and eos_token else '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
}
"""The templates of raydp for tokenizers. A trained model's tokenizer carries its template."""
_THINKING = re.compile(r"\s*([<\[](\w+)[>\]](.*?)[<\[]/\2[>\]])\s*", re.DOTALL)
"""A block at the beginning of a reply, such as `<think>...</think>`."""
_MARK = "raydpmark"
_Writer = Callable[[Sequence[Message], bool], str]


@dataclass(frozen=True, kw_only=True)
class TextPart:
    """A part of a conversation's text.

    Attributes:
        said: whether the assistant says it, so that it is a target.
        never: whether it is no target even if the loss covers all messages.
    """

    text: str
    said: bool
    never: bool = False

    def is_target(self, loss: Loss) -> bool:
        """Return whether the part's tokens are targets of a loss."""
        return self.said or (loss == "all" and not self.never)


class ChatTemplate:
    """Writes a conversation as one text.

    Args:
        tokenizer: the model's tokenizer, for its own template and its end-of-text token.
        name: the template: `model` (the tokenizer's own), `chatml`, `plain`, `alpaca` for
            instructions, or `none` for a prompt and a completion one after the other. None:
            messages are written by the model's own template, instructions by Alpaca's, and other
            prompts and completions by none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: TemplateName | None) -> None:
        self._tokenizer, self._name = tokenizer, name
        self._end = tokenizer.eos_token if isinstance(tokenizer.eos_token, str) else ""

    def name_for(self, form: Form, *, plain_texts: bool) -> TemplateName:
        """Return the template of conversations of a form.

        Raises:
            ValueError: the template does not fit the form, or the model has none of its own.
        """
        # Messages fit the model's own template; plain texts have a layout of their own already.
        usual: TemplateName = (
            "model" if not plain_texts else "alpaca" if form == "instruction" else "none"
        )
        name = self._name or usual
        if (name == "alpaca" and form != "instruction") or (name == "none" and not plain_texts):
            fitting = "instruction" if name == "alpaca" else "plain texts of prompt and completion"
            raise ValueError(
                f"task.template must fit the rows, got {name!r}, which is for {fitting}. Choose "
                "another one."
            )
        if name == "model" and not self._tokenizer.chat_template:
            raise ValueError(
                "task.template must be given for a model without a chat template of its own, got "
                "none. Use chatml or plain."
            )
        return name

    def parts(self, conversation: Conversation, place: str) -> list[TextPart]:
        """Return the text in parts, up to the end of the last reply that is trained on.

        A reply is a target from the end of the prompt that the template writes for it. An empty
        block of thinking before a reply is context, unless the data hold it. `place` is for errors.

        Raises:
            ValueError: the template refuses the conversation, drops a part, or rewrites a context.
        """
        # Plain texts: the prompt is context, and the end-of-text token belongs to the target.
        name = self.name_for(conversation.form, plain_texts=conversation.texts is not None)
        if name in ("none", "alpaca"):
            assert conversation.texts is not None, "checked by name_for"
            prompt, completion = conversation.texts
            return [
                TextPart(text=prompt, said=False),
                TextPart(text=completion + self._end, said=True),
            ]
        trained = [
            n for n, m in enumerate(conversation.messages) if m.role == "assistant" and m.trained
        ]
        if not trained:
            return []
        messages = conversation.messages[: trained[-1] + 1]
        # A template that drops a part would train on another conversation than the row's.
        write = self._writer(name, conversation.tools, place)
        whole = write(messages, False)
        calls = self._holds_calls(name, messages, conversation.tools, place)
        if not _holds_everything(whole, messages) or not calls:
            raise ValueError(
                f"task.template must write every message, tool call and tool, got {name!r}, which "
                f"leaves one out in {place}. Choose a model whose template writes it, or remove it "
                "from the row."
            )
        # Cut the text at every reply, which must stand where generation would write it.
        parts, done, answered = list[TextPart](), 0, 0
        for number, message in enumerate(messages):
            if message.role != "assistant":
                continue
            asked = _asked(write, messages[:number], message)
            block, reply = _split_reply(write, messages[:number], message, asked, whole)
            begin = len(asked) + len(block)
            if reply is None or begin < done or not whole.startswith(asked + block + reply):
                raise ValueError(
                    "task.template must write each reply after its own prompt, whatever follows, "
                    f"got {name!r}, which does not in {place}. Use chatml or plain."
                )
            # An empty block of thinking is the template's, so it is context. So are all messages
            # before a reply if one of them has the weight 0.
            never = not all(one.trained for one in messages[answered:number])
            parts += [
                TextPart(text=whole[done : len(asked)], said=False, never=never),
                *([TextPart(text=block, said=False, never=True)] if block else []),
                TextPart(text=reply, said=message.trained, never=not message.trained),
            ]
            done, answered = begin + len(reply), number + 1
        # The last line end of `plain` becomes the end-of-text token, so that generation stops.
        if name == "plain":
            parts[-1] = replace(parts[-1], text=parts[-1].text.removesuffix("\n") + self._end)
        return parts

    def unread(self, conversation: Conversation, place: str) -> Iterator[str]:
        """Yield the keys of messages that only some templates write, and that this one ignores."""
        if conversation.texts is not None:
            return
        write = self._writer(
            self.name_for(conversation.form, plain_texts=False), conversation.tools, place
        )
        # A template ignores a key if leaving out the key does not change the text.
        for key in WRITTEN_BY_SOME:
            without = [_without(message, key) for message in conversation.messages]
            if without != list(conversation.messages) and (
                write(without, False) == write(conversation.messages, False)
            ):
                yield f"messages.{key}"

    def asked(
        self, messages: Sequence[Message], continuation: str, field: str, place: str
    ) -> list[tuple[str, str]]:
        """Return the texts that the assistant answers, and how a continuation follows each.

        Args:
            continuation: how a reply begins; empty if the prompt alone is needed.
            field, place: where the messages are from, for messages.

        Returns:
            The text as the last reply of a conversation has it. A second one without the template's
            empty block of thinking follows, if there is such a block: earlier replies may be
            written without it.

        Raises:
            ValueError: the model's template refuses the messages, or does not write the
                continuation as it is.
        """
        name = self.name_for("messages", plain_texts=False)
        write = self._writer(name, "", place)
        # A mark stands for an unknown reply, to see where the template would write it.
        answer = Message(role="assistant", content=continuation or _MARK)
        before = write(messages, True)
        block, said = _split_reply(
            write, messages, answer, before, write([*messages, answer], False)
        )
        prompts = [before + block, before] if block else [before]
        if not continuation:
            return [(prompt, "") for prompt in prompts]
        # If the template strips or changes the continuation, scores would read other tokens than
        # training.
        if said is None or continuation not in said:
            raise ValueError(
                f"{field} must have continuations that task.template writes unchanged after their "
                f"prompt, got one that {name!r} trims, changes or leaves out in {place}. Remove "
                "white space at its ends, or use chatml or plain."
            )
        said = said[: said.index(continuation) + len(continuation)]
        return [(prompt, said) for prompt in prompts]

    def _writer(self, name: TemplateName, tools: str, place: str) -> _Writer:
        def by_model(messages: Sequence[Message], asks: bool) -> str:
            return self._by_model(messages, asks, tools, place)

        writers: dict[str, _Writer] = {"model": by_model, "chatml": _chatml, "plain": _plain}
        return writers[name]

    def _by_model(self, messages: Sequence[Message], asks: bool, tools: str, place: str) -> str:
        from jinja2 import TemplateError

        listed: list[dict[str, Any]] = [
            {"role": m.role, "content": m.content, **m.others} for m in messages
        ]
        # Templates are foreign code: any exception may come out of them.
        try:
            text = self._tokenizer.apply_chat_template(
                listed,
                tools=json.loads(tools) if tools else None,
                tokenize=False,
                add_generation_prompt=asks,
            )
        except Exception as error:
            # A conversation that the assistant begins is the commonest refusal, so the message
            # names it.
            begins = next((m.role for m in messages if m.role != "system"), "") == "assistant"
            got = "one that the assistant begins" if begins else "one"
            # What a template raises by itself is of this very class.
            if type(error) is not TemplateError and not begins:
                raise ValueError(
                    "task.template must write every conversation, got the model's own, "
                    f"{_mistake_of(error)} in {place}. Correct the chat template of the tokenizer, "
                    "or use chatml or plain."
                ) from error
            raise ValueError(
                "task.template must take every conversation, got the model's own, which refuses "
                f"{got} in {place}: usually user and assistant must alternate, after at most one "
                "system message. Correct the row, or use chatml or plain."
            ) from error
        return str(text)

    def _holds_calls(
        self, name: TemplateName, messages: Sequence[Message], tools: str, place: str
    ) -> bool:
        """Return whether the template writes every tool call, every tool and every tool's answer.

        Each is replaced by a mark of its own, which must occur in the text.
        """
        marks: list[str] = []

        def mark() -> str:
            marks.append(f"{_MARK}{len(marks)}x")
            return marks[-1]

        def marked(message: Message) -> Message:
            others = message.others
            calls = others.get("tool_calls", ())
            if message.role == "tool":
                return replace(message, content=mark())
            if not calls:
                return message
            functions = [
                {**c, "function": {"name": mark(), "arguments": {mark(): mark()}}} for c in calls
            ]
            return replace(message, more=json.dumps({**others, "tool_calls": functions}))

        # Replace the name and the argument of each call and tool by marks.
        written = [marked(message) for message in messages]
        named = []
        for tool in json.loads(tools) if tools else ():
            function = {**tool.get("function", tool), "name": mark()}
            named.append({**tool, "function": function} if "function" in tool else function)
        if not marks:
            return True
        # Case is ignored: some templates write names in capitals.
        text = self._writer(name, json.dumps(named) if named else "", place)(
            written, False
        ).casefold()
        return all(one in text for one in marks)


def _asked(write: _Writer, before: Sequence[Message], reply: Message) -> str:
    """Return the text up to a reply, without an empty block of thinking."""
    # With messages before the reply, the template itself writes the prompt of generation.
    if before:
        return write(before, True)
    # Many templates refuse an empty conversation, so the prompt is read off a marked reply.
    text = _up_to(write, before, reply).rstrip(" ")
    blocks = (
        block
        for block in _THINKING.finditer(text)
        if block.end() == len(text) and not block[3].strip()
    )
    return next((text[: block.start(1)] for block in blocks), text)


def _up_to(write: _Writer, before: Sequence[Message], reply: Message) -> str:
    """Return the text that stands before a mark in the place of a reply's content."""
    text = write([*before, replace(reply, content=_MARK)], False)
    found = re.search(_MARK, text, re.IGNORECASE)
    return text[: found.start()] if found else text


def _split_reply(
    write: _Writer, before: Sequence[Message], message: Message, asked: str, whole: str
) -> tuple[str, str | None]:
    """Return the empty block of thinking before a reply, and the reply as it stands in the text.

    Args:
        before: the messages before the reply.
        asked: the text up to the reply.
        whole: the whole conversation.

    Returns:
        The reply is None if it has no place in the whole text.
    """
    # Writing the conversation only up to the reply shows the reply without what follows it.
    alone = write([*before, message], False)
    if not alone.startswith(asked):
        return "", None
    reply, rest = alone[len(asked) :], whole[len(asked) :]
    found = _THINKING.match(reply)
    if found is None:
        return "", reply
    if not rest.startswith(reply):  # some templates leave out the thinking of earlier replies
        ends = range(found.end(1), found.end() + 1)
        return "", next((reply[end:] for end in ends if rest.startswith(reply[end:])), None)
    # A block that the data hold is part of the reply and is trained on.
    held = _THINKING.match(message.content)
    if found[3].strip() or (held is not None and held[2] == found[2]):
        return "", reply
    # The template's own empty block is what stands before a reply of another content.
    block = _up_to(write, before, message)[len(asked) :]
    return (block, reply.removeprefix(block)) if reply.startswith(block) else ("", reply)


def _holds_everything(text: str, messages: Sequence[Message]) -> bool:
    """Return whether a text holds, but for case and blanks, what users and the system say."""

    def squeezed(given: str) -> str:
        return "".join(given.casefold().split())

    said = [m.content for m in messages if m.role in ("user", "system")]
    # The exact search comes first, because folding case and white space is slow on long texts.
    return all(one in text for one in said) or all(squeezed(one) in squeezed(text) for one in said)


def _without(message: Message, key: str) -> Message:
    return replace(
        message,
        more=json.dumps({k: v for k, v in message.others.items() if k != key}, ensure_ascii=False),
    )


def _mistake_of(error: Exception) -> str:
    """Return in words why a template fails. The error's own text may quote a conversation."""
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
