"""The interface of scores. A score measures what a trained model leaks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from raydp.spec.sections.section import Section

if TYPE_CHECKING:
    from raydp.models.base_models import LoadedModel
    from raydp.tasks.task import Task

SecretKind = Literal["verbatim", "attribute"]
"""See `raydp.tasks.task.Secret`."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One score of one model. Higher is worse privacy.

    Attributes:
        value: the mean over secrets.
        std_error: standard error of the mean over secrets (ddof = 1); None with fewer than two
            secrets.
        num_samples: number of generations behind each secret's value; 1 for a deterministic score.
        per_secret: secret id -> value. It never holds the secret itself.
        per_control: control id -> value, for a score that subtracts what controls have: their mean
            is subtracted.
        details: further figures of the measurement, name -> number; for example a base rate, a
            bound, or the number of exhausted searches. They never hold text from data or models.
        cost: what the measurement took, name -> number: "seconds" (see `measured`), and what the
            score itself counts, such as "forward_passes".
        seed: the seed of the draws; None if the caller gave none.
        params: the score's parameters that are not the defaults (see `measured`).
    """

    value: float
    std_error: float | None
    num_samples: int
    per_secret: Mapping[str, float] = field(default_factory=dict)
    per_control: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, float | None] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    seed: int | None = None
    params: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def over_secrets(
        cls, values: ArrayLike, *, ids: Sequence[str], num_samples: int = 1
    ) -> Measurement:
        """Average the values of the secrets ([secret]). The standard error is over secrets."""
        array = np.asarray(values, dtype=np.float64)
        # The secrets are a sample of what could have been secret, hence ddof = 1.
        error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None
        return cls(
            value=float(array.mean()),
            std_error=error,
            num_samples=num_samples,
            per_secret=dict(zip(ids, array.tolist(), strict=True)),
        )

    def document(self) -> dict[str, object]:
        """Return the measurement as JSON records it. `Measurement(**document)` restores it."""
        return {
            f.name: dict(v) if isinstance(v := getattr(self, f.name), Mapping) else v
            for f in fields(self)
        }


class ModelSet(Protocol):
    """Models that share a base. Only one of them is in memory at a time.

    Implemented by `TrainedModels` of the extension `later_scores`.

    Attributes:
        names: the name of each model in records: a run id or a folder's name.
    """

    names: Sequence[str]

    def loaded(self, index: int) -> AbstractContextManager[LoadedModel]:
        """Load one model for the duration of the block."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """The resources of a measurement of many models besides the models.

    Attributes:
        folder: where a score keeps files between models and between resumed calls; None keeps
            nothing. Files that identify a secret, such as found prompts, have mode 0600.
        done: names of the models that are measured already and must not be measured again.
        progress: called with (models done, models in all).
    """

    folder: Path | None = None
    done: frozenset[str] = frozenset()
    progress: Callable[[int, int], None] | None = None


class Score(Protocol):
    """Measures models, deterministically in its seed.

    Implemented by the scores of `registries.BUILTIN`, which all derive from `ScoreSection`.

    A score is a `ScoreSection`, which has the class attributes.
    """

    of_a_set: ClassVar[bool]
    secret_kinds: ClassVar[tuple[SecretKind, ...]]
    logarithmic: ClassVar[bool]

    @property
    def is_area(self) -> bool:
        """See `ScoreSection`, also for the class attributes."""

    def check(self, task: Task) -> None:
        """Raise ValueError if the task lacks something that the score needs."""

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model on the task's secrets."""

    def measure_many(
        self, models: ModelSet, task: Task, *, seed: int, context: Context
    ) -> Iterator[tuple[str, Measurement]]:
        """Yield each model's name and measurement as soon as known, but for context.done."""

    def expected_bounds(self) -> tuple[float, float]:
        """Return the smallest and the largest value that the score can take."""

    def finer(self, task: Task) -> Self | None:
        """See `ScoreSection`."""


class ScoreSection(Section):
    """Parameters of a score in a spec. The base class of every score.

    A score that measures one model at a time derives from `OneByOne`:

        class MyScore(OneByOne):
            def check(self, task: Task) -> None: ...
            def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement: ...
            def expected_bounds(self) -> tuple[float, float]: ...

    Attributes:
        of_a_set: whether a model's value depends on the other models. Such a score is refused in a
            sweep's own scores, and `measure_many` does not get the untrained base model.
        secret_kinds: a task that has secrets of one of these kinds has all that the score needs.
        logarithmic: whether the value is a logarithm. Differences of such scores are meaningful,
            ratios are not.
        log_base: the base of that logarithm; by default e.
        no_leak: the value of a model that leaks nothing; None if it is not known.
        in_words: a clause that says a value to a person, with {value}, {percent} (100 times the
            value) or {times} (the base to the power of the value); None without such words.
        worded_for: parameters that change the meaning of the value, with the values for which
            `in_words` holds.
    """

    of_a_set: ClassVar[bool] = False
    secret_kinds: ClassVar[tuple[SecretKind, ...]] = ()
    logarithmic: ClassVar[bool] = False
    log_base: ClassVar[float | None] = None
    no_leak: ClassVar[float | None] = 0.0
    in_words: ClassVar[str | None] = None
    worded_for: ClassVar[Mapping[str, object]] = {}

    @property
    def is_area(self) -> bool:
        """Whether the value is the area under a curve. Other such scores give an accuracy."""
        return False

    def finer(self, task: Task) -> Self | None:
        """Return this score with a smaller error over the choice of secrets, or None.

        It estimates the same value, and measures models that are trained already. A sweep with
        adaptive seeds measures its models anew by it if its first pass leaves the decision open.
        """
        return None


class OneByOne(ScoreSection):
    """Base of scores that measure every model separately: it loops over the models."""

    def measure_many(
        self: Score, models: ModelSet, task: Task, *, seed: int, context: Context
    ) -> Iterator[tuple[str, Measurement]]:
        """Measure one model after another."""
        # On resume, models that are measured already are not even loaded.
        left = [i for i, name in enumerate(models.names) if name not in context.done]
        for finished, index in enumerate(left, start=1):
            with models.loaded(index) as model:
                yield models.names[index], measured(self, model, task, seed=seed)
            if context.progress is not None:
                context.progress(finished, len(left))


def measured(score: Score, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
    """Measure one model and record the seed, the seconds and the parameters."""
    started = time.perf_counter()
    result = score.measure(model, task, seed=seed)
    # The score's own counts win over the time measured here.
    cost = {"seconds": time.perf_counter() - started, **result.cost}
    return replace(result, seed=seed, cost=cost, params=params_of(score))


def params_of(score: Score) -> dict[str, object]:
    """Return the parameters of a score that are not the defaults, as JSON records them."""
    return (
        score.model_dump(mode="json", exclude_defaults=True) if isinstance(score, Section) else {}
    )
