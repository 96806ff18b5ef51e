"""Commands in messages, quoted so that a shell runs what is printed."""

from __future__ import annotations

import shlex


def shell_line(*words: object) -> str:
    """Return words as one line for a shell.

    A name with spaces, quotes or `$(...)` stays one word.
    """
    return shlex.join(str(word) for word in words)
