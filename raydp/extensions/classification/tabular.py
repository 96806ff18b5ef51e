"""Tables of numbers with a class: your own, or Purchase100 and Texas100 as published."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raydp.extensions.classification.array_files import read_matrix, read_npz
from raydp.extensions.classification.labelled import (
    ClassificationSection,
    ClassificationTask,
    LabelledExamples,
    Utility,
    classification_task,
)
from raydp.search_spaces.names import columns_in_words
from raydp.tasks.row_files import read_csv_rows
from raydp.tasks.text.corpus import is_held_out

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TabularTask(ClassificationSection):
    """A table of your own: .npz with the arrays `inputs` [n, ...] and `labels` [n], or .csv with a
    header.

    A .csv has a class column; every other column holds numbers.

    Scale the columns beforehand with public constants: the guarantee does not cover a scale that is
    computed from private rows. It does not cover the shape of a row and the set of classes either.
    """

    path: Path
    """File with the table: .npz with the arrays `inputs` and `labels`, or .csv with a header."""
    label: str = "label"
    """Name of the class column of a .csv. Classes are numbered in the order of their names."""
    heldout_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of the rows that is held out, by a keyed hash of the row; copies stay together."""
    data_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the hash that decides which rows are held out."""
    utility: Utility = "error_rate"
    """`error_rate`: 1 - accuracy on the held-out rows; or `cross_entropy`, their mean loss in
    nats."""

    def build(self, tokenizer: PreTrainedTokenizerBase | None) -> ClassificationTask:
        """Read and split the rows."""
        rows, num_classes = self._npz() if self.path.suffix == ".npz" else self._csv()
        # "row" makes this hash independent of the hash of a later split.
        # Equal rows get equal hashes, so that copies fall on one side of the split.
        contents = (f"row {content.hex()}" for content in rows.contents())
        held = np.array(
            [is_held_out(c, self.heldout_fraction, self.data_seed) for c in contents], np.bool_
        )
        if held.all() or not held.any():
            raise ValueError(
                "task.heldout_fraction must leave rows to train on and others to hold out, got "
                f"{held.sum()} of {len(rows)} held out. Use more data, or change it."
            )
        return classification_task(
            rows.select(np.flatnonzero(~held)),
            rows.select(np.flatnonzero(held)),
            num_classes=num_classes,
            unit="row",
            measured_by=self.utility,
            notes={"source": self.path.name, "read": len(rows)},
            utility_is_public=False,
        )

    def _npz(self) -> tuple[LabelledExamples, int]:
        inputs, labels = read_npz(self.path, ("inputs", "labels"))
        if len(inputs) != len(labels):
            raise ValueError(
                f"task.path must have as many labels as inputs, got {len(labels)} and "
                f"{len(inputs)}. Correct it."
            )
        # Classes that no row has still count: the set of classes is public.
        return LabelledExamples(inputs=inputs, labels=labels), int(labels.max()) + 1

    def _csv(self) -> tuple[LabelledExamples, int]:
        """Read a .csv: every column but the label as numbers, and the labels as classes."""
        rows = read_csv_rows(self.path, "task.path")
        if not rows or self.label not in rows[0][1]:
            raise ValueError(
                f"task.label must be a column of {self.path.name!r}, got {self.label!r}. It has "
                f"{columns_in_words(rows[0][1], near=self.label) if rows else 'no rows'}. Choose one."
            )
        # Parse cell by cell, because a message must name the line.
        inputs = []
        for line, row in rows:
            try:
                numbers = [float(value) for name, value in row.items() if name != self.label]
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"task.path must hold numbers beside {self.label!r}, got another cell in line "
                    f"{line} of {self.path.name!r}. Encode it as numbers."
                ) from error
            inputs.append(numbers)
        # Convert to single precision; a number beyond its range becomes infinite and is refused.
        with np.errstate(over="ignore"):
            values = np.array(inputs, np.float64).astype(np.float32)
        if not np.isfinite(values).all():
            raise ValueError(
                f"task.path must hold finite numbers, got others in {self.path.name!r}. Correct "
                "them."
            )
        # Number the classes in the order of their names.
        names, labels = np.unique([str(row[self.label]) for _, row in rows], return_inverse=True)
        if len(names) < 2 or not values.shape[1]:
            raise ValueError(
                f"task.path must have two classes at least and a column beside {self.label!r}, got "
                f"{len(names)} and {values.shape[1]} in {self.path.name!r}. Check the file."
            )
        return LabelledExamples(inputs=values, labels=labels.astype(np.int64)), len(names)


class BenchmarkTask(ClassificationSection):
    """A public data set without a published split. data_seed draws the two parts."""

    unit: ClassVar[str]

    path: Path
    """File or folder with the published data set."""
    num_examples: Annotated[int, Field(ge=1)]
    """Number of training examples, drawn by data_seed."""
    num_heldout: Annotated[int, Field(ge=1)] | None = None
    """Number of held-out examples, drawn by data_seed; by default all others."""
    data_seed: Annotated[int, Field(ge=0)] = 0
    """Seed that decides which examples are trained on and held out."""
    utility: Utility = "error_rate"
    """`error_rate`: 1 - accuracy on the held-out examples; or `cross_entropy`, their mean loss in
    nats."""

    def build(self, tokenizer: PreTrainedTokenizerBase | None) -> ClassificationTask:
        """Read and split the examples."""
        everything, source = self._read()
        # At least one held-out example is needed, also where num_heldout is left out.
        wanted = self.num_examples + (self.num_heldout or 1)
        if wanted > len(everything):
            raise ValueError(
                f"task.num_examples and num_heldout must be at most {len(everything)} together, "
                f"got {wanted}. Ask for fewer."
            )
        # Training examples come first in the permutation: changing num_heldout leaves them as they
        # are.
        order = np.random.default_rng(self.data_seed).permutation(len(everything))
        rest = everything.select(order[self.num_examples :])
        heldout = rest if self.num_heldout is None else rest.select(np.arange(self.num_heldout))
        return classification_task(
            everything.select(order[: self.num_examples]),
            heldout,
            num_classes=100,
            unit=self.unit,
            measured_by=self.utility,
            notes={"source": source, "read": len(everything)},
            utility_is_public=True,
        )

    @abstractmethod
    def _read(self) -> tuple[LabelledExamples, str]:
        """Return all examples and the source in words."""


class Purchase100Task(BenchmarkTask):
    """Purchase100 in the layout of Shokri et al. (2017).

    It is the file `dataset_purchase`, whose rows hold the class 1 to 100 and 600 bits.
    """

    unit = "customer"

    def _read(self) -> tuple[LabelledExamples, str]:
        values = read_matrix(self.path)
        return _of_hundred(values[:, 1:], values[:, 0]), "Purchase100's file"


class Texas100Task(BenchmarkTask):
    """Texas100 in the layout of Shokri et al. (2017).

    It is a folder with `feats`, whose rows hold bits, and `labels`, the classes 1 to 100.
    """

    unit = "hospital stay"

    def _read(self) -> tuple[LabelledExamples, str]:
        features, labels = (read_matrix(self.path / name) for name in ("feats", "labels"))
        if len(features) != len(labels):
            raise ValueError(
                f"task.path must have as many rows in labels as in feats, got {len(labels)} and "
                f"{len(features)}. Get them again."
            )
        return _of_hundred(features, labels[:, 0]), "Texas100's files"


def _of_hundred(inputs: NDArray[np.float32], classes: NDArray[np.float32]) -> LabelledExamples:
    """Check that the classes are 1 to 100, and number them from 0."""
    if not inputs.shape[1] or not np.isin(classes, np.arange(1, 101)).all():
        raise ValueError(
            "task.path must hold the classes 1 to 100 and features, got others. Check which file "
            "it is."
        )
    # The copy lets the whole matrix, of which the inputs are a slice, be freed.
    return LabelledExamples(
        inputs=np.ascontiguousarray(inputs), labels=classes.astype(np.int64) - 1
    )
