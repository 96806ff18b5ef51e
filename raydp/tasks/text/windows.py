"""Cutting tokenised texts into windows: the head, the tail, or whole lines packed together.

A window is a range of tokens. A text is tokenised once, and all windows share its tokens. So the
exact characters of a window are known without decoding.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WindowKind = Literal["head", "tail", "lines"]
Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class TokenizedText:
    """A text and its tokens.

    Attributes:
        text: the text.
        token_ids: [L] its tokens, without special tokens.
        bounds: [L + 1] token i covers the characters bounds[i]:bounds[i + 1]. Tokens that share one
            character (the bytes of a multi-byte character) have equal bounds.
        breakable: [L + 1] whether a window may begin at token i, because token i is not inside a
            character.
    """

    text: str
    token_ids: Sequence[int]
    bounds: Sequence[int]
    breakable: Sequence[bool]

    @classmethod
    def of(cls, text: str, token_ids: Sequence[int], offsets: Sequence[Span]) -> TokenizedText:
        """Build a text from a fast tokenizer's offsets.

        A character that no token claims belongs to the token after it. (GPT-2 trims a token's
        leading space from its offsets.)
        """
        bounds, breakable = [0], [True]
        # A token may begin inside a character, such as an emoji of several bytes. No window may.
        for (_, end), (start, _) in pairwise(offsets):
            breakable.append(start >= end)
            # Offsets may overlap or go back; bounds must never decrease, so that slices are
            # disjoint.
            bounds.append(max(bounds[-1], min(start, end)))
        return cls(
            text=text,
            token_ids=token_ids,
            bounds=[*bounds, len(text)],
            breakable=[*breakable, True],
        )

    def __len__(self) -> int:
        return len(self.token_ids)

    def slice(self, window: Span) -> str:
        """Return the characters of a window."""
        return self.text[self.bounds[window[0]] : self.bounds[window[1]]]

    def spans_of(self, substring: str) -> Iterator[Span]:
        """Yield the smallest token range of each occurrence of a substring."""
        start = self.text.find(substring)
        while start >= 0:
            # Of tokens with equal bounds, the first one begins the span.
            first = bisect_left(
                self.bounds, self.bounds[bisect_right(self.bounds, start, hi=len(self)) - 1]
            )
            yield first, bisect_left(self.bounds, start + len(substring))
            start = self.text.find(substring, start + 1)


def start_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the tokens that the tokenizer puts before a text: a start token, or none."""
    # They precede the text's own tokens in the full encoding.
    own, whole = (tokenizer("a", add_special_tokens=added)["input_ids"] for added in (False, True))
    return tuple(whole[: next(i for i in range(len(whole)) if whole[i : i + len(own)] == own)])


def with_start(ids: Sequence[int], start: tuple[int, ...]) -> list[int]:
    """Return token ids after the start tokens. Ids that begin with them stay as they are."""
    return [*ids] if tuple(ids[: len(start)]) == start else [*start, *ids]


def tokenize(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, chunk: int = 1024
) -> list[TokenizedText]:
    """Tokenise texts without special tokens.

    Raises:
        ValueError: the tokenizer is not a fast one, so that it cannot say which characters a token
            covers.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            f"model must have a fast tokenizer, got {type(tokenizer).__name__}. Add a "
            "tokenizer.json to the model."
        )
    tokenized = []
    # Chunks save memory: offsets take several times the memory of the texts.
    for begin in range(0, len(texts), chunk):
        part = list(texts[begin : begin + chunk])
        encoded = tokenizer(
            part, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        rows = zip(part, encoded["input_ids"], encoded["offset_mapping"], strict=True)
        tokenized += [TokenizedText.of(text, ids, offsets) for text, ids, offsets in rows]
    return tokenized


def windows_of(
    text: TokenizedText, kind: WindowKind, max_length: int, keep_whole: Sequence[str] = ()
) -> list[Span]:
    """Cut a text into windows of at most max_length tokens.

    Args:
        text: the tokenised text.
        kind: "head" and "tail" give one window, the first or last tokens. "lines" gives as many
            windows as cover the text, each of whole lines as far as they fit.
        max_length: largest number of tokens of a window.
        keep_whole: strings that "lines" does not cut if they fit into a window. A new window then
            begins before the line that would overflow, or at the string if its line is too long
            itself. If strings overlap and do not fit together, only the first is protected.

    Returns:
        Disjoint token ranges (begin, end), in order. "lines" covers every token exactly once.
    """
    if not len(text):
        return []
    if kind == "head":
        return [(0, _break_before(text, 0, min(max_length, len(text))))]
    if kind == "tail":
        begin = max(len(text) - max_length, 0)
        # The tail begins at the first position that is no inside of a character.
        return [(next(i for i in range(begin, len(text) + 1) if text.breakable[i]), len(text))]
    return _pack_lines(text, max_length, _protected(text, keep_whole, max_length))


def keep_windows(windows: Sequence[Span], secret: Sequence[bool], limit: int | None) -> list[Span]:
    """Return at most `limit` windows of a text in its order: with a secret first, then early."""
    # False sorts before True: windows with a secret come first.
    order = sorted(range(len(windows)), key=lambda i: (not secret[i], i))
    return [windows[i] for i in sorted(order[:limit])]


def _protected(text: TokenizedText, strings: Sequence[str], max_length: int) -> list[Span]:
    """Return disjoint token ranges that must not be cut."""
    spans: list[Span] = []
    fitting = (s for string in strings for s in text.spans_of(string) if s[1] - s[0] <= max_length)
    # At one start the longer string comes first, so that it covers the shorter one.
    for begin, end in sorted(fitting, key=lambda s: (s[0], -s[1])):
        # Overlapping strings are protected together if both fit into a window.
        if spans and begin < spans[-1][1]:
            if max(end, spans[-1][1]) - spans[-1][0] <= max_length:
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((begin, end))
    return spans


def _pack_lines(text: TokenizedText, max_length: int, protected: Sequence[Span]) -> list[Span]:
    """Pack lines greedily: end a window at the last line end within reach, or cut the line."""
    # Positions where a window may end: line ends outside the protected ranges, and the end of the
    # text.
    inside = {i for begin, end in protected for i in range(begin + 1, end)}
    cuts = [
        i
        for i in range(1, len(text))
        if text.breakable[i] and text.text[text.bounds[i] - 1] == "\n" and i not in inside
    ]
    cuts.append(len(text))
    windows, begin = [], 0
    while begin < len(text):
        # End the window at the last such position; otherwise before a protected range, or at the
        # limit.
        limit = min(begin + max_length, len(text))
        at = bisect_right(cuts, limit) - 1
        if at >= 0 and cuts[at] > begin:
            end = cuts[at]
        else:
            # A protected range across the limit moves whole into the next window; it fits there.
            held = next((b for b, e in protected if b < limit < e), None)
            end = held if held is not None else _break_before(text, begin, limit)
        windows.append((begin, end))
        begin = end
    return windows


def _break_before(text: TokenizedText, begin: int, limit: int) -> int:
    """Return the last position in (begin, limit] that is not inside a character, or the limit."""
    return next((i for i in range(limit, begin, -1) if text.breakable[i]), limit)
