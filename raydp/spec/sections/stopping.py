"""Which runs end before their last step."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from raydp.spec.sections.base import AtLeastOne, Section


class StoppingSpec(Section):
    """Ends runs that diverge, or that cannot keep enough utility to be selected, and frees what they hold."""

    checks: Annotated[int, Field(ge=1, le=100)] = 3
    """How often the utility of a run is measured on the way, at equal distances."""
    min_finished: AtLeastOne = 3
    """Number of runs that must have finished before another run is compared with them."""
    slack: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """A run ends early if even an optimistic estimate of its gain is this share below what selection asks for.
    Selection goes by means over seeds and a check by one run, hence the slack."""
