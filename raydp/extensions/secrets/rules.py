"""Rules that turn a piece of text into a secret: its kind, its extent, and where the prompt ends.

Hu et al. (2025, App. B.6) name the types, and their Table 5 shows how thirteen secrets were divided by hand. The rules
here are ours and follow the table. The prompt ends inside the secret's last name or number:

| type | secret | continuation |
| --- | --- | --- |
| forwarded | "Forwarded by" with a name and its units | from the last word of the name |
| names | up to three names with units, in a row | from the last word of the last name |
| contact | lines with a phone number, address or mail address, with a name before them | from the last number's second group of digits, of several numbers from its third; without a number, the mail address |
| phone, email, address, key, number | the value, after as much of the text before it as most of its texts share | a phone number from its second group of digits, an address from its last number, the others whole |
| formatted | everything else | the last line; for one line, its second half |
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from raydp.extensions.secrets.detectors import Found, find

MAX_LINES_BEFORE = 2  # lines before a contact block that hold no value: a name, a title
MAX_HEADING = 40  # characters of such a line
MAX_CONTEXT = 80  # characters before a value
MIN_CONTEXT = 8  # characters before a value, if its own line has them
MIN_DISTINCT = 12  # letters and digits of a formatted string

_WORD = r"[A-Z][\w.'-]*"
_UNITS = r"(?:/[A-Za-z][\w&.-]*(?: (?!on\b|at\b)[A-Z][\w&.-]*)*)+"
_FORWARDED = re.compile(rf" ?Forwarded by (?P<name>{_WORD}(?: {_WORD})*){_UNITS}")
_NAMES = re.compile(
    r"(?<![\w/])"
    + r",\s+".join(rf"(?:{_WORD}\s{{1,2}})+(?P<last{i}>{_WORD}){_UNITS}@\w+" for i in (1, 2))
    + rf"(?:,\s+(?:{_WORD}\s{{1,2}})+(?P<last3>{_WORD}){_UNITS}@\w+)?"
)
_DIGITS = re.compile(r"\d+")
_WORD_START = re.compile(r"(?<!\S)\S")
_LINE = re.compile(r"[^\n]*\n?")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A secret in a text: its type, prompt and continuation."""

    type: str
    prompt: str
    continuation: str

    @property
    def text(self) -> str:
        """Return the whole secret."""
        return self.prompt + self.continuation


def pieces(sequence: str, *, region: str = "US") -> list[Piece]:
    """Return the secrets of a frequent sequence: what the rules recognise, or else all of it.

    Args:
        sequence: text.
        region: country of phone numbers, see `detectors.find`.
    """
    recognised = [*_forwarded(sequence), *_names(sequence), *_contacts(sequence, region)]
    if not recognised and (piece := _formatted(sequence)):
        recognised = [piece]
    return [p for p in recognised if p.prompt.strip() and p.continuation.strip()]


def in_contexts(text: str, value: Found) -> list[Piece]:
    """Return a detected value as a secret with each possible prompt, the longest prompt first.

    The longest prompt is the line before the value and the text before it in its own line. The next
    one is the text in its own line. Shorter ones begin at a later word of that text. If the value
    begins its line, they begin at a word of the line before it.

    Return nothing if no text precedes the value.
    """
    # The line of the value, and the line before it.
    line = text.rfind("\n", 0, value.begin) + 1
    before = text[:line].rstrip()
    context = max(before.rfind("\n") + 1, 0) if before else line
    words_from = line if text[line : value.begin].strip() else context
    latest = max(value.begin - MIN_CONTEXT, words_from)
    words = (m.start() for m in _WORD_START.finditer(text, words_from, latest + 1))
    earliest = max(context, value.begin - MAX_CONTEXT)
    if earliest > context and (word := _WORD_START.search(text, earliest, value.begin)):
        earliest = word.start()
    begins = {earliest, *(at for at in (words_from, *words) if at >= earliest)}
    # The continuation begins inside a number or an address, where guessing begins.
    cut = value.begin + _cut(text[value.begin : value.end], value.kind)
    if not text[cut : value.end].strip():
        return []
    prompts = dict.fromkeys(text[begin:cut].lstrip("\n") for begin in sorted(begins))
    return [
        Piece(type=value.kind, prompt=p, continuation=text[cut : value.end])
        for p in prompts
        if p.strip()
    ]


def _cut(value: str, kind: str, known_groups: int = 1) -> int:
    """Return where a value's continuation begins: in a phone number after known groups."""
    groups = list(_DIGITS.finditer(value))
    if kind == "phone" and len(groups) > 1:
        # A leading 1 is the country code of North America, which everybody knows.
        known_groups += groups[0].group() == "1"  # the country
        return groups[min(known_groups, len(groups) - 1) - 1].end()
    if kind == "address" and len(groups) > 1:
        return groups[
            -2 if "-" in value[groups[-2].end() : groups[-1].start()] and len(groups) > 2 else -1
        ].start()
    return 0


def _forwarded(text: str) -> Iterator[Piece]:
    for match in _FORWARDED.finditer(text):
        cut = match.start("name") + max(match["name"].rfind(" "), 0)
        yield Piece(
            type="forwarded", prompt=text[match.start() : cut], continuation=text[cut : match.end()]
        )


def _names(text: str) -> Iterator[Piece]:
    for match in _NAMES.finditer(text):
        cut = match.start("last3" if match["last3"] else "last2")
        cut -= text[cut - 1] == " "
        yield Piece(
            type="names", prompt=text[match.start() : cut], continuation=text[cut : match.end()]
        )


def _contacts(text: str, region: str) -> Iterator[Piece]:
    """Yield blocks of lines that each hold a value, with up to two short lines before."""
    values = find(text, region=region, kinds=("phone", "email", "address"))
    # Group values that are at most one line apart.
    lines = [(m.start(), m.end()) for m in _LINE.finditer(text) if m.group()]
    blocks: list[list[Found]] = []
    for value in values:
        gap = text[blocks[-1][-1].end : value.begin] if blocks else ""
        if blocks and gap.count("\n") <= 1 and len(gap) <= MAX_HEADING:
            blocks[-1].append(value)
        else:
            blocks.append([value])
    # Extend each block by short lines before it, and divide it.
    for block in blocks:
        first = next(i for i, (begin, end) in enumerate(lines) if begin <= block[0].begin < end)
        start = lines[first][0]
        for i in range(first - 1, max(first - 1 - MAX_LINES_BEFORE, -1), -1):
            heading = text[slice(*lines[i])]
            if not heading.strip() or len(heading) > MAX_HEADING:
                break
            start = lines[i][0]
        end = block[-1].end
        phones = [v for v in block if v.kind == "phone"]
        if phones:
            number = text[phones[-1].begin : phones[-1].end]
            cut = phones[-1].begin + _cut(number, "phone", known_groups=min(len(phones), 2))
        else:
            cut = block[-1].begin + _cut(text[block[-1].begin : end], block[-1].kind)
        alone = len(block) == 1 and start == lines[first][0]
        yield Piece(
            type=block[0].kind if alone else "contact",
            prompt=text[start:cut],
            continuation=text[cut:end],
        )


def _formatted(text: str) -> Piece | None:
    """Divide at the last line or a single line's middle; None for little more than blanks."""
    text = text.strip("\n")
    if sum(c.isalnum() for c in text) < MIN_DISTINCT:
        return None
    cut = text.rstrip().rfind("\n") + 1
    if not text[:cut].strip():
        words = [m.start() for m in re.finditer(r"\s(?=\S)", text) if m.start()]
        cut = min(words, key=lambda at: abs(at - len(text) / 2)) if words else len(text) // 2
    return Piece(type="formatted", prompt=text[:cut], continuation=text[cut:])
