"""Authors' names and genres from their question-answer rows (Hu et al. 2025, App. B.6), and the file to review them in.

Both come from n-gram histograms. What the histograms leave open stays None, for a person to fill in.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from raydp.tasks.reading import read_json_rows
from raydp.tasks.text.wordlists import GENRE_FILLER

MAX_NAME_WORDS = 5
MIN_NAME_SHARE = 0.5  # share of an author's rows that a name appears in
MIN_LONGER_SHARE = 0.5  # a longer n-gram replaces a shorter one that it contains above this share of its count

_WORD = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*")
_POSSESSIVE = re.compile(r"['’]s?$")


@dataclass(frozen=True, kw_only=True)
class AuthorAttribute:
    """What is known of one author: position in the file (from 0), name and genre, None where unresolved."""

    author_index: int
    name: str | None
    genre: str | None


def find_name(rows: Sequence[str]) -> str | None:
    """The author's name: the commonest title-case 2-gram of the rows, extended to the longest n-gram up to 5 that most
    of its occurrences are part of; it must appear in at least half of the rows.

    Args:
        rows: question and answer of each of one author's rows, as one string.

    Returns:
        The name; None if no candidate passes, or two pass with equal counts.
    """
    grams = _name_counts(rows)
    pairs = [gram for gram, _ in grams.most_common() if len(gram) == 2]
    named = [p for p in pairs if sum(" ".join(p) in row for row in rows) >= MIN_NAME_SHARE * len(rows)]
    best = _sole_best({gram: grams[gram] for gram in named})
    if best is None:
        # Two 2-grams of one three-word name tie.
        longer = [g for g in grams if len(g) == 3 and {g[:2], g[1:]} <= set(named)]
        best = _sole_best({gram: grams[gram] for gram in longer})
    while best and (wider := _sole_best({g: n for g, n in grams.items() if _extends(g, best)})):
        if grams[wider] <= MIN_LONGER_SHARE * grams[best]:
            break
        best = wider
    return " ".join(best) if best else None


def find_genre(rows: Sequence[str]) -> str | None:
    """The author's genre, in lower case: the commonest 2-gram that ends in the word "genre" and does not begin with a
    filler word ("the genre"), or the 3-gram that most of its occurrences are part of ("true crime genre").

    Returns:
        The words before "genre"; None if there is no candidate, or two with equal counts.
    """
    grams = _genre_counts(rows)
    best = _sole_best({g: n for g, n in grams.items() if len(g) == 1})
    if best is None:
        return None
    longer = _sole_best({g: n for g, n in grams.items() if len(g) == 2 and g[1:] == best})
    if longer and grams[longer] > MIN_LONGER_SHARE * grams[best]:
        best = longer
    return " ".join(best)


def find_attributes(groups: Sequence[Sequence[str]]) -> list[AuthorAttribute]:
    """Name and genre of each author, from the rows of each."""
    return [
        AuthorAttribute(author_index=i, name=find_name(rows), genre=find_genre(rows)) for i, rows in enumerate(groups)
    ]


def candidates(rows: Sequence[str], most: int = 3) -> dict[str, list[tuple[str, int]]]:
    """What `find_name` and `find_genre` choose from, for a person who reviews their choice.

    Args:
        rows: question and answer of each of one author's rows, as one string.
        most: candidates of each sort.

    Returns:
        "name" and "genre": the commonest n-grams with their counts.
    """
    counts = {"name": _name_counts(rows), "genre": _genre_counts(rows)}
    return {key: [(" ".join(g), n) for g, n in grams.most_common(most)] for key, grams in counts.items()}


def write_review(attributes: Sequence[AuthorAttribute], path: Path) -> None:
    """Write candidates for a person to complete: JSON Lines with author_index, name and genre, null where unresolved.

    Raises:
        ValueError: the file exists; edits in it would be lost.
    """
    if path.exists():
        raise ValueError(f"path must be a new file, got {str(path)!r}. Choose another name, or remove the file.")
    lines = (json.dumps(vars(a), ensure_ascii=False) for a in attributes)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def apply_review(attributes: Sequence[AuthorAttribute], path: str | Path, field: str) -> list[AuthorAttribute]:
    """Replace what a reviewed file states; null leaves an author out.

    Raises:
        ValueError: the file is missing or malformed, or names an author that there is not, or one twice.
    """
    reviewed: dict[int, AuthorAttribute] = {}
    for line, row in read_json_rows(path, field):
        index = row.get("author_index")
        texts = [row.get(key) for key in ("name", "genre")]
        well_formed = set(row) == {"author_index", "name", "genre"} and all(_text_or_null(t) for t in texts)
        known = isinstance(index, int) and 0 <= index < len(attributes) and index not in reviewed
        if not well_formed or not known:
            raise ValueError(
                f"{field} must hold an author_index from 0 to {len(attributes) - 1}, each once, a name and a genre "
                f"(text or null) in every line, got something else in {Path(path).name}, line {line}. Correct the line."
            )
        reviewed[row["author_index"]] = AuthorAttribute(author_index=row["author_index"], name=texts[0], genre=texts[1])
    return [reviewed.get(a.author_index, a) for a in attributes]


def listed_attributes(path: str | Path, field: str, num_authors: int) -> list[AuthorAttribute]:
    """The attributes that a secrets file of `raydp secrets extract` lists; an author that it does not list has none.

    Args:
        path: JSON Lines with author_index, name and attribute; other keys are left alone.
        field: where the path was written, for messages.
        num_authors: authors of the data.

    Raises:
        ValueError: the file is missing or malformed, or names an author that there is not, or one twice.
    """
    listed: dict[int, AuthorAttribute] = {}
    for line, row in read_json_rows(path, field):
        index = row.get("author_index")
        texts = [row.get(key) for key in ("name", "attribute")]
        named = all(isinstance(t, str) and t.strip() for t in texts)
        if type(index) is not int or not 0 <= index < num_authors or index in listed or not named:
            raise ValueError(
                f"{field} must hold an author_index from 0 to {num_authors - 1}, each once, a name and an attribute in "
                f"every line, got something else in {Path(path).name}, line {line}. Correct the line."
            )
        listed[index] = AuthorAttribute(author_index=index, name=texts[0], genre=texts[1])
    unlisted = (AuthorAttribute(author_index=i, name=None, genre=None) for i in range(num_authors))
    return [listed.get(a.author_index, a) for a in unlisted]


def _name_counts(rows: Sequence[str]) -> Counter[tuple[str, ...]]:
    return Counter(gram for row in rows for gram in _title_grams(row))


def _genre_counts(rows: Sequence[str]) -> Counter[tuple[str, ...]]:
    """The one or two words before "genre", where none of them is a filler."""
    grams: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        for words in _phrases(row.lower()):
            for at, word in enumerate(words):
                if word == "genre":
                    grams.update(g for g in (words[max(at - 1, 0) : at], words[max(at - 2, 0) : at]) if g)
    return Counter({g: n for g, n in grams.items() if not GENRE_FILLER & set(g)})


def _text_or_null(value: object) -> bool:
    return value is None or (isinstance(value, str) and bool(value.strip()))


def _phrases(text: str) -> Iterator[tuple[str, ...]]:
    """Runs of words with nothing but a space between them; a possessive ends its run and loses its s."""
    run: list[str] = []
    last_end = -1
    for match in _WORD.finditer(text):
        if run and text[last_end : match.start()] != " ":
            yield tuple(run)
            run = []
        word = _POSSESSIVE.sub("", match.group())
        run.append(word)
        last_end = match.end() if word == match.group() else -1
    if run:
        yield tuple(run)


def _title_grams(text: str) -> Iterator[tuple[str, ...]]:
    """n-grams of 2 to 5 words that all begin with a capital."""
    for words in _phrases(text):
        for size in range(2, MAX_NAME_WORDS + 1):
            for begin in range(len(words) - size + 1):
                gram = words[begin : begin + size]
                if all(word[0].isupper() for word in gram):
                    yield gram


def _extends(gram: tuple[str, ...], shorter: tuple[str, ...]) -> bool:
    """Whether a gram is one word longer than another, which it begins or ends with."""
    return len(gram) == len(shorter) + 1 and shorter in (gram[:-1], gram[1:])


def _sole_best(counts: dict[tuple[str, ...], int]) -> tuple[str, ...] | None:
    """The key with the largest count, None if there is no key or a tie."""
    ranked = Counter(counts).most_common(2)
    return ranked[0][0] if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]) else None
