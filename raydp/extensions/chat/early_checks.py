"""The first look at files of conversations, before torch and a tokenizer are loaded."""

from __future__ import annotations

from collections.abc import Mapping

from raydp.extensions.chat.conversations import Form, conversation_of, form_of
from raydp.tasks.early_checks import Parameters, few_rows


def check_conversations(params: Parameters, files: Mapping[str, str]) -> None:
    """Check the rows of conversations, unless this takes long, and the files of secrets.

    Args:
        params, files: as in `raydp.tasks.early_checks.check_texts`.
    """
    # Imported here, because numpy takes longer than the other checks together.
    from raydp.extensions.chat.secrets import check_secrets
    from raydp.tasks.secret import read_secrets

    forms: dict[str, Form] = {}
    for field, place, row in few_rows(params, files):
        if field not in forms:
            forms[field] = params.get("form") or form_of(list(row), field)
        conversation_of(row, forms[field], field, place)
    # Prompts of secrets may be messages, but not those of controls.
    if "secrets" in files:
        check_secrets(files["secrets"], "task.secrets")
    if "controls" in files:
        read_secrets(files["controls"], "task.controls")
