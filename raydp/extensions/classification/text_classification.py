"""Texts with a class, from a file of your own or made up.

A causal language model answers with the word of a class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator

from raydp.extensions.classification.label_words import encode_texts, label_words_of
from raydp.extensions.classification.labelled import (
    ClassificationTask,
    LabelledExamples,
    Utility,
    classification_task,
)
from raydp.extensions.classification.reviews import CLASSES, write_reviews
from raydp.system.locations import Location
from raydp.tasks.row_files import read_rows, string_of
from raydp.tasks.task import TaskSection
from raydp.tasks.text.corpus import is_held_out

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NUM_REVIEWS = 2000
TEMPLATE = "{text}\nSentiment:"


class TextClassificationTask(TaskSection):
    """Texts with a class.

    A causal language model reads a text in a template and predicts the next token.

    The predicted class is the one whose word has the largest logit (Schick and Schütze 2021). The
    loss is the cross-entropy over the words.

    One text is the unit of privacy. Template, words and the set of classes count as public.
    """

    classifies: ClassVar[bool] = True

    path: Location | None = None
    """A CSV or JSON Lines file, gzipped or not.

    Without it the data are made-up reviews of made-up things, half of them positive.
    """
    column: str = "text"
    """Name of the column with the text."""
    label: str = "label"
    """Name of the column with the class, a string or a whole number."""
    num_reviews: Annotated[int, Field(ge=20, le=1_000_000)] | None = None
    """Number of made-up reviews; only without path."""
    template: str = TEMPLATE
    """The text that the model reads, with {text} once and some text after it; the word of the class
    follows."""
    label_words: dict[str, str] | None = None
    """Word of each class, {class: word}: one token of the model's tokenizer, where a blank before
    it counts. The order here numbers the classes. By default the word is the class's name after a
    blank, and the names are sorted."""
    max_length: Annotated[int, Field(ge=2, le=1_000_000)] = 64
    """Number of tokens of an example with its template; a longer text loses its end."""
    heldout_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of the texts that is held out, by a keyed hash of the text; copies stay together."""
    data_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the hash, and of the made-up reviews."""
    utility: Utility = "error_rate"
    """`error_rate`: 1 - accuracy on the held-out texts; or `cross_entropy`, their mean loss in
    nats."""

    @field_validator("template")
    @classmethod
    def _has_a_place_for_the_text(cls, template: str) -> str:
        if template.count("{text}") != 1 or not template.partition("{text}")[2].strip():
            raise ValueError(
                f"must hold {{text}} once and some text after it, got {template!r}. Write "
                f"{TEMPLATE!r}, say."
            )
        return template

    @field_validator("label_words")
    @classmethod
    def _has_two_classes(cls, words: dict[str, str] | None) -> dict[str, str] | None:
        if words is not None and (len(words) < 2 or not all(words.values())):
            raise ValueError(
                f"must name a word for each of two classes or more, got {words}. Add the others."
            )
        return words

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        # An option that has no effect is an error.
        if self.path is not None and self.num_reviews is not None:
            raise ValueError(
                f"task.num_reviews must be left out with task.path, got {self.num_reviews}. Remove "
                "one of them."
            )
        for name in ("column", "label"):
            value = getattr(self, name)
            # A field that is left out cannot be told from one that repeats the default.
            if self.path is None and value != type(self).model_fields[name].default:
                raise ValueError(
                    f"task.{name} must go with task.path, got {value!r} without it. Add it, or "
                    "remove this."
                )
        if (
            self.path is None
            and self.label_words is not None
            and set(self.label_words) != set(CLASSES)
        ):
            raise ValueError(
                f"task.label_words must be of the classes {', '.join(CLASSES)} without task.path, "
                f"got {', '.join(self.label_words)}. Rename them, or name the file."
            )
        return self

    def build(self, tokenizer: PreTrainedTokenizerBase) -> ClassificationTask:
        """Read or make up the texts, tokenise and split them.

        Raises:
            ValueError: the file is missing or malformed, the file has only one class or a class
                without a word, a word is not one token, or no text is left to train on or to hold
                out.
        """
        rows = (
            self._read()
            if self.path is not None
            else write_reviews(self.num_reviews or NUM_REVIEWS, self.data_seed)
        )
        # The words number the classes, in the order that the user gave or else sorted by name. A
        # blank comes before a word, as in running text.
        words = self.label_words or {
            name: f" {name}" for name in sorted({kind for _, kind in rows})
        }
        if len(words) < 2:
            raise ValueError(
                f"task.label must have at least two classes, got {len(words)}. Give other data."
            )
        texts, numbers = (
            [text for text, _ in rows],
            {name: number for number, name in enumerate(words)},
        )
        # Tokenise everything before the split, so that both parts have one width and one count of
        # cuts.
        inputs, cut = encode_texts(tokenizer, texts, self.template, self.max_length)
        examples = LabelledExamples(
            inputs=inputs, labels=np.array([numbers[kind] for _, kind in rows], np.int64)
        )
        # Copies of a text have one hash and stay on one side.
        held = np.array(
            [is_held_out(text, self.heldout_fraction, self.data_seed) for text in texts], np.bool_
        )
        if held.all() or not held.any():
            raise ValueError(
                "task.heldout_fraction must leave texts to train on and others to hold out, got "
                f"{held.sum()} of {len(held)} held out. Use more data, or change it."
            )
        source = "made-up reviews" if self.path is None else str(self.path).rsplit("/", 1)[-1]
        # Made-up reviews come from data_seed alone, so their utility reveals nothing private.
        return classification_task(
            examples.select(np.flatnonzero(~held)),
            examples.select(np.flatnonzero(held)),
            num_classes=len(words),
            unit="text",
            measured_by=self.utility,
            notes={"source": source, "read": len(rows), "cut": cut, "template": self.template},
            utility_is_public=self.path is None,
            label_words=label_words_of(tokenizer, words),
        )

    def _read(self) -> list[tuple[str, str]]:
        """Return (text, class) of each row of the file."""
        assert self.path is not None
        name, rows = str(self.path).rsplit("/", 1)[-1], []
        for line, row in read_rows(self.path, "task.path"):
            place = f"{name}, line {line}"
            kind = string_of(row, self.label, "task.path", place, numbers=True)
            # Name the place, not the class: the class is a value of private data.
            if self.label_words is not None and kind not in self.label_words:
                raise ValueError(
                    "task.label_words must have a word for every class, got none for that of "
                    f"{place}. Add it, or correct the row."
                )
            rows.append((string_of(row, self.column, "task.path", place), kind))
        if not rows:
            raise ValueError(f"task.path must hold texts, got no row in {name}. Give others.")
        return rows


def classify(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    label_words: Mapping[str, str],
    template: str = TEMPLATE,
    max_length: int = 64,
) -> list[dict[str, float]]:
    """Classify texts with a model that was trained on the task text_classification.

    Args:
        model: a model from `raydp.load_model`.
        label_words, template, max_length: as in the task.

    Returns:
        For each text, class -> probability.

    Raises:
        ValueError: as for the task.
    """
    inputs, _ = encode_texts(tokenizer, texts, template, max_length)
    words, device = label_words_of(tokenizer, label_words), next(model.parameters()).device
    results = []
    # Texts go one at a time: a probability must not depend on the other texts' padding.
    with torch.inference_mode():
        for row in inputs:
            logits = words.logits(model, torch.from_numpy(row[None]).to(device))[0]
            results.append(
                dict(zip(label_words, torch.softmax(logits.double(), dim=0).tolist(), strict=True))
            )
    return results
