"""Questions and answers as token ids, with loss on the answers only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.windows import start_tokens, tokenize, with_start

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PLACEHOLDERS = re.compile(r"{(.*?)}")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A question and its answer."""

    question: str
    answer: str

    @property
    def text(self) -> str:
        return f"{self.question}\n{self.answer}"


@dataclass(frozen=True, kw_only=True)
class Template:
    """A template that joins a question and an answer into one text.

    The blanks before {answer} belong to the answer. The answer is tokenised separately, so that
    training and generation from the prompt see the same tokens.
    """

    text: str

    def is_valid(self) -> bool:
        """Return whether the braces are {question} once, then {answer} at the end of the text."""
        return _PLACEHOLDERS.findall(self.text) == ["question", "answer"] and self.text.endswith(
            "{answer}"
        )

    def prompt(self, question: str) -> str:
        """Return the text up to the answer, without the blanks before the answer."""
        # The trailing blanks belong to the answer's first token in most vocabularies.
        return self.text.removesuffix("{answer}").rstrip(" ").replace("{question}", question)

    def continuation(self, answer: str) -> str:
        """Return the answer with the blanks before it."""
        before = self.text.removesuffix("{answer}")
        return before[len(before.rstrip(" ")) :] + answer


@dataclass(frozen=True, kw_only=True)
class EncodedAnswers:
    """Encoded rows.

    Attributes:
        examples: the rows that have room for an answer token. The answer's tokens are the targets.
        texts: for each row, the text that the model sees; None if the row is left out.
        truncated: number of rows whose end does not fit into max_length.
        without_answer: number of rows left out, because no token of the answer fits or the answer
            is empty.
    """

    examples: TokenizedExamples
    texts: list[str | None]
    truncated: int
    without_answer: int


def encode_answers(
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    template: Template,
    *,
    max_length: int,
    append_eos: bool,
) -> EncodedAnswers:
    """Tokenise prompt and answer of every row separately, and join them.

    Args:
        max_length: largest number of tokens of an example; a longer example loses its end.
        append_eos: end each answer with the tokenizer's end-of-text token, if it has one.
    """
    # Question and answer are tokenised apart: generation has no token that spans both.
    prompts = tokenize(tokenizer, [template.prompt(row.question) for row in rows])
    answers = tokenize(tokenizer, [template.continuation(row.answer) for row in rows])
    end = [tokenizer.eos_token_id] if append_eos and tokenizer.eos_token_id is not None else []
    start, token_ids = start_tokens(tokenizer), list[list[int]]()
    starts: list[int] = []
    texts: list[str | None] = []
    truncated = 0
    for row, prompt, answer in zip(rows, prompts, answers, strict=True):
        asked = with_start(prompt.token_ids, start)
        room = max_length - len(asked)
        # Leave out a row without room for one answer token: its loss would be a mean over nothing.
        if room < 1 or not row.answer or not asked:
            texts.append(None)
            continue
        ids = [*answer.token_ids, *end]
        # A long answer loses its end, the end-of-text token included.
        truncated += len(ids) > room
        token_ids.append([*asked, *ids[:room]])
        starts.append(len(asked))
        # The text that the model sees, to count secrets in; the end-of-text token is no text.
        texts.append(prompt.text + answer.slice((0, min(room, len(answer)))))
    return EncodedAnswers(
        examples=TokenizedExamples.from_lists(token_ids, starts),
        texts=texts,
        truncated=truncated,
        without_answer=len(rows) - len(token_ids),
    )
