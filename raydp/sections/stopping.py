"""Which runs end before their last step."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from raydp.sections.base import AtLeastOne, Section


class StoppingSpec(Section):
    """Ends runs that diverge, or that cannot keep enough utility to be selected, and frees what they hold.

    Attributes:
        checks: how often a run's utility is measured on the way, at equal distances.
        min_finished: so many runs must have finished before one is compared with them.
        slack: a run is ended if even an optimistic estimate of its gain is this share below what is asked for: the
            selection goes by means over seeds, and a check by one run.
    """

    checks: Annotated[int, Field(ge=1, le=100)] = 3
    min_finished: AtLeastOne = 3
    slack: Annotated[float, Field(ge=0, lt=1)] = 0.1
