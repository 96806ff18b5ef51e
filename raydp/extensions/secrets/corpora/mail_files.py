"""The published layouts of the Enron e-mails: CMU's folders and archive, and Kaggle's CSV.

All layouts are read one mail at a time, because the archive has 423 MB and the CSV file 1.4 GB.
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
class ParsedMail:
    """The parts of a mail that the preparation needs.

    Attributes:
        content: the body, with "\\n" as line ends.
        sender: the address in From, in lower case; "" if there is none.
        receivers: the addresses in To, in lower case.
    """

    content: str
    sender: str
    receivers: tuple[str, ...]


def read_mails(raw: Path) -> Iterator[ParsedMail]:
    """Yield the mails of a raw data set, by name in folders and by position in a file.

    Args:
        raw: a folder of folders with one mail per file (CMU's maildir), its archive (.tar.gz, .tgz
            or .tar), or a CSV file with the columns `file` and `message` (Kaggle), gzipped or not.

    Raises:
        ValueError: the path is none of these, or holds no mail.
    """
    # By what the path is, then by its name.
    if raw.is_dir():
        messages = _folder(raw)
    elif raw.name.endswith((".tar.gz", ".tgz", ".tar")) and raw.is_file():
        messages = _archive(raw)
    elif raw.name.endswith((".csv", ".csv.gz")) and raw.is_file():
        messages = _csv(raw)
    else:
        raise ValueError(
            "RAW must be a folder of mails, a .tar.gz archive of it or a .csv file, got "
            f"{str(raw)!r}. Check the path."
        )
    any_mail = False
    for message in messages:
        any_mail = True
        yield parse_mail(message)
    if not any_mail:
        raise ValueError(f"RAW must hold a mail, got none in {str(raw)!r}. Check the path.")


def parse_mail(message: bytes) -> ParsedMail:
    """Parse a mail from its bytes.

    If a declared encoding or character set is wrong, the text is read as UTF-8 or, failing that, as
    Latin-1.
    """
    parsed = BytesParser().parsebytes(message)
    return ParsedMail(
        content=_body(parsed).replace("\r\n", "\n").replace("\r", "\n"),
        sender=next(iter(_addresses(parsed, "From")), ""),
        receivers=_addresses(parsed, "To"),
    )


def _body(message: Message) -> str:
    """Return the text of a mail: the first plain part, if the mail has parts."""
    parts = [part for part in message.walk() if part.get_content_type() == "text/plain"]
    part = parts[0] if parts else message
    content = part.get_payload(decode=True)
    if not isinstance(content, bytes):
        return ""
    # The declared character set may be wrong; Latin-1 decodes anything.
    for charset in (part.get_content_charset(), "utf-8"):
        try:
            text = content.decode(charset or "utf-8")
            text.encode()  # refuses halves of surrogate pairs, which utf-7 can produce
            return text
        except (LookupError, ValueError):
            continue
    return content.decode("latin-1")


def _addresses(message: Message, header: str) -> tuple[str, ...]:
    """Return the addresses of a header, which may be folded, each once and in lower case."""
    lines = "\n".join(str(value) for value in message.get_all(header, []))
    return tuple(dict.fromkeys(address.lower() for address in _ADDRESS.findall(lines)))


def _folder(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[bytes]:
    """Yield files below a folder, without special files and links to parent folders."""
    above = (*above, folder.resolve())
    for place in sorted(folder.iterdir()):
        if place.name.startswith("."):
            continue
        if place.is_dir():
            # A link to a folder above would never end.
            if place.resolve() not in above:
                yield from _folder(place, above)
        elif place.is_file():
            yield place.read_bytes()


def _archive(path: Path) -> Iterator[bytes]:
    """Yield an archive's files; tarfile ends at a damaged header, so the rest must be empty."""
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
        raise ValueError(
            f"RAW must be a whole tar archive, got another file, {path.name}. Copy it again."
        ) from error


def _unpacked(path: Path) -> IO[bytes]:
    """Open the archive, unpacked if its content, not its name, is gzipped."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path)) if packed else path.open("rb")


def _csv(path: Path) -> Iterator[bytes]:
    import pandas as pd

    try:
        # The file is large, so it is read in pieces. Bytes that are not UTF-8 pass as surrogates
        # and come out unchanged.
        chunks = pd.read_csv(
            path.absolute(),
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
            f"RAW must be a CSV file with the column message, got {path.name} "
            f"({reason.rstrip('.')}). Take Kaggle's emails.csv, or name its column so."
        ) from error
