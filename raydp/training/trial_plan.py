"""One run as it is planned. The module is light: whoever reads a plan need not load what trains."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces import Configuration


@dataclass(frozen=True, kw_only=True)
class TrialPlan:
    """One (configuration, seed) to train: everything that decides the result, and its name.

    Attributes:
        run_id: hash of what defines the run; names its noise, its folder and its record.
        batch_size: b, the expected number of units drawn in a step.
        num_examples: n, the units of privacy that are drawn from (examples, or users). The sampling rate is b / n.
        noise_multiplier: σ of the accounted mechanism, noise std over the sensitivity; 0 for a method without noise.
        seed: public label of the repetition: initialisation and score sampling.
        claimed_epsilon: ε that a method claims without proof, and
        delta: its δ; None for the other methods, whose ε is accounted.
    """

    run_id: str
    batch_size: int
    num_steps: int
    learning_rate: float
    seed: int
    num_examples: int
    noise_multiplier: float
    claimed_epsilon: float | None = None
    delta: float | None = None

    @property
    def configuration(self) -> Configuration:
        """What of it a sweep varies."""
        return Configuration(batch_size=self.batch_size, num_steps=self.num_steps, learning_rate=self.learning_rate)
