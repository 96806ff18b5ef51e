"""The section on runs that end before their last step."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from raydp.spec.sections.section import AtLeastOne, Section


class StoppingSpec(Section):
    """Early stopping of runs that diverge, or whose utility is too low to be selected.

    It frees their workers.
    """

    checks: Annotated[int, Field(ge=1, le=100)] = 3
    """How often the utility of a run is measured during training, at equal distances."""
    min_finished: AtLeastOne = 3
    """Number of runs that must have finished before another run is compared with them."""
    slack: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """A run ends early if even an optimistic estimate of its gain is this share below what
    selection asks for. Selection uses means over seeds, and a check uses one run, hence the
    slack."""
