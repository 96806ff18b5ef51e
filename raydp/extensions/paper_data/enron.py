"""Enron e-mails with the secrets of Hu et al. 2025 (App. B.1, Table 5)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from raydp.system.locations import Location
from raydp.tasks.row_files import read_column
from raydp.tasks.text.corpus import Texts, WindowedTask

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from raydp.tasks.text.language import LanguageModelingTask

MAX_TABS = 100
# Compared without white space, because the printed patterns and the data differ in white space.
LOG_PATTERNS = (
    "No ancillary schedules awarded. No variances detected. LOG MESSAGES: PARSING FILE -->> O:",
    "HourAhead schedule download failed. Manual intervention required",
)


class EnronTask(WindowedTask):
    """Causal language modelling on e-mails.

    Step 2 of App. B.1 (frequent senders) needs fields that are not in the file; `raydp data enron`
    carries it out.

    Source: Hu et al. 2025, App. B.1.
    """

    early_check: ClassVar[str] = "raydp.tasks.early_checks:check_secrets"

    path: Location
    """JSON Lines or CSV file, gzipped or not, with the text of a mail in the column `content`."""
    secrets: Location
    """JSON Lines file of secrets with `prompt` and `continuation`."""
    min_tokens: Annotated[int, Field(ge=2)] = 30
    """Mails of fewer tokens are dropped; 30 as in Hu et al. 2025."""
    heldout_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the mails that is held out, by a keyed hash of the mail.

    Held-out mails with a secret are dropped.
    """
    heldout_split: Literal["validation", "test"] | None = None
    """Instead of a fraction, the part of a file of `raydp data enron` to evaluate on.

    The part `train` is trained on.
    """
    max_windows_per_mail: Annotated[int, Field(ge=1)] | None = None
    """With window `lines`, largest number of windows of one mail: those that contain a secret
    first, then those at its beginning; all by default. With 1 the privacy unit is in effect the
    mail."""

    user_column: str | None = None
    """Column that names the user, for `privacy.unit: user`: `sender` in a file of
    `raydp data enron`; `content` makes every mail a user. A user is then held out completely,
    unless the file is split."""

    @model_validator(mode="after")
    def _limit_needs_lines(self) -> EnronTask:
        if self.max_windows_per_mail is not None and self.window != "lines":
            raise ValueError(
                f"task.max_windows_per_mail must go with window lines, got window {self.window}, "
                "which has one window per mail. Remove it."
            )
        return self

    @model_validator(mode="after")
    def _one_split(self) -> EnronTask:
        # A field that is left out cannot be told from one that repeats the default.
        default = type(self).model_fields["heldout_fraction"].default
        if self.heldout_split is not None and self.heldout_fraction != default:
            raise ValueError(
                "task.heldout_fraction must be left out with task.heldout_split, got "
                f"{self.heldout_fraction:g}. Remove one."
            )
        return self

    def build(self, tokenizer: PreTrainedTokenizerBase) -> LanguageModelingTask:
        """Read, clean, split and cut the mails.

        Raises:
            ValueError: a file is missing or malformed, no mail is left to train or evaluate on, or
                no secret occurs in the training examples.
        """
        # Leave out log messages and tables (step 3 of App. B.1).
        mails = read_column(self.path, "content", "task.path")
        reasons = [unwanted(mail) for mail in mails]
        removed = Counter(reason for reason in reasons if reason)
        kept = [i for i, reason in enumerate(reasons) if reason is None]
        # Each mail is a user by itself, or a column names the users.
        users = mails if self.user_column == "content" else None
        if users is None and self.user_column is not None:
            users = read_column(
                self.path,
                self.user_column,
                "task.path",
                column_field="task.user_column",
                users=True,
            )
        # A file of `raydp data enron` has a split of its own, which replaces the random one.
        heldout = None
        if self.heldout_split is not None:
            splits = read_column(self.path, "split", "task.path", column_field="task.path's column")
            heldout = [mails[i] for i in kept if splits[i] == self.heldout_split]
            kept = [i for i in kept if splits[i] == "train"]
        texts = Texts(
            train=[mails[i] for i in kept],
            heldout=heldout,
            users=None if users is None else [users[i] for i in kept],
            noun="e-mail",
            column="content",
            user_column=self.user_column,
            notes={
                "texts_read": len(mails),
                "log_messages_removed": removed["log"],
                "tables_removed": removed["tabs"],
            },
        )
        return self._assemble(tokenizer, texts, self.heldout_fraction, self.max_windows_per_mail)


def unwanted(mail: str) -> str | None:
    """Return "log" or "tabs" if a mail is left out (Hu et al. 2025, App. B.1, step 3), or None."""
    squeezed = "".join(mail.split())
    if any("".join(pattern.split()) in squeezed for pattern in LOG_PATTERNS):
        return "log"
    return "tabs" if mail.count("\t") > MAX_TABS else None
