"""Secrets of e-mails and other texts: frequent n-grams and detected values.

Source: Hu et al. 2025, App. B.6.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, cast

from raydp.extensions.paper_data.enron import unwanted
from raydp.extensions.secrets.detectors import KINDS, Found, Kind, find
from raydp.extensions.secrets.files import texts_of
from raydp.extensions.secrets.merging import merge_grams
from raydp.extensions.secrets.ngrams import Tokens, frequent_ngrams
from raydp.extensions.secrets.rules import Piece, in_contexts, pieces
from raydp.tasks.row_files import read_column
from raydp.tasks.text.corpus import is_held_out

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHUNK = 512
LENGTHS = (50, 20, 10)
"""Lengths of n-grams in tokens, the paper's first.

Signatures and repeated lines of short mails have no more than 10 tokens, so longer n-grams miss
them.
"""
Row = Sequence[str]
"""The texts of a row of the data: a mail, or the messages of a conversation."""
Holders = Mapping[str, set[int]]
"""Text -> the rows that hold it. A text that many rows repeat is searched once."""
Place = tuple[set[int], str, Found]
"""Where a detected value is: the rows that hold a text, the text, and the value in it."""
PLAIN = "formatted"
"""The type of frequent text that no rule recognises."""
LEADING = ("key", "number")
"""The types that lead the file.

A contact block can hold such a value in its prompt, so it is always its own secret.
"""
SHARED = 0.8
"""Least share of the rows of a value's commonest prompt in which its own prompt occurs.

The longest such prompt is taken.
"""
COMMON_SHARE = 0.1
"""Share of all rows above which a continuation is boilerplate, if above `COMMON_ROWS` too."""
COMMON_ROWS = 10
MANY_PROMPTS = 5
"""A continuation in more than this many times its secret's rows follows many prompts."""


@dataclass(frozen=True, kw_only=True)
class MailOptions:
    """Options that decide what counts as a secret of a text.

    Attributes:
        n: tokens of an n-gram; None for `LENGTHS`. Of the shorter lengths, only recognised
            sequences are kept, because most frequent short sequences are ordinary language.
        top: number of n-grams that are merged.
        min_count: number of rows that a sequence or a detected value must occur in. A value can
            follow different prompts in these rows, and a secret has one of the prompts.
        detect: kinds of values that detectors look for.
        max_detected: number of values kept of each kind, the most common first.
        region: country of phone numbers without a country code, two letters.
        order: "secret" lists detected and recognised values before other frequent text, and drops
            boilerplate. "count" lists the most common first, and drops nothing.
    """

    n: int | None = None
    top: int = 500
    min_count: int = 2
    detect: tuple[Kind, ...] = KINDS
    max_detected: int = 100
    region: str = "US"
    order: Literal["secret", "count"] = "secret"


class SecretRow(TypedDict):
    """A row of a secrets file. `count` is the number of rows that hold the secret."""

    prompt: str
    continuation: str
    type: str
    source: str
    count: int


def training_texts(
    path: Path, column: str, *, heldout_fraction: float, split_seed: int, user_column: str | None
) -> list[Row]:
    """Return the texts that a task trains on, each as a row by itself.

    With a column `split`, these are its rows "train". Otherwise they are the texts that the task
    `enron` trains on with this fraction and seed, except that short texts are not left out. With a
    column of users, the user's name decides in place of the text, as in the task.

    Raises:
        ValueError: the file is malformed, or leaves no text.
    """
    texts = list[tuple[str, str]]()
    users = (
        repeat(None)
        if user_column is None
        else read_column(path, user_column, "DATA", column_field="--user-column", users=True)
    )
    # What is held out is not trained on, so it cannot be memorised.
    for (text, row), user in zip(texts_of(path, column), users, strict=False):
        if (
            (row["split"] != "train")
            if "split" in row
            else is_held_out(user or text, heldout_fraction, split_seed)
        ):
            continue
        if unwanted(text) is None:
            texts.append((text, user or text))
    if not texts:
        raise ValueError(
            f"DATA must leave texts to train on, got none in {path.name}. Give more data."
        )
    # As in the task, a user's text that comes twice is trained on once.
    return [(text,) for text, _ in dict.fromkeys(texts)]


def extract(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    options: MailOptions,
    *,
    progress: Callable[[str], None] = lambda step: None,
) -> tuple[list[SecretRow], dict[str, int | str]]:
    """Extract the secrets of training texts.

    Args:
        rows: the texts of each row, such as the messages of a conversation.
        tokenizer: tokenizer of the model to be trained. Frequency is counted in its tokens.
        options: see MailOptions.
        progress: called with the name of the current step.

    Returns:
        Rows of a secrets file (see raydp.tasks.secret.read_secrets) with `type`, `source` and
        `count`, in the order of the options. `count` is the number of rows that hold the secret.
        Also counts of every step.
    """
    holders = _holders(rows)
    frequent, steps = _frequent(rows, list(holders), tokenizer, options, progress)
    # Keep the sequences that occur in enough rows.
    progress("counting the secrets")
    counts = {piece: _num_rows(piece.text, holders) for piece in frequent}
    # Of two pieces that differ only in their division, the first one stays.
    distinct = list({piece.text: piece for piece in reversed(frequent)}.values())[::-1]
    frequent = [piece for piece in distinct if counts[piece] >= options.min_count]
    # Add detected values, and resolve overlaps with the sequences.
    detected = _detected(holders, options, progress)
    new = _beside(detected.kept, frequent)
    # If unrecognised text holds a detected value, the value is the secret.
    num_merged = len(frequent)
    values = [piece.continuation for piece in new]
    frequent = [p for p in frequent if p.type != PLAIN or not any(v in p.text for v in values)]
    holding = num_merged - len(frequent)
    # Drop boilerplate, and put the secrets in order.
    if options.order == "secret":
        most = max(COMMON_SHARE * len(rows), COMMON_ROWS)
        frequent = [p for p in frequent if not _is_boilerplate(p, counts[p], holders, most)]
    secrets = [_row(piece, "ngram", counts[piece]) for piece in frequent]
    secrets += [_row(piece, "detector", count) for piece, count in new.items()]
    secrets = _ordered(secrets, options, len(rows))
    in_sequences = len(detected.kept) - len(new)
    notes: dict[str, int | str] = {
        "rows": len(rows),
        **steps,
        "secrets_of_sequences": len(frequent),
        "sequences_with_detected_value": holding,
        "boilerplate_dropped": num_merged - holding - len(frequent),
        **{f"{kind}_found": detected.found[kind] for kind in options.detect},
        "secrets_of_detectors": len(new),
        "detected_in_sequences_too": in_sequences,
        **detected.left_out,
        "secrets": len(secrets),
    }
    if detected.found and not new:
        notes["reason"] = _why_none(detected, in_sequences, options.min_count)
    return secrets, notes


def _holders(rows: Sequence[Row]) -> Holders:
    """Return the rows that hold each text."""
    holders: dict[str, set[int]] = {}
    for i, row in enumerate(rows):
        for text in row:
            holders.setdefault(text, set()).add(i)
    return holders


def _num_rows(part: str, holders: Holders) -> int:
    """Return the number of rows with a text that holds the part."""
    return len(set[int]().union(*(rows for text, rows in holders.items() if part in text)))


def _frequent(
    rows: Sequence[Row],
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    options: MailOptions,
    progress: Callable[[str], None],
) -> tuple[list[Piece], dict[str, int]]:
    """Find frequent n-grams of each length, and merge them into sequences. Also return counts.

    Args:
        rows: the rows, of whose texts `texts` has each once.
    """
    progress("tokenising")
    ids: dict[str, list[int]] = {}
    for begin in range(0, len(texts), CHUNK):
        part = list(texts[begin : begin + CHUNK])
        encoded = tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]
        ids |= zip(part, encoded, strict=True)
    tokens = Tokens.of([[ids[text] for text in row] for row in rows])
    frequent: list[Piece] = []
    steps: dict[str, int] = {}
    for n in LENGTHS if options.n is None else (options.n,):
        progress(f"counting and merging {n}-grams")
        grams = frequent_ngrams(tokens, n, options.top, min_count=options.min_count)
        sequences = merge_grams(grams, tokens)
        decoded = [cast("str", tokenizer.decode(list(sequence))) for sequence in sequences]
        whole = [w for text in decoded if (w := _whole_words(text, texts))]
        candidates = dict.fromkeys(
            piece for w in whole for piece in pieces(w, region=options.region)
        )
        frequent += candidates if not frequent and not steps else _recognised(candidates, frequent)
        # The counts that are reported are those of the first length.
        steps = steps or {
            "tokens": len(tokens.ids),
            "ngrams": len(grams.ids),
            "ngram_count_first": int(grams.counts[0]) if len(grams.ids) else 0,
            "ngram_count_last": int(grams.counts[-1]) if len(grams.ids) else 0,
            "sequences": len(sequences),
        }
    return frequent, steps


def _beside(detected: Mapping[Piece, int], frequent: Sequence[Piece]) -> dict[Piece, int]:
    """Return the detected values that no recognised sequence holds, and those that lead."""
    known = [piece.text for piece in frequent if piece.type != PLAIN]
    return {
        piece: count
        for piece, count in detected.items()
        if piece.type in LEADING or not any(piece.continuation in text for text in known)
    }


def _ordered(secrets: Sequence[SecretRow], options: MailOptions, num_rows: int) -> list[SecretRow]:
    """Return the secrets in the order of the options, of those of one text the first."""
    ranked = options.order == "secret"
    unique: dict[tuple[str, str], SecretRow] = {}
    for row in sorted(secrets, key=lambda r: (_place(r, num_rows) if ranked else 0, -r["count"])):
        unique.setdefault((row["prompt"], row["continuation"]), row)
    return list(unique.values())


def _is_boilerplate(piece: Piece, count: int, holders: Holders, most: float) -> bool:
    """Return whether unrecognised text is boilerplate.

    Then its continuation is in more than `most` rows, or follows many other prompts too.
    """
    if piece.type != PLAIN:
        return False
    held = _num_rows(piece.continuation.strip(), holders)
    return held > most or held > MANY_PROMPTS * count


def _recognised(candidates: Iterable[Piece], known: Sequence[Piece]) -> list[Piece]:
    """Return the recognised pieces that neither contain a known piece nor are part of one."""
    return [
        piece
        for piece in candidates
        if piece.type != PLAIN
        and not any(piece.text in one.text or one.text in piece.text for one in known)
    ]


def _place(row: SecretRow, num_rows: int) -> int:
    """Return the rank of a secret.

    The order is: keys and numbers, other recognised values, values in most rows, other text.
    """
    if row["type"] == PLAIN:
        return 3
    if row["count"] > num_rows / 2:  # such as the sender's own address in every footer
        return 2
    return 0 if row["type"] in LEADING else 1


def _row(piece: Piece, source: str, count: int) -> SecretRow:
    return {
        "prompt": piece.prompt,
        "continuation": piece.continuation,
        "type": piece.type,
        "source": source,
        "count": count,
    }


def _whole_words(sequence: str, texts: Sequence[str]) -> str:
    """Return the sequence without partial words at its ends, or "" if no text holds it."""
    sequence = sequence.strip("\ufffd")  # bytes of a character that is split between tokens
    # Take any text that holds the sequence, and cut at the borders of its words.
    for text in texts:
        begin = text.find(sequence)
        if begin < 0:
            continue
        end = begin + len(sequence)
        while begin and begin < end and text[begin - 1].isalnum() and text[begin].isalnum():
            begin += 1
        while end < len(text) and begin < end and text[end].isalnum() and text[end - 1].isalnum():
            end -= 1
        return text[begin:end]
    return ""


@dataclass(frozen=True, kw_only=True)
class Detected:
    """Detected values.

    Attributes:
        kept: the values as secrets, with the number of rows that each secret occurs in.
        found: kind -> number of distinct values.
        left_out: reason -> number of distinct values that are not kept.
    """

    kept: dict[Piece, int] = field(default_factory=dict)
    found: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, int] = field(default_factory=dict)


def _detected(holders: Holders, options: MailOptions, progress: Callable[[str], None]) -> Detected:
    """Detect values in texts, and give each value one prompt."""
    # Find the places of each value.
    places: dict[tuple[Kind, str], list[Place]] = defaultdict(list)
    for i, (text, rows) in enumerate(holders.items()):
        if i % CHUNK == 0:
            progress(f"looking for {', '.join(options.detect)} in texts {i}/{len(holders)}")
        for value in (
            find(text, region=options.region, kinds=options.detect) if options.detect else []
        ):
            places[value.kind, _value(text, value)].append((rows, text, value))
    # Choose the prompts.
    secrets: dict[Kind, list[tuple[Piece, int]]] = {kind: [] for kind in options.detect}
    too_rare = without_prompt = 0
    for (kind, _), where in places.items():
        if len(set[int]().union(*(rows for rows, *_ in where))) < options.min_count:
            too_rare += 1
        elif secret := _with_prompt(where):
            secrets[kind].append(secret)
        else:
            without_prompt += 1
    # Keep the most common values of each kind.
    kept: dict[Piece, int] = {}
    for values in secrets.values():
        kept |= dict(sorted(values, key=lambda secret: -secret[1])[: options.max_detected])
    left_out = {
        "detected_too_rare": too_rare,
        "detected_without_prompt": without_prompt,
        "detected_above_maximum": sum(map(len, secrets.values())) - len(kept),
    }
    return Detected(kept=kept, found=Counter(kind for kind, _ in places), left_out=left_out)


def _with_prompt(where: Sequence[Place]) -> tuple[Piece, int] | None:
    """Return a value with the longest prompt that most of its rows share, and their number.

    The number is of rows that hold both.

    Return None if no text precedes the value anywhere.
    """
    # Every place of the value gives several prompts; count the rows of each.
    rows_of: dict[Piece, set[int]] = defaultdict(set)
    for rows, text, value in where:
        for piece in in_contexts(text, value):
            rows_of[piece] |= rows
    counts = {piece: len(rows) for piece, rows in rows_of.items()}
    shared = [secret for secret in counts.items() if secret[1] >= SHARED * max(counts.values())]
    return max(shared, key=lambda secret: len(secret[0].prompt), default=None)


def _why_none(detected: Detected, in_sequences: int, min_count: int) -> str:
    """Return a sentence that says why no detected value became a secret of its own."""
    counts = {
        f"in fewer than {min_count} rows (--min-count)": detected.left_out["detected_too_rare"],
        "without any text before them, so they have no prompt": detected.left_out[
            "detected_without_prompt"
        ],
        "in the sequences already": in_sequences,
    }
    parts = [f"{number} are {why}" for why, number in counts.items() if number]
    return f"no detected value became a secret of its own: {'; '.join(parts)}"


def _value(text: str, value: Found) -> str:
    """Return what identifies a value: digits of a phone, or letters without case and blanks."""
    written = text[value.begin : value.end]
    if value.kind == "phone":
        return "".join(c for c in written if c.isdigit())[-10:]
    return "".join(written.split()).casefold() if value.kind != "key" else written
