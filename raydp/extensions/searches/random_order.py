"""The search that runs a random part of a space."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from raydp.spec.sections.section import Section
from raydp.sweep.search import Goal, Proposal, SearchState, known


class RandomSearch(Section):
    """Run a random part of the space."""

    num_configurations: Annotated[int, Field(ge=1)]
    """How many configurations are run."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the random order."""

    def propose(self, state: SearchState, goal: Goal, count: int) -> Proposal:
        """See `Search`."""
        # A function of the seed alone, so a resumed search draws the same configurations.
        order = np.random.default_rng(self.seed).permutation(len(state.candidates))
        chosen = [state.candidates[at] for at in order[: self.num_configurations]]
        taken = set(known(state))
        left = tuple(c for c in chosen if c not in taken)
        if left:
            return Proposal(configurations=left[:count])
        skipped = dict.fromkeys([c for c in state.candidates if c not in taken], "it was not drawn")
        return Proposal(
            finished=True, reason=f"{len(chosen)} configurations were drawn", skipped=skipped
        )
