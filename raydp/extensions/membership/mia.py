"""Membership inference: how well an attack tells training examples from held-out ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raydp.extensions.membership.metrics import (
    RATES,
    Estimate,
    Scores,
    auc,
    best_accuracy,
    tpr_at_fpr,
)
from raydp.extensions.membership.mia_signals import Signals, Split, signals, zlib_lengths
from raydp.extensions.reference_data.sets import DataSet
from raydp.scores.score import Measurement, OneByOne
from raydp.tasks.text.language import LanguageModelingTask

if TYPE_CHECKING:
    from raydp.extensions.classification.labelled import ClassificationTask
    from raydp.models.base_models import LoadedModel
    from raydp.tasks.task import Task

Attack = Literal["loss", "zlib", "min_k", "min_k_plus_plus", "reference"]
SAMPLE = 0x6D6961
"""Number that is mixed into the seed, so that this sample is independent of its other uses."""


class MembershipInference(OneByOne):
    """Area under the ROC curve of an attack that tells training examples from held-out ones.

    Every attack computes a number from the model's predictions of an example's target tokens.
    Higher means more likely a member:
    loss: minus the mean loss (Yeom et al. 2018);
    zlib: minus the loss over the length of the text after zlib (Carlini et al. 2021);
    min_k: the mean log-probability of the least likely tokens (Shi et al. 2024);
    min_k_plus_plus: as min_k, with log-probabilities standardised under the model (Zhang et al.
    2024);
    reference: the base model's loss minus the model's (Carlini et al. 2021; Mireshghallah et al.
    2022).

    The standard error is DeLong's, over both samples. The sample depends on the seed and not on the
    model. For every attack, `details` has the area, the balanced accuracy at the best threshold,
    and the true positive rates at 1 % and 0.1 % false positives (None with too few non-members).
    Each has a 95 % interval (_low, _high).

    The attacks assume that training and held-out examples come from one distribution. `base_auc`
    tests this assumption: it is the area of the untrained base model's loss, which no training
    example has shaped. If its interval (base_auc_low, base_auc_high) excludes 1/2, the two parts
    differ by themselves, and the attacks partly detect this difference. This is so by design if the
    held-out part is a public text, by other authors (tofu), or mails without planted secrets
    (builtin). Held-out examples that are exact copies of a training example are left out and
    counted.

    If the task has reference data, they do not count as members here; the score `mia_of_reference`
    measures them. (The attack "reference" is something else: its reference is the base model.)

    Higher is worse privacy; 1/2 is chance.
    """

    no_leak: ClassVar[float | None] = 0.5
    in_words: ClassVar[str | None] = (
        "an attack tells a training example from another one in {percent} of pairs (guessing: 50 %)"
    )

    attack: Attack = "reference"
    """The attack whose area is the value. `reference` is usually the strongest for fine-tuning,
    because it cancels what makes an example easy for every model. On the base model itself its area
    is exactly 1/2."""
    num_examples: Annotated[int, Field(ge=1, le=100_000)] = 500
    """Largest number of members drawn from the training examples, and of non-members drawn from the
    held-out ones."""
    min_k_fraction: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Share of an example's tokens that the two Min-K% attacks use."""
    members: ClassVar[DataSet] = "training"

    def check(self, task: Task) -> None:
        """Raise ValueError if the task has no text, no distinct held-out text, or no members."""
        positions_of(self.members, _usable(task)[0])

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model on a sample of examples."""
        task, heldout = _usable(task)
        # Draw members and non-members.
        rng = np.random.default_rng([seed, SAMPLE])
        chosen: dict[Split, NDArray[np.int64]] = {
            "train": sample(rng, positions_of(self.members, task), self.num_examples),
            "heldout": sample(rng, heldout, self.num_examples),
        }

        def read(measured: LoadedModel) -> dict[Split, Signals]:
            return {
                s: signals(measured.model, task, s, i, fraction=self.min_k_fraction)
                for s, i in chosen.items()
            }

        # Read the model and its base, with the same batches, so that the base's own difference is
        # exactly 0.
        of_model = read(model)
        key = ("mia", self.members, self, seed, task.facts().content_hash)
        of_base = model.of_base(key, read)
        # Compute the scores of every attack, and their figures.
        lengths = {s: zlib_lengths(model.tokenizer, task, s, i) for s, i in chosen.items()}
        # Every score is higher for members, so losses have the opposite sign.
        scores: dict[Attack, tuple[Scores, Scores]] = {
            "loss": _both(lambda s: -of_model[s].loss),
            "zlib": _both(lambda s: -of_model[s].loss / lengths[s]),
            "min_k": _both(lambda s: of_model[s].min_k),
            "min_k_plus_plus": _both(lambda s: of_model[s].min_k_plus_plus),
            "reference": _both(lambda s: of_base[s].loss - of_model[s].loss),
        }
        value = auc(*scores[self.attack])
        # The base model was not trained on the members: an area other than ½ shows that the two
        # sets differ by themselves.
        details: dict[str, float | None] = {
            "num_members": len(chosen["train"]),
            "num_nonmembers": len(chosen["heldout"]),
            "heldout_copies_left_out": len(task.heldout) - len(heldout),
            **_flat("base_auc", auc(*_both(lambda s: -of_base[s].loss))),
        }
        for name, pair in scores.items():
            details |= attack_figures(name, *pair)
        return Measurement(
            value=value.value, std_error=value.std_error, num_samples=1, details=details
        )

    def expected_bounds(self) -> tuple[float, float]:
        """Return the bounds of an area."""
        return 0.0, 1.0


class ReferenceMembershipInference(MembershipInference):
    """Area under the ROC curve of an attack that tells reference data from held-out examples.

    It is the score `mia` with the task's reference data as members.
    """

    in_words: ClassVar[str | None] = (
        "an attack tells a reference example from another one in {percent} of pairs (guessing: "
        "50 %)"
    )

    members: ClassVar[DataSet] = "reference"


def positions_of(
    data_set: DataSet, task: LanguageModelingTask | ClassificationTask
) -> NDArray[np.int64]:
    """Return the positions of a data set in task.train: training data proper, or reference data.

    Raises:
        ValueError: the task has no reference data.
    """
    facts, total = task.facts(), len(task.train)
    # Reference data come last in task.train.
    if data_set == "training":
        return np.arange(total - facts.num_reference)
    if not facts.num_reference:
        raise ValueError(
            "task must have reference data for a score of their membership, got none. Use the task "
            "with_reference, or remove the score."
        )
    return np.arange(total - facts.num_reference, total)


def _usable(task: Task) -> tuple[LanguageModelingTask, NDArray[np.int64]]:
    """Return the task, and the positions of its held-out examples that can be non-members."""
    if not isinstance(task, LanguageModelingTask):
        raise ValueError(
            "task must be a language modelling task for the score 'mia'. Remove the score."
        )
    heldout = fresh(task)
    num_train, num_heldout = len(task.train), len(heldout)
    if not min(num_train, num_heldout):
        raise ValueError(
            "task must contain training examples and others that are held out for the score 'mia', "
            f"got {num_train} and {num_heldout}. Hold out more, or remove the score."
        )
    return task, heldout


def fresh(task: LanguageModelingTask | ClassificationTask) -> NDArray[np.int64]:
    """Return the positions of the held-out examples that copy no training example."""
    known = set(task.train.contents())
    return np.array(
        [i for i, content in enumerate(task.heldout.contents()) if content not in known], np.int64
    )


def sample(rng: np.random.Generator, positions: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Draw at most `limit` of the positions without replacement; sorted."""
    return np.sort(rng.choice(positions, min(limit, len(positions)), replace=False))


def _both(score_fn: Callable[[Split], Scores]) -> tuple[Scores, Scores]:
    """Return the scores of members and of non-members."""
    return score_fn("train"), score_fn("heldout")


def attack_figures(attack: str, members: Scores, nonmembers: Scores) -> dict[str, float | None]:
    """Return one attack's figures, each with an interval: area, accuracy, true positive rates."""
    figures: dict[str, float | None] = {
        **_flat(f"{attack}.auc", auc(members, nonmembers)),
        **_flat(f"{attack}.accuracy", best_accuracy(members, nonmembers)),
    }
    for name, rate in RATES.items():
        measured = len(nonmembers) * rate >= 1
        figures |= _flat(
            f"{attack}.tpr_at_{name}_fpr", tpr_at_fpr(members, nonmembers, rate), measured=measured
        )
    return figures


def _flat(name: str, figure: Estimate, *, measured: bool = True) -> dict[str, float | None]:
    values = {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}
    return dict(values) if measured else dict.fromkeys(values)
