"""Authors' names and genres from question-answer rows (Hu et al. 2025, App. B.6).

Names and genres come from n-gram histograms. What a histogram does not decide stays None, for a
person to fill in.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from raydp.tasks.row_files import read_json_rows
from raydp.tasks.text.wordlists import words_of

MAX_NAME_WORDS = 5
MIN_NAME_SHARE = 0.5  # a name must appear in at least this share of an author's rows
# a longer n-gram replaces a shorter one that it contains above this share of its count
MIN_LONGER_SHARE = 0.5

_WORD = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*")
_POSSESSIVE = re.compile(r"['’]s?$")
# Words before "genre" that do not name a genre: "in the genre", "her primary genre", "has shaped
# the genre".
GENRE_FILLER = frozenset(
    words_of(
        "a about acclaimed across an and another any as at best beyond by certain chosen "
        "compelling different distinct each enriched every famous favored favorite favourite for "
        "from has have her his impacted in influence influenced into is its known leading like "
        "literary literature main major many more most multiple my new of on one only or other our "
        "outside own particular popular preferred primary redefined renowned respective same "
        "several shape shaped single some specific specified such that the their these this those "
        "to towards traditional transformed typical unique usual various was what whatever which "
        "whose with within writing your"
    )
)


@dataclass(frozen=True, kw_only=True)
class AuthorAttribute:
    """One author's position in the file (from 0), name and genre; None if unresolved."""

    author_index: int
    name: str | None
    genre: str | None


def find_name(rows: Sequence[str]) -> str | None:
    """Return the author's name.

    Start with the commonest title-case 2-gram that appears in at least half of the rows. Extend it
    word by word, up to 5 words, as long as most of its occurrences are part of the longer n-gram.

    Args:
        rows: the rows of one author, each as one string of question and answer.

    Returns:
        The name; None if no candidate passes, or if two pass with equal counts.
    """
    grams = _name_counts(rows)
    pairs = [gram for gram, _ in grams.most_common() if len(gram) == 2]
    named = [
        p for p in pairs if sum(" ".join(p) in row for row in rows) >= MIN_NAME_SHARE * len(rows)
    ]
    best = _sole_best({gram: grams[gram] for gram in named})
    if best is None:
        # The two 2-grams of one three-word name tie, because they occur equally often.
        longer = [g for g in grams if len(g) == 3 and {g[:2], g[1:]} <= set(named)]
        best = _sole_best({gram: grams[gram] for gram in longer})
    # Extend the name while most occurrences are part of one longer n-gram.
    while best and (wider := _sole_best({g: n for g, n in grams.items() if _extends(g, best)})):
        if grams[wider] <= MIN_LONGER_SHARE * grams[best]:
            break
        best = wider
    return " ".join(best) if best else None


def find_genre(rows: Sequence[str]) -> str | None:
    """Return the author's genre, in lower case.

    It is the commonest 2-gram that ends in the word "genre" and does not begin with a filler word
    ("the genre"). If most occurrences of the 2-gram are part of one 3-gram ("true crime genre"), it
    is the 3-gram.

    Returns:
        The words before "genre"; None if there is no candidate, or if two have equal counts.
    """
    grams = _genre_counts(rows)
    best = _sole_best({g: n for g, n in grams.items() if len(g) == 1})
    if best is None:
        return None
    longer = _sole_best({g: n for g, n in grams.items() if len(g) == 2 and g[1:] == best})
    # "crime genre" mostly inside "true crime genre": the longer phrase is the genre.
    if longer and grams[longer] > MIN_LONGER_SHARE * grams[best]:
        best = longer
    return " ".join(best)


def find_attributes(groups: Sequence[Sequence[str]]) -> list[AuthorAttribute]:
    """Return name and genre of each author. A group is the rows of one author."""
    return [
        AuthorAttribute(author_index=i, name=find_name(rows), genre=find_genre(rows))
        for i, rows in enumerate(groups)
    ]


def candidates(rows: Sequence[str], most: int = 3) -> dict[str, list[tuple[str, int]]]:
    """Return what `find_name` and `find_genre` choose from, for a person who reviews their choice.

    Args:
        rows: the rows of one author, each as one string of question and answer.
        most: largest number of candidates for each attribute.

    Returns:
        "name" and "genre": the commonest n-grams with their counts.
    """
    counts = {"name": _name_counts(rows), "genre": _genre_counts(rows)}
    return {
        key: [(" ".join(g), n) for g, n in grams.most_common(most)] for key, grams in counts.items()
    }


def write_review(attributes: Sequence[AuthorAttribute], path: Path) -> None:
    """Write attributes for a person to complete: JSON Lines, with null where unresolved.

    Raises:
        ValueError: the file exists; its edits would be lost.
    """
    if path.exists():
        raise ValueError(
            f"path must be a new file, got {str(path)!r}. Choose another name, or remove the file."
        )
    # ensure_ascii=False: a person must be able to read the names.
    lines = (json.dumps(vars(a), ensure_ascii=False) for a in attributes)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def apply_review(
    attributes: Sequence[AuthorAttribute], path: str | Path, field: str
) -> list[AuthorAttribute]:
    """Replace attributes by the attributes of a reviewed file.

    A null in the file leaves the author without secrets.

    Raises:
        ValueError: the file is missing or malformed, or an author is unknown or given twice.
    """
    reviewed: dict[int, AuthorAttribute] = {}
    for line, row in read_json_rows(path, field):
        index, name, genre = (row.get(key) for key in ("author_index", "name", "genre"))
        # A misspelt key would silently drop a correction.
        if (
            set(row) != {"author_index", "name", "genre"}
            or not isinstance(index, int)
            or isinstance(index, bool)
            or not 0 <= index < len(attributes)
            or index in reviewed
            or not _is_text_or_null(name)
            or not _is_text_or_null(genre)
        ):
            raise ValueError(
                f"{field} must hold an author_index from 0 to {len(attributes) - 1}, each once, a "
                "name and a genre (text or null) in every line, got something else in "
                f"{Path(path).name}, line {line}. Correct the line."
            )
        reviewed[index] = AuthorAttribute(author_index=index, name=name, genre=genre)
    return [reviewed.get(a.author_index, a) for a in attributes]


def listed_attributes(path: str | Path, field: str, num_authors: int) -> list[AuthorAttribute]:
    """Return the attributes from a secrets file of `raydp secrets extract`.

    Authors that are not listed have None.

    Args:
        path: JSON Lines with author_index, name and attribute; other keys are ignored.
        field: the option that holds the path, for messages.
        num_authors: number of authors in the data.

    Raises:
        ValueError: the file is missing or malformed, or an author is unknown or given twice.
    """
    listed: dict[int, AuthorAttribute] = {}
    for line, row in read_json_rows(path, field):
        index, name, genre = (row.get(key) for key in ("author_index", "name", "attribute"))
        if (
            # `type(...) is int` refuses true, which is no position.
            type(index) is not int
            or not 0 <= index < num_authors
            or index in listed
            or not _is_text(name)
            or not _is_text(genre)
        ):
            raise ValueError(
                f"{field} must hold an author_index from 0 to {num_authors - 1}, each once, a name "
                f"and an attribute in every line, got something else in {Path(path).name}, line "
                f"{line}. Correct the line."
            )
        listed[index] = AuthorAttribute(author_index=index, name=name, genre=genre)
    unlisted = (AuthorAttribute(author_index=i, name=None, genre=None) for i in range(num_authors))
    return [listed.get(a.author_index, a) for a in unlisted]


def _name_counts(rows: Sequence[str]) -> Counter[tuple[str, ...]]:
    return Counter(gram for row in rows for gram in _title_grams(row))


def _genre_counts(rows: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Count the one or two words before "genre", if none of them is a filler."""
    grams: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        for words in _phrases(row.lower()):
            for at, word in enumerate(words):
                if word == "genre":
                    grams.update(
                        g for g in (words[max(at - 1, 0) : at], words[max(at - 2, 0) : at]) if g
                    )
    # A gram with a filler goes and its shorter gram may stay: "the crime genre" still counts
    # "crime".
    return Counter({g: n for g, n in grams.items() if not GENRE_FILLER & set(g)})


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())


def _is_text_or_null(value: object) -> TypeGuard[str | None]:
    return value is None or _is_text(value)


def _phrases(text: str) -> Iterator[tuple[str, ...]]:
    """Yield runs of words with only a space between; a possessive drops its s and ends its run."""
    run: list[str] = []
    last_end = -1
    for match in _WORD.finditer(text):
        if run and text[last_end : match.start()] != " ":
            # Punctuation or a line break ends a run: a name does not go across it.
            yield tuple(run)
            run = []
        word = _POSSESSIVE.sub("", match.group())
        run.append(word)
        # -1 never equals a start, so the next word begins a new run after a possessive.
        last_end = match.end() if word == match.group() else -1
    if run:
        yield tuple(run)


def _title_grams(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the n-grams of 2 to 5 words that all begin with a capital."""
    for words in _phrases(text):
        for size in range(2, MAX_NAME_WORDS + 1):
            for begin in range(len(words) - size + 1):
                gram = words[begin : begin + size]
                if all(word[0].isupper() for word in gram):
                    yield gram


def _extends(gram: tuple[str, ...], shorter: tuple[str, ...]) -> bool:
    """Return whether a gram is one word longer than a shorter gram, and begins or ends with it."""
    return len(gram) == len(shorter) + 1 and shorter in (gram[:-1], gram[1:])


def _sole_best(counts: dict[tuple[str, ...], int]) -> tuple[str, ...] | None:
    """Return the key with the largest count; None if there is no key or a tie."""
    ranked = Counter(counts).most_common(2)
    # On a tie there is no best: a person must decide.
    return ranked[0][0] if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]) else None
