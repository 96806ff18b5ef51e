"""Files that a kill at any moment leaves whole or absent."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Temporary file, fsync, rename, fsync of the folder: after a kill or a power cut the file is whole or absent.

    Args:
        private: for the owner alone (mode 0600), from before the first byte on.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            if private:
                os.fchmod(stream.fileno(), 0o600)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError:  # such as a full disk, which the rest of the file would keep full
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
