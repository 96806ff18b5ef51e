"""The published layouts of the Enron e-mails: the CMU folders, the CMU archive, and Kaggle's emails.csv.

All are read one mail at a time: the archive has 423 MB, the CSV file 1.4 GB.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import IO, cast

MESSAGES_AT_A_TIME = 1000
_ADDRESS = re.compile(r"[^\s<>,;:\"'()]+@[^\s<>,;:\"'()]+")


@dataclass(frozen=True, kw_only=True)
class Mail:
    """What the preparation needs of a mail.

    Attributes:
        content: the body, with "\\n" at the ends of lines.
        sender: the address in From, in lower case; "" if there is none.
        receivers: the addresses in To, in lower case.
    """

    content: str
    sender: str
    receivers: tuple[str, ...]


def read_mails(raw: Path) -> Iterator[Mail]:
    """The mails of a raw data set, in the order of their names in folders and in the order of a file.

    Args:
        raw: a folder of folders with one mail per file (CMU's maildir), its archive (.tar.gz, .tgz or .tar), or a CSV
            file with the columns `file` and `message` (Kaggle), gzipped or not.

    Raises:
        ValueError: it is none of these, or holds no mail.
    """
    if raw.is_dir():
        messages = _folder(raw)
    elif raw.name.endswith((".tar.gz", ".tgz", ".tar")) and raw.is_file():
        messages = _archive(raw)
    elif raw.name.endswith((".csv", ".csv.gz")) and raw.is_file():
        messages = _csv(raw)
    else:
        raise ValueError(
            f"RAW must be a folder of mails, a .tar.gz archive of it or a .csv file, got {str(raw)!r}. Check the path."
        )
    found = False
    for message in messages:
        found = True
        yield parse_mail(message)
    if not found:
        raise ValueError(f"RAW must hold a mail, got none in {str(raw)!r}. Check the path.")


def parse_mail(message: bytes) -> Mail:
    """A mail from its bytes. What a header declares and does not hold (encodings, character sets) is read as UTF-8 or,
    failing that, Latin-1."""
    parsed = BytesParser().parsebytes(message)
    return Mail(
        content=_body(parsed).replace("\r\n", "\n").replace("\r", "\n"),
        sender=next(iter(_addresses(parsed, "From")), ""),
        receivers=_addresses(parsed, "To"),
    )


def _body(message: Message) -> str:
    """The text of a mail, of one in parts the first plain one."""
    parts = [part for part in message.walk() if part.get_content_type() == "text/plain"]
    part = parts[0] if parts else message
    content = part.get_payload(decode=True)
    if not isinstance(content, bytes):
        return ""
    for charset in (part.get_content_charset(), "utf-8"):
        try:
            text = content.decode(charset or "utf-8")
            text.encode()  # utf-7 gives halves of surrogate pairs, which are no text
            return text
        except (LookupError, ValueError):
            continue
    return content.decode("latin-1")


def _addresses(message: Message, header: str) -> tuple[str, ...]:
    """The addresses of a header that may be folded; each once, in lower case."""
    lines = "\n".join(str(value) for value in message.get_all(header, []))
    return tuple(dict.fromkeys(address.lower() for address in _ADDRESS.findall(lines)))


def _folder(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[bytes]:
    """The files of a folder and of those in it, without pipes and the like and without links that lead up again."""
    above = (*above, folder.resolve())
    for place in sorted(folder.iterdir()):
        if place.name.startswith("."):
            continue
        if place.is_dir():
            if place.resolve() not in above:
                yield from _folder(place, above)
        elif place.is_file():
            yield place.read_bytes()


def _archive(path: Path) -> Iterator[bytes]:
    """The files of an archive, read to its end: tarfile takes a damaged header for the end and checks no checksum."""
    try:
        with _unpacked(path) as packed, tarfile.open(fileobj=packed, mode="r|") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None and not Path(member.name).name.startswith("."):
                    yield file.read()
            stream = cast(IO[bytes], archive.fileobj)
            while rest := stream.read(1 << 16):
                if rest.strip(b"\0"):
                    raise tarfile.ReadError("a damaged header before its end")
    except (tarfile.ReadError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"RAW must be a whole tar archive, got another file, {path.name}. Copy it again.") from error


def _unpacked(path: Path) -> IO[bytes]:
    """The archive's bytes, by content and not by name."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path)) if packed else path.open("rb")


def _csv(path: Path) -> Iterator[bytes]:
    import pandas as pd

    try:
        chunks = pd.read_csv(
            path,
            usecols=["message"],
            dtype=str,
            keep_default_na=False,
            encoding="utf-8",
            encoding_errors="surrogateescape",
            chunksize=MESSAGES_AT_A_TIME,
        )
        for chunk in chunks:
            for message in chunk["message"]:
                yield message.encode("utf-8", "surrogateescape")
    except (ValueError, pd.errors.ParserError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"RAW must be a CSV file with the column message, got {path.name} ({reason.rstrip('.')}). Take Kaggle's "
            "emails.csv, or name its column so."
        ) from error
