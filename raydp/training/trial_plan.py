"""The plan of one run.

The module imports little, so that reading a plan does not load the training code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raydp.analysis.tables.statements import UNPROVEN, Statement, stated_columns
from raydp.search_spaces import Configuration
from raydp.search_spaces.settings import NO_SETTINGS, Settings


@dataclass(frozen=True, kw_only=True)
class TrialPlan:
    """One (configuration, seed) to train: everything that decides the result, and its name.

    Attributes:
        run_id: hash of what defines the run; names its noise, its folder and its record.
        batch_size: b, the expected number of units drawn in a step.
        num_examples: n, the number of units of privacy to draw from (examples, or users). The
            sampling rate is b / n.
        noise_multiplier: σ of the accounted mechanism, noise std over the sensitivity; 0 for a
            method without noise.
        seed: public seed of the repetition, for initialisation and score sampling.
        stated: ε that the method states without proof; None for methods whose ε is accounted.
        delta: δ that the method states; None for methods whose ε is accounted.
        source: folder of a model that was trained elsewhere; None for a run that is trained.
        settings: the further fields of the spec that the configuration sets.
    """

    run_id: str
    batch_size: int
    num_steps: int
    learning_rate: float
    seed: int
    num_examples: int
    noise_multiplier: float
    stated: Statement | None = None
    delta: float | None = None
    source: str | None = None
    settings: Settings = NO_SETTINGS

    def to_json(self) -> dict[str, object]:
        """Return the run as plan.json holds it, with its settings as text."""
        written = {**vars(self), "settings": self.settings.text, **stated_columns(self.stated)}
        return {name: value for name, value in written.items() if name != "stated"}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TrialPlan:
        """Read what `to_json` wrote. Earlier versions wrote no settings."""
        plain = {name: value for name, value in document.items() if name not in UNPROVEN}
        settings = Settings.parse(document.get("settings", ""))
        return cls(**{**plain, "settings": settings, "stated": Statement.of(document)})

    def __str__(self) -> str:
        return f"{self.configuration} seed {self.seed}"

    @property
    def configuration(self) -> Configuration:
        """Return the part of the plan that a sweep varies."""
        return Configuration(
            batch_size=self.batch_size,
            num_steps=self.num_steps,
            learning_rate=self.learning_rate,
            settings=self.settings,
        )
