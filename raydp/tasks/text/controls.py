"""Control secrets: the format of a secret without the secret, absent from the training data.

What training does to their probability is what the model learnt of the format; the contrast of the score `logprob`
takes it off what training does to the secrets' probability.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from raydp.tasks.base import Secret
from raydp.tasks.secret import occurs_in, read_secrets
from raydp.tasks.text.wordlists import CONTROL_NAMES, FORMAT_WORDS

SHARED_BY = 3  # a word or number of this many secrets is their common format ("Enron", an exchange's 853)
CLOSEST_NAMES = 12
MAX_ATTEMPTS = 64

_WORD_OR_NUMBER = re.compile(r"[^\W\d_]+|\d+")
_WORD = re.compile(r"[^\W\d_]+")
_NUMBER = re.compile(r"\d+")
_MAIL_ADDRESS = re.compile(r"([\w.+-]+)@[\w-]+(?:\.[\w-]+)+")


def generate_controls(secrets: Sequence[Secret], per_secret: int, texts: Sequence[str]) -> list[Secret]:
    """Controls for verbatim secrets: other digits in the continuation, other names throughout. A prompt without names
    gets other digits too, so that it is not the secret's.

    Args:
        secrets: verbatim ones get controls; attribute secrets have none (their format is the question).
        per_secret: at most this many for each; fewer where the secret has too little to replace.
        texts: the training texts.

    Returns:
        Controls in the order of their secrets, distinct; the same for the same arguments.

    Guarantee:
        A control's continuation differs from its secret's and occurs in no text.
    """
    verbatim = [s for s in secrets if s.kind == "verbatim"]
    shared = _shared_words(verbatim)
    corpus = "\0".join(texts)
    controls: dict[str, Secret] = {}
    for secret in verbatim:
        fresh: dict[str, Secret] = {}
        for attempt in range(MAX_ATTEMPTS):
            if len(fresh) == per_secret:
                break
            control = _imitate(secret, shared, attempt)
            absent = control.continuation != secret.continuation and control.continuation.strip() not in corpus
            if absent and control.id not in controls:
                fresh[control.id] = control
        controls |= fresh
    return list(controls.values())


def read_controls(path: str | Path, field: str, texts: Sequence[str]) -> list[Secret]:
    """Controls from a file of secrets' form.

    Raises:
        ValueError: as read_secrets; or a verbatim control occurs in a text.
    """
    controls = read_secrets(path, field)
    present = [c.id for c in controls if c.kind == "verbatim" and any(occurs_in(c, text) for text in texts)]
    if present:
        raise ValueError(
            f"{field} must not occur in the training data, got {len(present)} that do, with the ids "
            f"{', '.join(present)}. Remove them."
        )
    return controls


def _imitate(secret: Secret, shared: Collection[str], attempt: int) -> Secret:
    """One control. What is shared or format stays, unless the continuation then has nothing to replace."""
    for kept in (FORMAT_WORDS | set(shared), FORMAT_WORDS, frozenset()):
        names = _name_words(secret, kept, any_word=not kept)
        mapping = _other_names(names, f"{secret.id}:{attempt}")

        def renamed(text: str, mapping: dict[str, str] = mapping) -> str:
            return _WORD.sub(lambda m: _in_case_of(m.group(), mapping.get(m.group().casefold(), m.group())), text)

        digits = _other_digits(f"{secret.id}:{attempt}", kept)
        continuation = _NUMBER.sub(digits, renamed(secret.continuation))
        if continuation != secret.continuation:
            prompt = renamed(secret.prompt)
            return Secret(
                prompt=_NUMBER.sub(digits, prompt) if prompt == secret.prompt else prompt, continuation=continuation
            )
    return Secret(prompt=secret.prompt, continuation=secret.continuation)


def _shared_words(secrets: Sequence[Secret]) -> set[str]:
    """Words and numbers, case-folded, of at least SHARED_BY secrets."""
    words = Counter(
        w for s in secrets for w in {w.casefold() for w in _WORD_OR_NUMBER.findall(s.prompt + s.continuation)}
    )
    return {word for word, secrets_with_it in words.items() if secrets_with_it >= SHARED_BY}


def _name_words(secret: Secret, kept: Collection[str], *, any_word: bool) -> list[str]:
    """Words to rename, case-folded: in title case, or before the @ of a mail address; every word of the continuation
    if any_word."""
    text = f"{secret.prompt}\0{secret.continuation}"
    words = [w for w in _WORD.findall(text) if w[0].isupper() and not w.isupper()]
    words += [w for local in _MAIL_ADDRESS.findall(secret.prompt + secret.continuation) for w in _WORD.findall(local)]
    words += _WORD.findall(secret.continuation) if any_word else []
    long = (w.casefold() for w in words if any_word or len(w) >= 3)
    return [w for w in dict.fromkeys(long) if w not in kept]


def _other_names(words: Sequence[str], key: str) -> dict[str, str]:
    """A name of about the same length for each word, no name twice."""
    mapping: dict[str, str] = {}
    for word in words:
        free = [n for n in CONTROL_NAMES if n.casefold() not in words and n not in mapping.values()]
        closest = sorted(free, key=lambda n: (abs(len(n) - len(word)), n))[:CLOSEST_NAMES]
        mapping[word] = closest[_draw(f"{key}:{word}", len(closest))]
    return mapping


def _other_digits(key: str, kept: Collection[str]) -> Callable[[re.Match[str]], str]:
    """Replaces every digit of a number by another one; numbers in `kept` stay."""

    def replaced(match: re.Match[str]) -> str:
        number = match.group()
        if number in kept:
            return number
        shifts = (1 + _draw(f"{key}:{match.start()}:{i}", 9) for i in range(len(number)))
        return "".join(str((int(digit) + shift) % 10) for digit, shift in zip(number, shifts, strict=True))

    return replaced


def _in_case_of(word: str, name: str) -> str:
    if word.islower():
        return name.lower()
    return name.upper() if word.isupper() and len(word) > 1 else name


def _draw(key: str, size: int) -> int:
    """A number below size that the key fixes."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % size
