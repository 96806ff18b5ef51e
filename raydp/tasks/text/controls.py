"""Control secrets: texts with the format of a secret that are absent from the training data.

Training changes the probability of a control only by what the model learns of the format. The
contrast of the score `logprob` subtracts this change from the change of the secrets' probability.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from raydp.tasks.secret import occurs_in, read_secrets
from raydp.tasks.task import Secret
from raydp.tasks.text.wordlists import CONTROL_NAMES, FORMAT_WORDS

# a word or number in this many secrets belongs to their format ("Enron", the 853 of an exchange)
SHARED_BY = 3
CLOSEST_NAMES = 12
MAX_ATTEMPTS = 64

_WORD_OR_NUMBER = re.compile(r"[^\W\d_]+|\d+")
_WORD = re.compile(r"[^\W\d_]+")
_NUMBER = re.compile(r"\d+")
_MAIL_ADDRESS = re.compile(r"([\w.+-]+)@[\w-]+(?:\.[\w-]+)+")


def controls_of(
    path: str | None, secrets: Sequence[Secret], per_secret: int, texts: Sequence[str]
) -> list[Secret]:
    """Read a task's controls, or generate them. They occur in no training text."""
    if path:
        return read_controls(path, "task.controls", texts)
    return generate_controls(secrets, per_secret, texts)


def generate_controls(
    secrets: Sequence[Secret], per_secret: int, texts: Sequence[str]
) -> list[Secret]:
    """Generate controls for verbatim secrets: other digits in the continuation, other names.

    If the prompt has no names, its digits change too, so that it differs from the secret's prompt.

    Args:
        secrets: verbatim secrets get controls; attribute secrets get none (their format is the
            question).
        per_secret: largest number of controls of each secret; fewer if the secret has too little to
            replace.
        texts: the training texts.

    Returns:
        Distinct controls in the order of their secrets; deterministic in the arguments.

    Guarantee:
        A control's continuation differs from its secret's continuation and occurs in no text.
    """
    verbatim = [s for s in secrets if s.kind == "verbatim"]
    shared = _shared_words(verbatim)
    # NUL separates the texts, so that no match goes across two of them.
    corpus = "\0".join(texts)
    controls: dict[str, Secret] = {}
    for secret in verbatim:
        fresh: dict[str, Secret] = {}
        # An attempt may yield a control that exists already or occurs in the data: try again, but
        # not forever.
        for attempt in range(MAX_ATTEMPTS):
            if len(fresh) == per_secret:
                break
            # Absence is checked without surrounding blanks, which a text may have differently.
            control = _imitate(secret, shared, attempt)
            absent = (
                control.continuation != secret.continuation
                and control.continuation.strip() not in corpus
            )
            if absent and control.id not in controls:
                fresh[control.id] = control
        controls |= fresh
    return list(controls.values())


def read_controls(path: str | Path, field: str, texts: Sequence[str]) -> list[Secret]:
    """Read controls from a file in the format of secrets.

    Raises:
        ValueError: as read_secrets, or a verbatim control occurs in a text.
    """
    controls = read_secrets(path, field)
    present = [
        c.id for c in controls if c.kind == "verbatim" and any(occurs_in(c, text) for text in texts)
    ]
    if present:
        raise ValueError(
            f"{field} must not occur in the training data, got {len(present)} that do, with the "
            f"ids {', '.join(present)}. Remove them."
        )
    return controls


def _imitate(secret: Secret, shared: Collection[str], attempt: int) -> Secret:
    """Make one control.

    Shared words and format words stay, unless nothing else in the continuation can change.
    """
    # Keep less and less: shared words and format words, format words alone, nothing.
    for kept in (FORMAT_WORDS | set(shared), FORMAT_WORDS, frozenset()):
        names = _name_words(secret, kept, any_word=not kept)
        mapping = _other_names(names, f"{secret.id}:{attempt}")

        # The default binds this round's mapping: a closure would see the last one.
        def renamed(text: str, mapping: dict[str, str] = mapping) -> str:
            return _WORD.sub(
                lambda m: _in_case_of(m.group(), mapping.get(m.group().casefold(), m.group())), text
            )

        digits = _other_digits(f"{secret.id}:{attempt}", kept)
        # Names change before digits: a prompt without names must still differ from the secret's.
        continuation = _NUMBER.sub(digits, renamed(secret.continuation))
        if continuation != secret.continuation:
            prompt = renamed(secret.prompt)
            return Secret(
                prompt=_NUMBER.sub(digits, prompt) if prompt == secret.prompt else prompt,
                continuation=continuation,
            )
    return Secret(prompt=secret.prompt, continuation=secret.continuation)


def _shared_words(secrets: Sequence[Secret]) -> set[str]:
    """Return the words and numbers, case-folded, that at least SHARED_BY secrets contain."""
    words = Counter(
        w
        for s in secrets
        # Each secret counts a word once: a word that one secret repeats is not shared.
        for w in {w.casefold() for w in _WORD_OR_NUMBER.findall(s.prompt + s.continuation)}
    )
    return {word for word, secrets_with_it in words.items() if secrets_with_it >= SHARED_BY}


def _name_words(secret: Secret, kept: Collection[str], *, any_word: bool) -> list[str]:
    """Return the words to rename, case-folded: those in title case, or before an address's @.

    With any_word, also every word of the continuation.
    """
    text = f"{secret.prompt}\0{secret.continuation}"
    words = [w for w in _WORD.findall(text) if w[0].isupper() and not w.isupper()]
    words += [
        w
        for local in _MAIL_ADDRESS.findall(secret.prompt + secret.continuation)
        for w in _WORD.findall(local)
    ]
    words += _WORD.findall(secret.continuation) if any_word else []
    # Words of one or two letters are mostly initials and "to", "by": format, not names.
    long = (w.casefold() for w in words if any_word or len(w) >= 3)
    return [w for w in dict.fromkeys(long) if w not in kept]


def _other_names(words: Sequence[str], key: str) -> dict[str, str]:
    """Return a name of similar length for each word; no name is used twice."""
    mapping: dict[str, str] = {}
    # Similar length keeps the number of tokens, and so the probability, comparable.
    for word in words:
        free = [n for n in CONTROL_NAMES if n.casefold() not in words and n not in mapping.values()]
        closest = sorted(free, key=lambda n: (abs(len(n) - len(word)), n))[:CLOSEST_NAMES]
        mapping[word] = closest[_draw(f"{key}:{word}", len(closest))]
    return mapping


def _other_digits(key: str, kept: Collection[str]) -> Callable[[re.Match[str]], str]:
    """Return a function that replaces every digit of a number by another; `kept` numbers stay."""

    def replaced(match: re.Match[str]) -> str:
        number = match.group()
        if number in kept:
            return number
        # A shift of 1 to 9 modulo 10 never gives the same digit.
        shifts = (1 + _draw(f"{key}:{match.start()}:{i}", 9) for i in range(len(number)))
        return "".join(
            str((int(digit) + shift) % 10) for digit, shift in zip(number, shifts, strict=True)
        )

    return replaced


def _in_case_of(word: str, name: str) -> str:
    if word.islower():
        return name.lower()
    return name.upper() if word.isupper() and len(word) > 1 else name


def _draw(key: str, size: int) -> int:
    """Return a number below size that depends on the key alone."""
    # Eight bytes make the bias of the modulus negligible, below 2^-50.
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % size
