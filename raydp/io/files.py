"""Writing of files such that a kill at any moment leaves them whole or absent."""

import os
import threading
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file such that it is whole or absent after a kill or a power cut.

    The content goes to a temporary file, then fsync, rename, and fsync of the folder.

    Args:
        path: the file.
        content: its bytes.
        private: whether only the owner may read it (mode 0600), from before the first byte on.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.part")
    try:
        with part.open("wb") as stream:
            if private:
                os.fchmod(stream.fileno(), 0o600)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError:  # such as a full disk: free its space
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
