"""MNIST and CIFAR, read from files in their published layouts."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raydp.extensions.classification.array_files import read_cifar, read_idx
from raydp.extensions.classification.labelled import (
    ClassificationSection,
    ClassificationTask,
    LabelledExamples,
    Utility,
    classification_task,
    drawn,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ImageTask(ClassificationSection):
    """Images with a published split."""

    path: Path
    """Folder with the published files."""
    num_examples: Annotated[int, Field(ge=1)] | None = None
    """Training images, drawn by data_seed; all by default."""
    num_heldout: Annotated[int, Field(ge=1)] | None = None
    """Held-out images, drawn by data_seed; all by default."""
    data_seed: Annotated[int, Field(ge=0)] = 0
    """Seed that decides which images are drawn."""
    utility: Utility = "error_rate"
    """`error_rate`: 1 - accuracy on the held-out images; or `cross_entropy`, their mean loss in
    nats."""

    def build(self, tokenizer: PreTrainedTokenizerBase | None) -> ClassificationTask:
        """Read the images and draw the examples."""
        train, heldout, num_classes, source = self._read()
        # The training images are drawn first, so that num_heldout does not change them.
        rng = np.random.default_rng(self.data_seed)
        return classification_task(
            drawn(train, self.num_examples, rng, "task.num_examples"),
            drawn(heldout, self.num_heldout, rng, "task.num_heldout"),
            num_classes=num_classes,
            unit="image",
            measured_by=self.utility,
            notes={"source": source},
            utility_is_public=True,
        )

    @abstractmethod
    def _read(self) -> tuple[LabelledExamples, LabelledExamples, int, str]:
        """Return training and held-out images, the number of classes, and the source in words."""


class MnistTask(ImageTask):
    """MNIST, or another data set in its layout (LeCun et al. 1998).

    The files are train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
    t10k-labels-idx1-ubyte, gzipped or not. Pixels are standardised with MNIST's public mean 0.1307
    and standard deviation 0.3081.
    """

    def _read(self) -> tuple[LabelledExamples, LabelledExamples, int, str]:
        train, heldout = (self._part(part) for part in ("train", "t10k"))
        return train, heldout, 10, "MNIST's files"

    def _part(self, part: str) -> LabelledExamples:
        """Read the images [n, 1, 28, 28] and labels of MNIST's files of "train" or "t10k"."""
        images = read_idx(self.path, f"{part}-images-idx3-ubyte")
        labels = read_idx(self.path, f"{part}-labels-idx1-ubyte")
        if images.ndim != 3 or labels.shape != images.shape[:1] or labels.max(initial=0) > 9:
            raise ValueError(
                f"task.path must hold as many labels 0 to 9 as images, got {labels.shape} and "
                f"{images.shape} in its {part} files. Get them again."
            )
        # MNIST's mean and standard deviation are public constants, which no private image shapes.
        pixels = (images[:, None].astype(np.float32) / 255 - 0.1307) / 0.3081
        inputs = cast(NDArray[np.float32], pixels)  # numpy 2 keeps the type
        return LabelledExamples(inputs=inputs, labels=labels.astype(np.int64))


class CifarTask(ImageTask):
    """CIFAR-10 or CIFAR-100 in the binary version (Krizhevsky 2009).

    The files are data_batch_1.bin to data_batch_5.bin and test_batch.bin, or train.bin and
    test.bin.
    """

    classes: Literal[10, 100] = 10
    """Number of classes: 10, or 100 (the fine labels)."""

    def _read(self) -> tuple[LabelledExamples, LabelledExamples, int, str]:
        small = self.classes == 10
        names = [f"data_batch_{k}.bin" for k in range(1, 6)] if small else ["train.bin"]
        train, heldout = (
            read_cifar(
                # CIFAR-100 has a coarse and a fine label byte; the fine one is the class.
                [self.path / name for name in part],
                1 if small else 2,
                0 if small else 1,
            )
            for part in (names, ["test_batch.bin" if small else "test.bin"])
        )
        highest = int(max(train.labels.max(), heldout.labels.max()))
        if highest >= self.classes:
            raise ValueError(
                f"task.path must hold labels below {self.classes}, got {highest}. Set task.classes."
            )
        return train, heldout, self.classes, f"CIFAR-{self.classes}'s files"
