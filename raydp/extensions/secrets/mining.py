"""Secrets for a proposed spec, extracted from its data: `raydp init --mine-secrets`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from raydp.analysis.statistics.results import given
from raydp.extensions.secrets.commands import (
    NoSecretFoundError,
    extract_from_chat,
    extract_from_mail,
)
from raydp.extensions.secrets.mail import MailOptions
from raydp.models.base_models import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def mine_secrets(
    data: Path,
    output: Path,
    *,
    model: str,
    column: str | None,
    template: Callable[[PreTrainedTokenizerBase], str | None],
    heldout_fraction: float,
    user_column: str | None,
) -> str | None:
    """Extract the secrets of the data into a new file.

    The data are divided as the proposed task will, so that no secret is from the held-out part.

    Args:
        data: rows of texts, or conversations.
        output: the new file.
        model: name of the base model.
        column: the column of texts; None for conversations.
        template: returns the chat template of conversations for a tokenizer.
        heldout_fraction: share of the rows that the task holds out.
        user_column: the column of users, if there is one.

    Returns:
        Why the data hold no secret, in words, and no file is written; None if the file is written.
    """
    try:
        if column is None:
            named = template(load_tokenizer(model))
            options = {"heldout_fraction": heldout_fraction, "split_seed": 0}
            options_of_rows = given(template=named, user_column=user_column)
            extract_from_chat(data, output, model, MailOptions(), {**options, **options_of_rows})
        else:
            extract_from_mail(
                data,
                output,
                model,
                MailOptions(),
                column=column,
                heldout_fraction=heldout_fraction,
                split_seed=0,
                user_column=user_column,
            )
    except NoSecretFoundError as error:
        return error.reason
    return None
