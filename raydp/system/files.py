"""Writing of files such that a kill at any moment leaves them whole or absent."""

import hashlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

LONGEST_FOLDER = 40
"""Bytes of a folder's path. Ray's sockets have up to 65 more, and the system takes at most 107."""

PROBE_BYTES, PROBE_SECONDS = 1 << 16, 1.0
"""Size of the file that is tried on a disk, and the time between two tries."""
LONGEST_PART = 50
"""Characters of a file's name in its temporary file's name, which file systems limit."""


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file such that it is whole or absent after a kill or a power cut.

    The content goes to a temporary file, then fsync, rename, and fsync of the folder.

    Args:
        path: the file.
        content: its bytes.
        private: whether only the owner may read it (mode 0600), from before the first byte on.
    """
    # Process and thread are in the name, so that two writers never share a part.
    part = path.with_name(
        f".{path.name[:LONGEST_PART]}.{os.getpid()}-{threading.get_native_id()}.part"
    )
    try:
        with part.open("wb") as stream:
            # The mode is set before the first byte, so that nobody else can ever read the content.
            if private:
                os.fchmod(stream.fileno(), 0o600)
            stream.write(content)
            stream.flush()
            # fsync comes before the rename: after a power cut, the new name must not hold an empty
            # file.
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError:  # such as a full disk: free its space
        part.unlink(missing_ok=True)
        raise
    # fsync of the folder makes the rename itself durable.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def wait_until_writable(folder: Path, *, seconds: float, stop_fn: Callable[[], bool]) -> None:
    """Wait until a file can be written into a folder, such as on a disk that was full or read-only.

    Args:
        folder: the folder.
        seconds: how long to wait at most.
        stop_fn: returns whether to stop waiting.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not stop_fn():
        # Write real bytes: a full disk lets an empty file be created.
        with suppress(OSError), tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(bytes(PROBE_BYTES))
            stream.flush()
            return
        time.sleep(PROBE_SECONDS)


def digest_of(files: Iterable[Path]) -> str:
    """Return the SHA-256 (hex) over the names and contents of files, sorted by path."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def make_private(folder: Path) -> None:
    """Create a folder that only its owner may enter, whatever the umask.

    A folder that exists keeps its mode.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        # mkdir applies the umask to its mode; chmod does not.
        folder.mkdir(mode=0o700)
        folder.chmod(0o700)


def private_folder(name: str) -> Path:
    """Return a folder for temporary files that only this user may enter, whatever the umask.

    It is the same folder in every process of the user. Its path is short: the path of a socket in
    it may have at most 107 bytes.
    """
    # The system's folder may be too long for a socket; /tmp is short.
    for base in (tempfile.gettempdir(), "/tmp"):
        folder = Path(base) / f"raydp-{os.getuid()}" / name
        if len(os.fsencode(folder)) <= LONGEST_FOLDER:
            break
    for part in (folder.parent, folder):
        with suppress(FileExistsError):
            part.mkdir(mode=0o700)
        found = part.lstat()  # another user may have made it, or a link in its place
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return Path(tempfile.mkdtemp(prefix=f"{name}-", dir="/tmp"))
        part.chmod(0o700)
    return folder
