"""Conversations of data that nobody has described: what `raydp init` asks of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raydp.extensions.chat.conversations import FORMS, Form, conversation_of, fitting_forms
from raydp.extensions.chat.templates import ChatTemplate, TemplateName

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class SurveyedConversations:
    """The service `conversations`: how the rows of some data are conversations.

    Attributes:
        form: the form of the rows.
    """

    form: Form

    @classmethod
    def of_row(cls, row: Mapping[str, object]) -> SurveyedConversations | None:
        """Return the conversations that begin with this row; None if the row has another form.

        Raises:
            ValueError: the row has several forms.
        """
        fitting = fitting_forms(row)
        if len(fitting) > 1:
            raise ValueError(
                f"DATA must hold rows of one form, got the columns of {' and '.join(fitting)}. "
                "Remove the columns of one."
            )
        return cls(fitting[0]) if fitting else None

    @property
    def trained_columns(self) -> set[str]:
        """The columns that are trained on."""
        return {*FORMS[self.form], *({"input"} if self.form == "instruction" else ())}

    def template(
        self, tokenizer: PreTrainedTokenizerBase, rows: Iterable[Mapping[str, object]]
    ) -> TemplateName | None:
        """Return the template that the spec must name; None if the task's own choice fits."""
        if tokenizer.chat_template:
            return None
        plain = self.form != "messages" and all(
            isinstance(row[c], str) for row in rows for c in FORMS[self.form]
        )
        return None if plain else "chatml"

    def check_secrets(self, path: str | Path, field: str) -> None:
        """Check a secrets file, whose prompts may be lists of messages.

        Raises:
            ValueError: the file is malformed.
        """
        # Imported here, because numpy takes longer than a look at the rows.
        from raydp.extensions.chat.secrets import check_secrets

        check_secrets(path, field)

    def texts(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: TemplateName | None,
        sample: Iterable[tuple[str, Mapping[str, object]]],
    ) -> list[str]:
        """Return rows, given with their places, as the task writes them."""
        written = ChatTemplate(tokenizer, template)
        return [
            "".join(
                part.text
                for part in written.parts(conversation_of(row, self.form, "DATA", place), place)
            )
            for place, row in sample
        ]
