"""Larger and denser versions of question-answer data, with paraphrases of its rows.

Source: Hu et al. 2025, App. B.4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from raydp.extensions.paper_data.qa import Row
from raydp.tasks.row_files import read_json_rows

Copies = int | tuple[int, int]


def text_digest(text: str) -> str:
    """Return 16 hex digits of a text's SHA-256. A file of paraphrases names its texts by them."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_paraphrases(path: str | Path, field: str, rows: Sequence[Row]) -> dict[int, list[str]]:
    """Read paraphrases of answers, by the row's position in the data.

    Args:
        path: JSON Lines with `row` (from 0), `paraphrases` (a list of answers) and optionally `of`,
            the `text_digest` of the answer, which detects paraphrases of other data. Other keys are
            ignored.
        field: the option that holds the path, for messages.
        rows: the data.

    Raises:
        ValueError: the file is missing or malformed, or a row is unknown, given twice, or of other
            data.
    """
    paraphrases: dict[int, list[str]] = {}
    for line, entry in read_json_rows(path, field):
        row, texts = entry.get("row"), _texts(entry.get("paraphrases"))
        place = f"{Path(path).name}, line {line}"
        # `type(...) is int` refuses true, which is no row number.
        if type(row) is not int or not 0 <= row < len(rows) or row in paraphrases or texts is None:
            raise ValueError(
                f"{field} must hold a row from 0 to {len(rows) - 1}, each once, and a list of "
                f"paraphrases that are not blank in every line, got something else in {place}. "
                "Correct the line."
            )
        # The digest detects a file of paraphrases of other data, whose row numbers would fit by
        # chance.
        if entry.get("of") not in (None, text_digest(rows[row].answer)):
            raise ValueError(
                f"{field} must paraphrase the rows of task.path, got another text in {place}. "
                "Paraphrase this data."
            )
        paraphrases[row] = texts
    return paraphrases


def _texts(value: object) -> list[str] | None:
    """Return a list of non-blank texts, stripped of blanks; None for any other value."""
    if not isinstance(value, list) or not all(
        isinstance(text, str) and text.strip() for text in value
    ):
        return None
    return [text.strip() for text in value]


def copies_of_authors(copies: Copies, num_authors: int, seed: int) -> list[int]:
    """Return the number of versions of each author's rows.

    Args:
        copies: one number for all authors, or two: half of the authors, drawn with the seed, get
            the second.
        num_authors: number of training authors; if it is odd, the second group is the smaller one.
        seed: assigns the authors to the groups.

    Source: Hu et al. 2025, App. B.4 (density-adjusted TOFU; 1:7, 2:6 and 3:5).
    """
    if isinstance(copies, int):
        return [copies] * num_authors
    second = set(np.random.default_rng(seed).permutation(num_authors)[: num_authors // 2].tolist())
    return [copies[author in second] for author in range(num_authors)]


def with_paraphrases(
    authors: Sequence[Sequence[Row]],
    copies: Sequence[int],
    paraphrases: dict[int, list[str]],
    field: str,
) -> list[list[Row]]:
    """Return each author's rows, followed by the first paraphrases of each row.

    Args:
        authors: the rows of every author with paraphrases, from the first author of the file on.
        copies: number of versions of each author's rows, the row itself included.
        paraphrases: the result of `read_paraphrases`.
        field: the option that holds the file, for the message.

    Raises:
        ValueError: a row has too few paraphrases.
    """
    grown, position = [], 0
    # Paraphrases are numbered by the row's position in the file, from its first author on.
    for rows, count in zip(authors, copies, strict=True):
        versions = list(rows)
        for row in rows:
            answers = paraphrases.get(position, [])
            if len(answers) < count - 1:
                raise ValueError(
                    f"{field} must hold {count - 1} paraphrases of row {position} with these "
                    f"task.copies, got {len(answers)}. Make more with `raydp data paraphrase`, or "
                    "lower task.copies."
                )
            versions += [
                Row(question=row.question, answer=answer) for answer in answers[: count - 1]
            ]
            position += 1
        grown.append(versions)
    return grown
