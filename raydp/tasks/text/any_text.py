"""Any text as a task: a file of rows, or a Hugging Face data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, model_validator

from raydp.search_spaces.names import columns_in_words, kind_of
from raydp.system.locations import local_copy
from raydp.tasks.data_sets import load_data_set
from raydp.tasks.row_files import is_file_of_rows, read_column
from raydp.tasks.text.corpus import RowsSection, Texts, WindowedTask
from raydp.tasks.users import require_named

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from raydp.tasks.text.language import LanguageModelingTask


class TextTask(RowsSection, WindowedTask):
    """Causal language modelling on the rows of a file or data set."""

    early_check: ClassVar[str] = "raydp.tasks.early_checks:check_texts"
    instead: ClassVar[str] = "use max_windows_per_row"

    path: str
    """A JSON Lines, CSV or text file (a row per line), gzipped or not, or a Parquet file; or a
    folder that datasets.save_to_disk wrote; or the name of a data set on the Hugging Face hub."""
    column: str = "text"
    """Name of the column with the text; in a text file it is `text`."""
    split: str | None = None
    """Part of a data set to train on; by default `train` if the data set has parts."""
    heldout_path: str | None = None
    """A separate file, folder or data set to evaluate on, instead of a fraction."""
    heldout_split: str | None = None
    """Part of the data set to evaluate on, instead of a fraction."""
    heldout_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the rows that is held out, by a keyed hash of the text; 0.1 by default.

    However the held-out part is chosen, held-out rows that contain a secret are dropped, unless the
    part is declared public.
    """
    heldout_is_public: bool = False
    """Declare that heldout_path is public and contains nobody's private data.

    The private data then do not shape it: held-out rows that contain a secret or are also trained
    on stay.
    """
    max_windows_per_row: Annotated[int, Field(ge=1)] | None = None
    """With window `lines`, largest number of windows of one row, those that contain a secret first;
    all by default."""
    user_column: str | None = None
    """Column that names the user, for `privacy.unit: user`; the column of the texts makes every row
    a user. A user is then held out completely, and a duplicate is removed only if it is of the same
    user. No name may be blank."""
    max_examples_per_user: Annotated[int, Field(ge=1)] | None = None
    """With user_column, largest number of examples of one user, from the first row on."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> TextTask:
        # Compare real paths: a second name of the private file does not make it public.
        own = (
            self.heldout_path is not None
            and Path(self.heldout_path).resolve() != Path(self.path).resolve()
        )
        if self.heldout_is_public and not own:
            raise ValueError(
                "task.heldout_is_public must go with a task.heldout_path of its own, got "
                f"{self.heldout_path!r}. Part of the private data is not public: give another "
                "file, or remove it."
            )
        # Options without an effect are errors.
        if self.max_windows_per_row is not None and self.window != "lines":
            raise ValueError(
                f"task.max_windows_per_row must go with window lines, got window {self.window}, "
                "which has one window per row. Remove it."
            )
        return self

    def build(self, tokenizer: PreTrainedTokenizerBase) -> LanguageModelingTask:
        """Read, split and cut the rows.

        Raises:
            ValueError: the data or a file is missing or malformed, no text is left to train or
                evaluate on, or no secret occurs in the training examples.
        """
        # Read the training texts and their users. If the texts are the users, read them once.
        train = _read(self.path, self.column, self.split, "task.path", "task.split")
        users = train if self.user_column == self.column else None
        if users is None and self.user_column is not None:
            users = _read(
                self.path, self.user_column, self.split, "task.path", "task.split", users=True
            )
        # Read the held-out texts, if they are given separately.
        heldout = None
        if self.heldout_path or self.heldout_split:
            heldout = _read(
                self.heldout_path or self.path,
                self.column,
                self.heldout_split,
                "task.heldout_path" if self.heldout_path else "task.path",
                "task.heldout_split",
            )
        # The steps from here on are those of all tasks on texts.
        texts = Texts(
            train=train,
            heldout=heldout,
            users=users,
            noun="row",
            column=self.column,
            user_column=self.user_column,
            notes={"texts_read": len(train)},
            heldout_is_public=self.heldout_is_public,
        )
        return self._assemble(
            tokenizer,
            texts,
            self.heldout_fraction or 0.1,
            self.max_windows_per_row,
            self.max_examples_per_user,
        )


def _read(
    path: str, column: str, split: str | None, field: str, split_field: str, *, users: bool = False
) -> list[str]:
    """Return a column, texts or with `users` names, of a file, a saved or a hub data set."""
    # Files are read by raydp, so that messages never quote a row; data sets by their own package.
    column_field = "task.user_column" if users else "task.column"
    path = str(local_copy(path, field))
    if is_file_of_rows(path):
        if split is not None:
            raise ValueError(
                f"{split_field} must go with a data set, got {split!r} with the file {path!r}. "
                "Remove it."
            )
        return read_column(path, column, field, column_field=column_field, users=users)
    data = load_data_set(path, field, split_field, split=split)
    assert data.column_names is not None, "it is not streamed"
    if column not in data.column_names:
        raise ValueError(
            f"{column_field} must be a column of the data set, got {column!r}. It has "
            f"{columns_in_words(data.column_names, near=column)}. Choose one."
        )
    texts = [str(value) if users and type(value) is int else value for value in data[column]]
    # Find the first row that is no text: a data set may hold None.
    strange = next((i for i, text in enumerate(texts) if not isinstance(text, str)), None)
    if strange is not None:
        raise ValueError(
            f"{field} must have a string {column!r} in every row, got {kind_of(texts[strange])} in "
            f"{path}, row {strange + 1}. Choose another column."
        )
    # Texts may be blank; names of users may not.
    if users:
        require_named(texts)
    return texts
