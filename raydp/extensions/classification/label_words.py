"""Text classification by a causal language model: the next token decides between label words.

Source: Schick and Schütze 2021 (PET), section 3.1, template and verbaliser; here for a causal
language model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.extensions.adapters.key_values import Prefix, can_share
from raydp.models.reading import reading
from raydp.tasks.text.windows import start_tokens, with_start

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PADDING = -1
"""Fills an input after its last token. No token has this id, so that lengths can be read off."""
BETWEEN = "\n\n"
"""Separates a demonstration from what follows it."""


@dataclass(frozen=True, kw_only=True)
class LabelWords:
    """A word of one token for each class (a verbaliser).

    An input is a text in its template, up to the place of the word: [L] int64 token ids, then
    PADDING.

    Attributes:
        token_ids: [K] the token id of each class's word.
        opening: tokens that the tokenizer puts before any text, and that every input begins with;
            often none.
        between: tokens between a demonstration's word and the next input.
    """

    token_ids: tuple[int, ...]
    opening: tuple[int, ...] = ()
    between: tuple[int, ...] = ()

    def logits(
        self, model: torch.nn.Module, inputs: torch.Tensor, read: Prefix | None = None
    ) -> torch.Tensor:
        """Return [B, K] logits of the words as the next token.

        Only the positions where an input ends go through the output layer.

        Args:
            model: a transformers causal language model or a PeftModel around one, in eval mode.
            inputs: [B, L].
            read: keys and values of the tokens before every input; only for a model without virtual
                tokens.
        """
        lengths = lengths_of(inputs)
        # Padding is on the right, and under causal attention no token sees what is right of it: no
        # mask is needed.
        # clamp gives padding the valid id 0: the embedding refuses -1.
        ids = inputs[:, : int(lengths.max())].clamp(min=0)
        how = reading(model, ids)
        # The prefix is given as a cache; transformers returns a cache only if it is asked to use
        # it.
        asked, cached = dict(how.inputs), read is not None
        if read is not None:
            assert how.model is model, "virtual tokens would stand between the prefix and the input"
            # Positions count on from the prefix, whose keys and values are in the cache.
            asked |= {
                "position_ids": read.length + how.positions,
                "past_key_values": read.cache(len(ids)),
            }
        # Rows end at different columns. `logits_to_keep` takes columns for the whole batch, so the
        # distinct end columns are kept and each row reads its own.
        ends, which = (how.columns + lengths - 1).unique(return_inverse=True)
        logits: torch.Tensor = how.model(**asked, use_cache=cached, logits_to_keep=ends).logits
        rows = torch.arange(len(ids), device=ids.device)
        words = torch.tensor(self.token_ids, device=ids.device)
        return logits[rows[:, None], which[:, None], words]

    def demonstrations(self, inputs: NDArray[np.int64], labels: NDArray[np.int64]) -> list[int]:
        """Return the token ids of examples with their words, one after another.

        An input may follow them.

        Args:
            inputs: [k, L].
            labels: [k].
        """
        # The opening comes once: the model has never seen a beginning-of-text token amid a text.
        ids = list(self.opening) if len(labels) else []
        for row, label in zip(inputs, labels, strict=True):
            own = row[row != PADDING][len(self.opening) :]
            ids += [*own.tolist(), self.token_ids[label], *self.between]
        return ids

    def following(self, inputs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return [n, L'] inputs without the opening, as they follow demonstrations."""
        return inputs[:, len(self.opening) :]

    def longest(self, num_demonstrations: int, of_them: int, of_inputs: int) -> int:
        """Return the largest number of tokens of num_demonstrations demonstrations and one input.

        Args:
            of_them: tokens of the longest input that may be a demonstration.
            of_inputs: tokens of the longest input that may follow.
        """
        opening = len(self.opening)
        # Each demonstration has its input without the opening, its word of one token, and the
        # separator.
        return (
            opening
            + num_demonstrations * (of_them - opening + 1 + len(self.between))
            + of_inputs
            - opening
        )


def lengths_of(inputs: torch.Tensor) -> torch.Tensor:
    """Return [n] the number of tokens of inputs [n, L]."""
    return (inputs != PADDING).sum(dim=1)


def read_once(model: torch.nn.Module, ids: Sequence[int]) -> Prefix | None:
    """Return keys and values of tokens; None if the model's cache cannot be shared by inputs.

    Args:
        model: a model without virtual tokens.
    """
    # A model that is split over devices reads tokens where its embedding is.
    device = cast(
        torch.nn.Embedding, cast("PreTrainedModel", model).get_input_embeddings()
    ).weight.device
    output = model(
        input_ids=torch.tensor([list(ids)], device=device), use_cache=True, logits_to_keep=1
    )
    return (
        Prefix.of(output.past_key_values, len(ids)) if can_share(output.past_key_values) else None
    )


def label_words_of(tokenizer: PreTrainedTokenizerBase, words: Mapping[str, str]) -> LabelWords:
    """Return the words as token ids.

    Error messages number the classes and do not name them. Without label_words in the spec, the
    names are values of private data.

    Args:
        words: class -> its word, with the blank before it if it has one.

    Raises:
        ValueError: a word is not one token, or has the token of another class.
    """
    # Two classes with one token could not be told apart by the logits.
    owners: dict[int, str] = {}
    for position, (name, word) in enumerate(words.items(), start=1):
        ids = _plain(tokenizer, word)
        if len(ids) != 1:
            raise ValueError(
                f"task.label_words must be one token each of the tokenizer, got {len(ids)} for "
                f"class {position} in their order. Name another word, with or without a blank "
                "before it."
            )
        if ids[0] in owners:
            raise ValueError(
                "task.label_words must have different tokens, got one token for classes "
                f"{[*owners].index(ids[0]) + 1} and {position} in their order. Name another word."
            )
        owners[ids[0]] = name
    return LabelWords(
        token_ids=tuple(owners),
        opening=start_tokens(tokenizer),
        between=tuple(_plain(tokenizer, BETWEEN)),
    )


def encode_texts(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], template: str, max_length: int
) -> tuple[NDArray[np.int64], int]:
    """Tokenise texts in a template; return [n, max_length] inputs, and how many texts were cut.

    The template's parts are tokenised separately from the text, so that a cut leaves the end of the
    template unchanged.

    Args:
        template: holds {text} once.
        max_length: number of tokens of an input; a longer text loses its end.

    Raises:
        ValueError: the template leaves no room for a text.
    """
    head, tail = template.split("{text}")
    # The start tokens come once, before the template's head.
    before = with_start(_plain(tokenizer, head), start_tokens(tokenizer))
    after = _plain(tokenizer, tail)
    room = max_length - len(before) - len(after)
    if room < 1:
        raise ValueError(
            f"task.max_length must be > {len(before) + len(after)}, the tokens of task.template, "
            f"got {max_length}. Raise it, or shorten the template."
        )
    # The width is max_length whatever the texts are: a width of private texts would leak their
    # length.
    inputs, cut = np.full((len(texts), max_length), PADDING, np.int64), 0
    for row, text in zip(inputs, texts, strict=True):
        own = _plain(tokenizer, text)
        cut += len(own) > room
        ids = [*before, *own[:room], *after]
        row[: len(ids)] = ids
    return inputs, cut


def _plain(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
    return ids
