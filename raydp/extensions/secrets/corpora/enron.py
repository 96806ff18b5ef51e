"""Convert raw Enron e-mails to the file of the task `enron`, in Hu et al.'s four steps.

Source: Hu et al. 2025, App. B.1.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from raydp.extensions.paper_data.enron import unwanted
from raydp.extensions.secrets.corpora.mail_files import read_mails
from raydp.extensions.secrets.files import require_new
from raydp.tasks.secret import verbatim_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from raydp.tasks.task import Secret

TOKENISED_TOGETHER = 512
PROGRESS_EVERY = 5000


@dataclass(frozen=True, kw_only=True)
class EnronOptions:
    """Options for choosing and dividing the raw mails.

    Attributes:
        top: a mail is kept if its sender is among this number of most frequent senders and of most
            frequent receivers.
        min_tokens: shorter mails are left out.
        validation_fraction, test_fraction: shares of the mails, assigned by a keyed hash of the
            content.
        split_seed: key of the hash.
    """

    top: int = 100
    min_tokens: int = 30
    validation_fraction: float = 0.07
    test_fraction: float = 0.035
    split_seed: int = 0


def prepare_enron(
    raw: Path,
    output: Path,
    tokenizer: PreTrainedTokenizerBase,
    options: EnronOptions,
    secrets: Sequence[Secret] = (),
    *,
    progress: Callable[[str], None] = lambda step: None,
) -> dict[str, int]:
    """Write JSON Lines (gzipped) with `content`, `sender` and `split` (train, validation or test).

    Step 1 leaves out contents that occurred before. Step 2 keeps mails whose sender is among the
    most frequent senders (of From) and the most frequent receivers (of To), both counted after step
    1. Step 3 removes log messages, tables and short mails. Step 4 splits the mails, and removes
    validation and test mails that hold a secret. The distinct mails are stored in a temporary file
    beside the output, so memory holds no text: 16 bytes of hash per mail, and the counts of
    addresses.

    Args:
        raw: see `mail_files.read_mails`.
        output: path of a new file, which gets mode 0600.
        tokenizer: counts the tokens of step 3.
        options: see EnronOptions.
        secrets: secrets that validation and test mails may not hold. The task removes its own
            secrets likewise.
        progress: called with the name of the current step.

    Returns:
        The counts after each step.

    Raises:
        ValueError: the file exists or is not named .gz, the fractions leave no training data, the
            raw data are not readable, or no mail is left to train on.

    Source: Hu et al. 2025, App. B.1. Ours are the order of de-duplication and counting, the choice
    of To as "receivers", and the shares of the split (theirs: 2,725 and 1,279 of 37,512 after step
    4).
    """
    _check(output, options)  # first, because the steps take minutes
    notes: dict[str, int] = {}
    # Everything is written beside the output, and gets its name only when it is whole.
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".enron-") as scratch:
        spool = Path(scratch) / "distinct.jsonl.gz"
        # Two passes: who is frequent is known only after all mails have been read.
        senders, receivers = _deduplicate(raw, spool, notes, progress)
        common = _most(senders, options.top) & _most(receivers, options.top)
        notes["frequent_senders"] = len(common)
        part = Path(scratch) / "mails.jsonl.gz"
        # Mode 0600 from its creation on: there is no moment at which others can read it.
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file, gzip.open(file, "wt", encoding="utf-8") as lines:
            _select(spool, lines, common, tokenizer, options, secrets, notes, progress)
        if not notes["train"]:
            raise ValueError(_none_left(notes))
        part.rename(output)
    return notes


def _check(output: Path, options: EnronOptions) -> None:
    """Raise ValueError if the output cannot be made, or its parts leave no training data."""
    require_new(output)
    if not output.name.endswith(".gz"):
        raise ValueError(
            f"--output must end in .jsonl.gz, got {output.name!r}: it is written gzipped. Rename "
            "it."
        )
    if options.validation_fraction + options.test_fraction >= 1:
        raise ValueError(
            "--validation-fraction and --test-fraction must be below 1 together, got "
            f"{options.validation_fraction:g} and {options.test_fraction:g}. Lower them: the rest "
            "is the training data."
        )


def _none_left(notes: dict[str, int]) -> str:
    """Return the message on how many mails each step left."""
    distinct, frequent = notes["after_step_1_distinct"], notes["after_step_2_frequent_senders"]
    remedy = (
        "Raise --top, or check that they have From and To"
        if not frequent
        else "Lower --min-tokens or a fraction"
    )
    return (
        f"RAW must leave mails to train on, got none of {notes['mails']}: {distinct} distinct, "
        f"{frequent} of frequent senders, {notes['after_step_3_filters']} after logs, tables and "
        f"short ones went. {remedy}."
    )


def _deduplicate(
    raw: Path, spool: Path, notes: dict[str, int], progress: Callable[[str], None]
) -> tuple[Counter[str], Counter[str]]:
    """Do step 1: write the distinct mails. Return how often each address sent and received."""
    seen: set[bytes] = set()
    senders: Counter[str] = Counter()
    receivers: Counter[str] = Counter()
    read = 0
    with gzip.open(spool, "wt", encoding="utf-8", compresslevel=1) as lines:
        for read, mail in enumerate(read_mails(raw), start=1):
            if read % PROGRESS_EVERY == 0:
                progress(f"step 1: {read} mails read, {len(seen)} distinct")
            # A hash of 16 bytes for each mail instead of its text.
            digest = hashlib.sha256(mail.content.encode("utf-8", "surrogatepass")).digest()[:16]
            if digest in seen:
                continue
            seen.add(digest)
            senders[mail.sender] += 1
            receivers.update(mail.receivers)
            lines.write(json.dumps({"content": mail.content, "sender": mail.sender}) + "\n")
    senders.pop("", None)
    notes |= {"mails": read, "after_step_1_distinct": len(seen)}
    return senders, receivers


def _select(
    spool: Path,
    lines: IO[str],
    common: set[str],
    tokenizer: PreTrainedTokenizerBase,
    options: EnronOptions,
    secrets: Sequence[Secret],
    notes: dict[str, int],
    progress: Callable[[str], None],
) -> None:
    """Do steps 2 to 4 on the distinct mails."""
    strings = verbatim_texts(secrets)
    counts: Counter[str] = Counter()
    for batch in _batches(spool):
        counts["seen"] += len(batch)
        progress(f"steps 2 to 4: {counts['seen']}/{notes['after_step_1_distinct']} mails")
        # Step 2: frequent senders. Step 3: no logs, tables or short mails.
        frequent = [row for row in batch if row["sender"] in common]
        clean = []
        for row in frequent:
            if (reason := unwanted(row["content"])) is None:
                clean.append(row)
            else:
                counts[reason] += 1
        counts["frequent"] += len(frequent)
        for row, length in zip(clean, _lengths(tokenizer, clean), strict=True):
            if length < options.min_tokens:
                counts["short"] += 1
                continue
            counts["long"] += 1
            # Step 4: the split.
            split = split_of(row["content"], options)
            # A held-out mail with a secret would make utility depend on the leak.
            if split != "train" and any(string in row["content"] for string in strings):
                counts["leaking"] += 1
                continue
            counts[split] += 1
            lines.write(json.dumps({**row, "split": split}) + "\n")
    notes |= {
        "after_step_2_frequent_senders": counts["frequent"],
        "log_messages_removed": counts["log"],
        "tables_removed": counts["tabs"],
        "too_short_removed": counts["short"],
        "after_step_3_filters": counts["long"],
        "heldout_with_secret_removed": counts["leaking"],
        **{split: counts[split] for split in ("train", "validation", "test")},
    }


def split_of(content: str, options: EnronOptions) -> str:
    """Return the part that a mail belongs to, by its content alone."""
    # A keyed hash in [0, 1), so that no other mail changes a mail's part.
    digest = hashlib.sha256(
        f"{options.split_seed}\0{content}".encode("utf-8", "surrogatepass")
    ).digest()
    place = int.from_bytes(digest[:8]) / 2**64
    if place < options.validation_fraction:
        return "validation"
    return "test" if place < options.validation_fraction + options.test_fraction else "train"


def _batches(spool: Path) -> Iterator[list[dict[str, str]]]:
    batch: list[dict[str, str]] = []
    with gzip.open(spool, "rt", encoding="utf-8") as lines:
        for line in lines:
            batch.append(json.loads(line))
            if len(batch) == TOKENISED_TOGETHER:
                yield batch
                batch = []
    if batch:
        yield batch


def _lengths(tokenizer: PreTrainedTokenizerBase, rows: Sequence[dict[str, str]]) -> list[int]:
    """Return the number of tokens of each mail, without special tokens."""
    if not rows:
        return []
    contents = [row["content"] for row in rows]
    return [
        len(ids)
        for ids in tokenizer(contents, add_special_tokens=False, verbose=False)["input_ids"]
    ]


def _most(counts: Counter[str], number: int) -> set[str]:
    """Return the most frequent addresses. Equally frequent ones are ordered by name."""
    return {
        address
        for address, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:number]
    }
