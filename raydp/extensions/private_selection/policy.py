"""The policy of `privacy.tuning: private_selection`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel

from raydp.extensions.private_selection.calibration import ASSUMED, calibrate_selection
from raydp.extensions.private_selection.draws import draw
from raydp.extensions.private_selection.record import (
    PrivateSelectionDocument,
    PrivateSelectionRecord,
)
from raydp.extensions.private_selection.section import (
    PrivateSelectionSpec,
    best_in_words,
    conflicts,
    num_runs_of,
    with_the_usual_rule,
)
from raydp.extensions.private_selection.tuning import BOUNDS, tuned_epsilon
from raydp.privacy import Calibration, CalibrationRequest, Event, PoissonGaussian
from raydp.spec.document import SweepSpec
from raydp.spec.sections import PrivacySpec
from raydp.sweep.store.disclosure import Disclosure
from raydp.tasks.task import TaskFacts

if TYPE_CHECKING:
    from raydp.analysis import Selection
    from raydp.sweep.engine.context import SweepContext
    from raydp.sweep.policy import Ending, Progress
    from raydp.sweep.store.folder import SweepFolder


class PrivateSelection:
    """ε covers the release of the best of a random number of runs of random configurations.

    A `SweepPolicy`.

    Source: Papernot and Steinke 2022.
    """

    section: ClassVar[type[PrivacySpec]] = PrivateSelectionSpec
    record: ClassVar[type[PrivateSelectionRecord] | None] = PrivateSelectionRecord
    document: ClassVar[type[BaseModel] | None] = PrivateSelectionDocument

    def __init__(self, spec: SweepSpec) -> None:
        assert isinstance(spec.privacy, PrivateSelectionSpec), "the tuning chooses the section"
        self._spec, self._privacy = spec, spec.privacy

    @staticmethod
    def completed(data: Mapping[str, object]) -> Mapping[str, object]:
        """Fill in the rule by utility, which the guarantee covers for every task."""
        return with_the_usual_rule(data)

    @staticmethod
    def conflicts(spec: SweepSpec) -> list[str]:
        """Return the parts of a spec that the guarantee does not cover."""
        return conflicts(spec)

    @staticmethod
    def disclosure(decision: str | None) -> Disclosure:
        """Tell of the released run alone."""
        return Disclosure(
            shows_runs=False,
            released=decision,
            note=(
                "a private selection: how many runs there were, and their utilities, scores and "
                "models, are as private as the data; only the released model and its card are "
                "covered by its ε"
            ),
            remark="private selection: its runs are as private as the data",
            keeps_scores=(
                "a private selection: its scores stay in the folder, for its ε does not cover what "
                "depends on the secrets"
            ),
            keeps_score=(
                "of a private selection no score is logged: its ε does not cover what depends on "
                "the secrets"
            ),
        )

    @staticmethod
    def select(folder: SweepFolder, **options: object) -> Selection:
        """Answer with the released model."""
        from raydp.extensions.private_selection.release import select_released

        return select_released(folder, **options)

    def check(self, facts: TaskFacts) -> None:
        """Check that the runs are compared on public data alone."""
        if not facts.utility_is_public:
            raise ValueError(
                "task.name must be a task whose utility rests on public data alone with "
                f"privacy.tuning private_selection, got {self._spec.task.name!r} with private "
                "held-out data. Use the task text with a public file as heldout_path and "
                "heldout_is_public: true, or set privacy.tuning: ignored."
            )

    def calibrate(
        self, requests: Sequence[CalibrationRequest], *, cache: Path, progress: Progress | None
    ) -> tuple[Sequence[Calibration], float | None]:
        """Calibrate all configurations together, so that the whole choice meets the target."""
        solved = calibrate_selection(
            requests,
            num_runs_of(self._spec),
            self._privacy.accountant,
            cache_dir=cache,
            progress=progress,
        )
        return solved.runs, solved.epsilon

    def choice(self, num_configurations: int, single_run_epsilon: float) -> PrivateSelectionRecord:
        """Describe the choice."""
        chosen = self._privacy.num_runs
        return PrivateSelectionRecord(
            distribution=chosen.distribution,
            mean=chosen.mean,
            eta=chosen.eta if chosen.distribution == "truncated_negative_binomial" else None,
            trials=chosen.trials,
            configurations=num_configurations,
            single_run_epsilon=single_run_epsilon,
            assumed=tuple(ASSUMED),
            bound=BOUNDS[self._privacy.accountant],
            best=best_in_words(self._spec),
        )

    def epsilon(
        self, event: Event, configurations: Sequence[Event], delta: float, accountant: str
    ) -> float:
        """Return ε of the whole choice, which every configuration enters."""
        private = [event for event in configurations if isinstance(event, PoissonGaussian)]
        return tuned_epsilon(private, num_runs_of(self._spec), delta, accountant)

    def sentence(self, num_configurations: int) -> str:
        """Describe the distribution of the draw, and nothing that was drawn."""
        return (
            "private selection: the number of runs is drawn from a "
            f"{self._privacy.num_runs.in_words()}, each run's configuration uniformly from these "
            f"{num_configurations}; only the best run is released, {best_in_words(self._spec)}, and "
            "its ε covers the choice"
        )

    def draw(self, num_configurations: int, key: bytes) -> list[tuple[int, int]]:
        """Draw the runs under the sweep's key."""
        return draw(num_runs_of(self._spec), num_configurations, key)

    def ending(self, context: SweepContext) -> Ending:
        """Return the ending that releases one run."""
        from raydp.extensions.private_selection.release import PrivateSelectionEnding

        return PrivateSelectionEnding(context)
