"""A lower bound on ε from an ordinary run, by which twin of each planted pair it saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raydp.extensions.auditing.one_run import Guesses, twin_bound
from raydp.scores.language.teacher_forcing import log_probabilities
from raydp.scores.score import Measurement, OneByOne
from raydp.tasks.wrappers.twins import TwinTask

if TYPE_CHECKING:
    from raydp.models.base_models import LoadedModel
    from raydp.tasks.task import Task


class TwinAudit(OneByOne):
    """A lower bound on ε from the twins of the task `planted` (Steinke et al. 2023), at no further
    training.

    The auditor guesses that the twin whose log-probability rose more over the base model is the one
    in the training data. The guesses are made for the share of the pairs in which the two rises
    differ most; the auditor abstains from the others. They use the twins in a fixed order, so that
    they depend on the coins through the model alone.

    Pairs with different numbers of copies are audited separately. The value is the largest of their
    bounds, each with a confidence that is corrected for their number (Bonferroni). The value is 0
    where the guesses prove nothing, which is usual: twins are ordinary texts, and a bound on ε from
    c copies is that of a group of 2 c, divided by 2 c. The audit that is made to find something is
    `raydp audit`.

    Details of the pairs with the largest bound: copies, pairs, guesses, correct; and delta,
    confidence.

    Guarantee:
        The guarantee of `twin_bound`, for each model by itself.
    """

    no_leak: ClassVar[float | None] = None
    in_words: ClassVar[str | None] = "audits show an ε of at least {value} on average"

    delta: Annotated[float, Field(ge=0, lt=1)] | None = None
    """δ of the guarantee to test. By default 1/n, at which a guarantee with a smaller δ holds as
    well."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Confidence of the bound, over the coins and the randomness of training."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the pairs of each number of copies to guess; fixed before training."""

    def check(self, task: Task) -> None:
        """Raise ValueError if the task has no twins."""
        if not isinstance(task, TwinTask):
            raise ValueError(
                "task.name must be 'planted' with twins: true for the score 'twin_audit', got a "
                "task without twins. Plant some, or run `raydp audit`."
            )

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Guess the coins and count the correct guesses; the seed has no effect."""
        assert isinstance(task, TwinTask)
        firsts, seconds = (tuple(pair[position] for pair in task.twins) for position in (0, 1))
        # The rise over the base model: some texts are likelier than others from the start.
        rises = log_probabilities(model, [*firsts, *seconds])
        with model.base() as base:
            rises = rises - log_probabilities(base, [*firsts, *seconds])
        differences = rises[len(firsts) :] - rises[: len(firsts)]
        copies = np.array([first.count for first in firsts])
        delta = 1 / task.facts().num_units if self.delta is None else self.delta
        # A bound for each number of copies, as group privacy depends on it; the largest counts.
        numbers = np.unique(copies).tolist()
        confidence = 1 - (1 - self.confidence) / len(numbers)
        bounds = []
        for number in numbers:
            guesses = self._guesses(differences[copies == number], task.second[copies == number])
            bounds.append((twin_bound(guesses, delta, number, confidence), number, guesses))
        value, number, guesses = max(bounds, key=lambda bound: bound[0])
        details = {
            "copies": float(number),
            "pairs": float(guesses.num_canaries),
            "guesses": float(guesses.num_guesses),
            "correct": float(guesses.num_correct),
            "delta": delta,
            "confidence": self.confidence,
        }
        return Measurement(value=value, std_error=None, num_samples=1, details=details)

    def expected_bounds(self) -> tuple[float, float]:
        """Return the smallest and the largest value that the score can take."""
        return 0.0, float("inf")

    def _guesses(self, differences: NDArray[np.float64], second: NDArray[np.bool_]) -> Guesses:
        """Guess "second" where the second twin rose more, and compare the guesses with the coins.

        Args:
            differences: [pair] the rise of the second twin minus the rise of the first.
            second: [pair] the coins.
        """
        # Guess only where the twins differ most, in an order that does not know the coins.
        number = max(1, int(self.share * len(second)))
        guessed = np.argsort(-np.abs(differences), kind="stable")[:number]
        correct = int(((differences > 0) == second)[guessed].sum())
        return Guesses(num_canaries=len(second), num_guesses=number, num_correct=correct)
