"""Error messages and exit codes of failed commands.

A failed command prints one message on stderr, not a traceback.
"""

from __future__ import annotations

import errno

from raydp.system.output import stderr

_PATHS: dict[type[OSError], tuple[str, str]] = {
    FileNotFoundError: ("exist", "Create its folder, or correct the path"),
    NotADirectoryError: (
        "lead through folders only",
        "Give a path in which no part before the last is a file",
    ),
    IsADirectoryError: ("be a file", "Give a file's path, not a folder's"),
    PermissionError: (
        "be accessible to you",
        "Change its permissions (`ls -l` shows them), or choose another path",
    ),
    FileExistsError: ("be free or a folder", "Move away what is there, or choose another path"),
}
"""User mistakes about a path: what the path must be, and the remedy."""

NO_MEMORY = (
    "memory must suffice for the command, got too little. End other programs, raise the limit of "
    "this process (`ulimit -v`, a container's or a job's limit), or train fewer runs at a time "
    "(cluster.max_concurrent_trials). A sweep goes on with --resume."
)


def explain(error: ValueError | OSError, field: str = "path") -> tuple[str, int]:
    """Return the message and the exit code: 2 for mistakes that the user can correct, else 1.

    Args:
        error: the error.
        field: the option, the argument or the field of the spec that holds the path.
    """
    # ValueErrors already hold their rule and remedy.
    if isinstance(error, ValueError):
        return str(error), 2
    for kind, (rule, remedy) in _PATHS.items():
        if isinstance(error, kind):
            got = repr(str(error.filename)) if error.filename is not None else str(error)
            reason = f" ({error.strerror})" if error.filename is not None and error.strerror else ""
            return f"{field} must {rule}, got {got}{reason}. {remedy}.", 2
    # The file name is cut: it is too long for a message, too.
    if error.errno == errno.ENAMETOOLONG:
        return (
            f"{field} must be short enough for the file system, got "
            f"{str(error.filename)[:100]!r}.... Shorten it.",
            2,
        )
    return str(error) or type(error).__name__, 1


def is_out_of_memory(error: Exception) -> bool:
    """Return whether memory was short: in Python, torch, a thread or a library, or for Ray."""
    # Libraries report a failed allocation by text alone.
    texts = (
        "can't allocate memory",
        "can't start new thread",
        "failed to map segment",
        "Cannot allocate memory",
        "OutOfMemoryError",  # Ray ends its processes while the machine has some memory left
    )
    return isinstance(error, MemoryError) or any(t in f"{type(error)} {error}" for t in texts)


def complain(message: str) -> None:
    """Print a message on stderr as an error, also if the command is quiet."""
    stderr.quiet = False
    stderr.print(f"error: {message}", style="red", markup=False)
