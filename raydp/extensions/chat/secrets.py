"""Checks a secrets file before a tokeniser is loaded."""

from __future__ import annotations

import json
from pathlib import Path

from raydp.extensions.chat.messages import messages_of
from raydp.tasks.secret import read_secrets


def check_secrets(path: str | Path, field: str) -> None:
    """Check a secrets file, whose prompts may be lists of messages, without a tokeniser.

    Args:
        path, field: see `read_secrets`.

    Raises:
        ValueError: as `read_secrets`.
    """

    def texts_of(prompt: object, continuation: str, place: str) -> tuple[str, str]:
        messages_of(prompt, field, place)
        return json.dumps(prompt), continuation

    read_secrets(path, field, chat_texts_fn=texts_of)
