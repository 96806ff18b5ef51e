"""Secrets of text tasks: read from a file or drawn from a space, and counted in the examples."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from raydp.search_spaces.names import columns_in_words
from raydp.tasks.row_files import read_json_rows
from raydp.tasks.task import Secret

NEVER_TRAINED_ON = {
    "secrets_above_limit": (
        "in what task.max_examples_per_user leaves out",
        "Raise it, or put these rows first.",
    ),
    "secrets_held_out": ("only in held-out rows", "Change task.split_seed, or give other secrets."),
    "secrets_cut_off": ("in no training example whole", "Raise task.max_length."),
    "secrets_outside_loss": (
        "only in messages that are not trained on",
        "Set task.loss: all, or give secrets that the assistant says.",
    ),
    "secrets_nowhere": ("in no row", "Take secrets from these data, with their white space."),
}
"""Name of a note on secrets that no loss is of -> where they are, and the remedy."""

ChatTextsFn = Callable[[object, str, str], tuple[str, str]]
"""(list of messages, continuation or "", file and line) -> texts (prompt, continuation)."""


def read_secrets(
    path: str | Path, field: str, *, chat_texts_fn: ChatTextsFn | None = None
) -> list[Secret]:
    """Read a JSON Lines file of secrets.

    Args:
        path: one object per line, with the string `prompt` (s1) and either `continuation` (s2 of a
            verbatim secret) or `attribute` (A(x) of an attribute secret). Other keys are ignored.
            White space counts.
        field: the option that holds the path, for messages.
        chat_texts_fn: converts a prompt that is a list of messages; None if prompts are texts.

    Raises:
        ValueError: the file is missing, empty or malformed, or has a secret twice; the message
            names field, file and line.

    Source: Hu et al. 2025, Table 5 (s1, s2) and App. B.6 (attributes).
    """
    secrets: dict[str, Secret] = {}
    for line, row in read_json_rows(path, field):
        place = f"{Path(path).name}, line {line}"
        # A prompt of messages becomes the text that the chat template writes.
        if chat_texts_fn is not None and isinstance(row.get("prompt"), list):
            row = _with_texts(row, place, chat_texts_fn)
        secret = replace(_secret_of(row, field, place), number=line)
        # The id is a hash of the content, so equal secrets meet here.
        if secret.id in secrets:
            raise ValueError(
                f"{field} must hold each secret once, got a repeated one in {place}. Remove the "
                "line."
            )
        secrets[secret.id] = secret
    if not secrets:
        raise ValueError(
            f"{field} must hold at least one secret, got none in {Path(path).name}. Add lines to "
            "it."
        )
    return list(secrets.values())


def verbatim_texts(secrets: Sequence[Secret]) -> list[str]:
    """Return s1 + s2 of the verbatim secrets."""
    return [s.prompt + s.continuation for s in secrets if s.kind == "verbatim"]


def mentions(text: str, attribute: str) -> bool:
    """Return whether a text has an attribute as whole words, case-folded, as in `air`."""
    return (
        re.search(rf"(?<!\w){re.escape(attribute.casefold())}(?!\w)", text.casefold()) is not None
    )


def occurs_in(secret: Secret, text: str) -> bool:
    """Return whether a text contains a verbatim secret's whole string, or mentions an attribute."""
    if secret.kind == "verbatim":
        return secret.prompt + secret.continuation in text
    return mentions(text, secret.continuation)


def counted(secrets: Sequence[Secret], texts: Sequence[str]) -> list[Secret]:
    """Set `count` of each secret to the number of texts that contain it."""
    return [replace(s, count=sum(occurs_in(s, text) for text in texts)) for s in secrets]


def nearly_found(secrets: Sequence[Secret], texts: Sequence[str]) -> str:
    """Return a message: the number of texts that hold a secret's continuation."""
    rows = sum(any(secret.continuation in text for secret in secrets) for text in texts)
    after = f"a continuation occurs in {rows} row{'s' if rows > 1 else ''}, after other text"
    return after if rows else "no row holds a continuation"


def never_trained_on(
    secrets: Sequence[Secret], kept: Sequence[Secret], places: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Return note -> names of secrets: those that no training example holds, all and by reason.

    Args:
        secrets, kept: all secrets, and those that are scored.
        places: name in `NEVER_TRAINED_ON` -> the texts there, before they are cut and before
            held-out texts with a secret are left out. The first place that holds a secret counts.
    """
    numbers = {secret.number for secret in kept}
    absent = [secret for secret in secrets if secret.number not in numbers]
    notes: dict[str, list[str]] = {"secrets_absent": [secret.name for secret in absent]}
    for secret in absent:
        found = (
            name for name, texts in places.items() if any(occurs_in(secret, text) for text in texts)
        )
        notes.setdefault(next(found, "secrets_nowhere"), []).append(secret.name)
    return notes


def _with_texts(row: Mapping[str, object], place: str, fn: ChatTextsFn) -> dict[str, object]:
    """Return a row with its prompt and continuation as texts."""
    given = row.get("continuation")
    # An attribute has no continuation: only its prompt is written.
    prompt, continuation = fn(row["prompt"], given if isinstance(given, str) else "", place)
    texts: dict[str, object] = {**row, "prompt": prompt}
    return {**texts, "continuation": continuation} if isinstance(given, str) else texts


def _secret_of(row: Mapping[str, object], field: str, place: str) -> Secret:
    # Exactly one of the two keys decides the secret's kind.
    keys = [key for key in ("continuation", "attribute") if key in row]
    prompt, hidden = row.get("prompt"), row.get(keys[0]) if len(keys) == 1 else None
    if not (
        isinstance(prompt, str) and isinstance(hidden, str) and prompt.strip() and hidden.strip()
    ):
        raise ValueError(
            f"{field} must hold a prompt and either a continuation or an attribute, as strings "
            f"that are not blank, in every line, got {columns_in_words(row)} in {place}. Correct "
            "the line."
        )
    if keys == ["continuation"]:
        return Secret(prompt=prompt, continuation=hidden)
    return Secret(prompt=prompt, continuation=hidden, kind="attribute")


@dataclass(frozen=True, kw_only=True)
class Digits:
    """A space of planted secrets: num_digits decimal digits after a fixed text.

    Attributes:
        num_digits: number of digits.
        before: text before the digits in every continuation, such as a space.
    """

    num_digits: int
    before: str = ""

    @property
    def size(self) -> int:
        size: int = 10**self.num_digits
        return size

    def continuation(self, index: int) -> str:
        return f"{self.before}{index:0{self.num_digits}d}"
