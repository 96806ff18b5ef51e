"""Other prompts for secrets, read from a file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TypeGuard

from raydp.tasks.reading import read_json_rows


def read_paraphrases(path: str | Path, field: str, numbers: Collection[int]) -> dict[int, list[str]]:
    """Read a JSON Lines file with `secret` (the number of a secret) and `prompts` (a list of texts) in every line.

    Args:
        path: the file.
        field: the option that holds the path, for messages.
        numbers: the numbers of the secrets that are scored.

    Returns:
        secret number -> its prompts.

    Raises:
        ValueError: the file is missing or malformed, or a number is unknown or given twice. The message names the line
            and shows no content.
    """
    prompts: dict[int, list[str]] = {}
    for line, row in read_json_rows(path, field):
        number, texts = row.get("secret"), row.get("prompts")
        if set(row) != {"secret", "prompts"} or not _are_texts(texts) or not isinstance(number, int):
            raise ValueError(
                f"{field} must hold a secret's number and prompts, a list of texts, in every line, got something else "
                f"in {Path(path).name}, line {line}. Correct the line."
            )
        if number not in numbers or number in prompts or len(set(texts)) < len(texts):
            raise ValueError(
                f"{field} must name each secret of the task at most once, with distinct prompts, got secret {number} "
                f"in {Path(path).name}, line {line}. Correct the line; the numbers are those of the secrets' names."
            )
        prompts[number] = texts
    return prompts


def _are_texts(value: object) -> TypeGuard[list[str]]:
    """Return whether a value is a non-empty list of texts, none of them blank."""
    return isinstance(value, list) and bool(value) and all(isinstance(t, str) and t.strip() for t in value)
