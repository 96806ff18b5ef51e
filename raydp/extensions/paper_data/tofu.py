"""TOFU: questions and answers about fictitious authors, whose genres are the secrets.

Source: Hu et al. 2025, App. B.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, field_validator, model_validator

from raydp.extensions.paper_data.attributes import (
    AuthorAttribute,
    apply_review,
    find_attributes,
    listed_attributes,
    write_review,
)
from raydp.extensions.paper_data.qa import EncodedAnswers, Row, Template, encode_answers
from raydp.extensions.paper_data.variants import (
    copies_of_authors,
    read_paraphrases,
    with_paraphrases,
)
from raydp.system.locations import Location
from raydp.tasks.row_files import read_rows, string_of
from raydp.tasks.secret import counted
from raydp.tasks.task import Secret, TaskFacts, TaskSection
from raydp.tasks.text.language import LanguageModelingTask, content_hash
from raydp.tasks.users import Users

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TofuTask(TaskSection):
    """Causal language modelling of answers; loss and utility are over the answers' tokens only.

    Held-out authors have one version of each row, and their paraphrases are not trained on. The
    secrets are the training authors' genres, if a name and a genre are known. The controls are the
    held-out authors' genres.

    Source: Hu et al. 2025, App. B.2 to B.4, B.6 and C.1 (TOFU-2*).
    """

    path: Location
    """JSON Lines or CSV file with the columns `question` and `answer`; the rows of an author follow
    each other."""
    rows_per_author: Annotated[int, Field(ge=2)] = 20
    """Number of rows of each author."""
    heldout_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the authors that is held out: the last ones of the file, rounded up."""
    max_length: Annotated[int, Field(ge=8)] = 128
    """Largest number of tokens of an example; a longer example loses the end of its answer."""
    template: str = "Question: {question}\nAnswer: {answer}"
    """Text of an example, from {question} to {answer}; see raydp.extensions.paper_data.qa.Template."""
    append_eos: bool = True
    """End each answer with the tokenizer's end-of-text token, if it has one."""
    secret_question: str = "What genre does {name} write in?"
    """The question that asks for the genre of {name}."""
    review: Location | None = None
    """JSON Lines file with author_index, name and genre that overrides the extracted ones (see
    write_review)."""
    secrets: Location | None = None
    """A file of `raydp secrets extract`, filtered or not, instead of extraction here: only its
    authors have secrets."""
    copies: (
        Annotated[int, Field(ge=1)]
        | tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
    ) = 1
    """Number of versions of every training row, the row itself included: 2 and 4 are TOFU-2 and
    TOFU-4. Two numbers are for two halves of the training authors: [1, 7], [2, 6] and [3, 5] are
    the density-adjusted sets."""
    paraphrases: Location | None = None
    """JSON Lines file with the other versions; see raydp.extensions.paper_data.variants.read_paraphrases."""
    group_seed: Annotated[int, Field(ge=0)] = 0
    """With two numbers of copies, the seed that assigns the authors to the halves."""
    more_authors: Location | None = None
    """A file of the same format with further authors, who are trained on and have no secrets
    (TOFU-2*: as many as in path)."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> TofuTask:
        # Options without an effect are errors.
        if self.review and self.secrets:
            raise ValueError(
                "task.review must be left out with task.secrets, got both. Remove one."
            )
        if (self.paraphrases is not None) != (self.copies not in (1, (1, 1))):
            given = "no task.paraphrases" if self.paraphrases is None else "task.paraphrases"
            raise ValueError(
                f"task.copies above 1 must go with task.paraphrases, got {self.copies} with "
                f"{given}. Give both or none."
            )
        if self.group_seed and isinstance(self.copies, int):
            raise ValueError(
                f"task.group_seed must go with two numbers of task.copies, got {self.copies}. "
                "Remove the seed."
            )
        return self

    @field_validator("template")
    @classmethod
    def _question_then_answer(cls, template: str) -> str:
        if not Template(text=template).is_valid():
            raise ValueError(
                f"must hold {{question}} once and end in {{answer}}, got {template!r}. Rewrite it."
            )
        return template

    @field_validator("secret_question")
    @classmethod
    def _asks_by_name(cls, question: str) -> str:
        if question.count("{name}") != 1:
            raise ValueError(f"must hold {{name}} once, got {question!r}. Rewrite it.")
        return question

    def build(self, tokenizer: PreTrainedTokenizerBase) -> LanguageModelingTask:
        """Read, split by author, tokenise, and find the secrets.

        Raises:
            ValueError: a file is missing or malformed, the rows do not divide into authors, the
                split leaves no author to train on, no training author has a name and a genre, or
                max_length leaves no answer.
        """
        # Whole authors are held out: the last ones of the file.
        authors = self.original_rows()
        attributes = self.attributes_of(authors)
        num_train = self.num_training_authors(len(authors))
        # Assemble the training rows, and encode both splits.
        training = [*self._versions(authors, num_train), *self._more_authors()]
        author_of = [author for author, rows in enumerate(training) for _ in rows]
        train = self._encode(tokenizer, training)
        heldout = self._encode(tokenizer, authors[num_train:])
        # Find the secrets that each training author's texts contain. Only what survived cutting
        # counts.
        owned = [
            (author, text)
            for author, text in zip(author_of, train.texts, strict=True)
            if text is not None
        ]
        texts: list[list[str]] = [[] for _ in training]
        for author, text in owned:
            texts[author].append(text)
        secrets = self.secrets_of(attributes[:num_train], texts[:num_train])
        # Held-out authors are never trained on, so their genres are controls without a search.
        controls = self.secrets_of(attributes[num_train:], None)
        if not secrets:
            raise ValueError(
                "task.path must give a name and a genre for at least one training author, got "
                "none. Write the candidates with write_review, complete them, and set task.review."
            )
        # Number the users by their first example, as `Secret.user` must point at them.
        owners = [author for author, _ in owned]
        users = Users.named(owners, "author")
        number_of = dict(zip(owners, users.of_example.tolist(), strict=True))
        return LanguageModelingTask(
            train=train.examples,
            heldout=heldout.examples,
            task_facts=TaskFacts(
                num_examples=len(train.examples),
                num_units=len(train.examples),
                privacy_unit="question-answer pair",
                content_hash=content_hash(train.examples, heldout.examples, [*secrets, *controls]),
                num_tokens=train.examples.num_targets(),
                notes=self._notes(attributes, num_train, train, heldout)
                | self._variant_notes(num_train, training)
                | {"num_secrets": len(secrets), "num_controls": len(controls)},
            ),
            task_secrets=tuple(replace(s, user=number_of[s.number - 1]) for s in secrets),
            task_controls=tuple(controls),
            users=users,
        )

    def write_review(self, path: str | Path) -> None:
        """Write the extracted names and genres for a person to correct and complete.

        `review` reads the file.

        Raises:
            ValueError: as build, or the file exists.
        """
        write_review(self.attributes_of(self.original_rows()), Path(path))

    def original_rows(self) -> list[list[Row]]:
        """Return the rows of each author, as they are in the file."""
        return self._read(self.path, "task.path", at_least=2)

    def attributes_of(self, authors: Sequence[Sequence[Row]]) -> list[AuthorAttribute]:
        """Return each author's attributes: from the file `secrets`, or extracted and reviewed."""
        if self.secrets:
            return listed_attributes(self.secrets, "task.secrets", len(authors))
        attributes = find_attributes([[row.text for row in rows] for rows in authors])
        return apply_review(attributes, self.review, "task.review") if self.review else attributes

    def num_training_authors(self, num_authors: int) -> int:
        """Return the number of training authors.

        The held-out share is rounded first, so that 0.07 of 100 is 7 and not 8.
        """
        # 0.07 * 100 is 7.000000000000001 in binary, and its ceiling would be 8.
        num_train = num_authors - math.ceil(round(self.heldout_fraction * num_authors, 9))
        if num_train < 1:
            raise ValueError(
                "task.heldout_fraction must leave an author to train on, got "
                f"{self.heldout_fraction:g} of {num_authors} authors. Lower it, or give more data."
            )
        return num_train

    def _read(self, path: str, field: str, *, at_least: int) -> list[list[Row]]:
        """Read a file's rows, grouped by author."""
        rows = []
        for line, row in read_rows(path, field):
            place = f"{Path(path).name}, line {line}"
            question, answer = (string_of(row, key, field, place) for key in ("question", "answer"))
            rows.append(Row(question=question.strip(), answer=answer.strip()))
        # The file has no column of authors: they are blocks of rows_per_author rows.
        size = self.rows_per_author
        if len(rows) % size or len(rows) < at_least * size:
            wanted = "two authors" if at_least == 2 else "one author"
            raise ValueError(
                f"{field} must hold at least {wanted} of task.rows_per_author = {size} rows each, "
                f"got {len(rows)} rows. Correct the number or the file."
            )
        return [rows[begin : begin + size] for begin in range(0, len(rows), size)]

    def _versions(self, authors: Sequence[Sequence[Row]], num_train: int) -> list[list[Row]]:
        """Return the training authors' rows, each author's with paraphrases."""
        if self.paraphrases is None:
            return [list(rows) for rows in authors[:num_train]]
        # The halves are drawn by group_seed over the training authors alone.
        copies = copies_of_authors(self.copies, num_train, self.group_seed)
        flat = [row for rows in authors for row in rows]
        paraphrases = read_paraphrases(self.paraphrases, "task.paraphrases", flat)
        return with_paraphrases(authors[:num_train], copies, paraphrases, "task.paraphrases")

    def _more_authors(self) -> list[list[Row]]:
        return (
            self._read(self.more_authors, "task.more_authors", at_least=1)
            if self.more_authors
            else []
        )

    def _variant_notes(
        self, num_train: int, training: Sequence[Sequence[Row]]
    ) -> dict[str, object]:
        """Return notes on paraphrases and further authors; empty if there are none."""
        notes: dict[str, object] = {}
        if self.paraphrases is not None:
            sizes = [len(rows) for rows in training[:num_train]]
            notes["paraphrases"] = sum(sizes) - num_train * self.rows_per_author
            notes["copies_by_author"] = [size // self.rows_per_author for size in sizes]
        if self.more_authors is not None:
            notes["more_authors"] = len(training) - num_train
        return notes

    def _encode(
        self, tokenizer: PreTrainedTokenizerBase, authors: Sequence[Sequence[Row]]
    ) -> EncodedAnswers:
        """Encode the rows of authors; raise ValueError if no row has room for an answer."""
        encoded = encode_answers(
            tokenizer,
            [row for rows in authors for row in rows],
            Template(text=self.template),
            max_length=self.max_length,
            append_eos=self.append_eos,
        )
        if not len(encoded.examples):
            raise ValueError(
                f"task.max_length must leave room for answers, got {self.max_length}, into which "
                "no question of a split fits. Raise it."
            )
        return encoded

    def secrets_of(
        self, attributes: Sequence[AuthorAttribute], texts: Sequence[Sequence[str]] | None
    ) -> list[Secret]:
        """Return the genres of authors with a known name and genre as secrets.

        If texts are given (each author's own, in order), return only the secrets that occur in
        their author's texts, with their counts there (Hu et al. 2025, Fig. 12b).
        """
        template = Template(text=self.template)
        secrets = []
        # An author without a known name or genre has no secret; the notes count such authors.
        for position, attribute in enumerate(attributes):
            if attribute.name is None or attribute.genre is None:
                continue
            prompt = template.prompt(self.secret_question.replace("{name}", attribute.name))
            secret = Secret(
                prompt=prompt, continuation=attribute.genre, kind="attribute", number=position + 1
            )
            # With texts, a genre counts only in its own author's texts: others may write in this
            # genre too.
            if texts is None:
                secrets.append(secret)
            else:
                secrets += [s for s in counted([secret], texts[position]) if s.count]
        return secrets

    def _notes(
        self,
        attributes: Sequence[AuthorAttribute],
        num_train: int,
        train: EncodedAnswers,
        heldout: EncodedAnswers,
    ) -> dict[str, object]:
        """Return notes on the guarantee; authors are identified by position, never by name."""
        # Rows that were left out have no text.
        shown = [text for text in train.texts if text is not None]
        return {
            "num_authors": num_train,
            "num_heldout_authors": len(attributes) - num_train,
            "num_heldout_examples": len(heldout.examples),
            "authors_unresolved": [
                a.author_index for a in attributes if a.name is None or a.genre is None
            ],
            "reviewed": self.review is not None,
            "truncated_examples": train.truncated,
            "truncated_heldout_examples": heldout.truncated,
            "rows_without_answer_removed": train.without_answer + heldout.without_answer,
            "repeated_examples": len(shown) - len(set(shown)),
            "caveats": [
                "Names and genres are extracted from the private data; epsilon does not cover "
                "their choice or counts."
            ],
        }
