"""A search by Optuna for utility loss and score, under the constraints of the selection."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from raydp.extensions.searches.observations import observations_of
from raydp.search_spaces import Configuration
from raydp.spec.sections.section import Section
from raydp.sweep.search import Goal, Proposal, SearchState, known

DEFAULT_COST_SHARE = 0.5


class OptunaSearch(Section):
    """Run the suggestions of an Optuna sampler until the budget is used up.

    The study has two objectives, the means over seeds of utility_loss and score, both minimised.
    The selection's bounds are constraints: an infeasible configuration is never preferred to a
    feasible one. The sampler sees ln b, ln T and ln η as numbers. Its suggestion is moved to the
    nearest affordable configuration of the space that has not been run, and the study records that
    configuration. σ follows from (b, T) and is never sampled. A running configuration counts as bad
    until its result is known (a constant liar), so that parallel runs spread out.

    Source: Ozaki et al. 2022 (multi-objective TPE); Daulton et al. 2020 (expected hypervolume
    improvement); Deb et al. 2002 (NSGA-II); Optuna 5 for constraints.
    """

    sampler: Literal["tpe", "gp", "nsga2"] = "tpe"
    """`tpe`, Parzen estimators of good and of other configurations; `gp`, Gaussian processes and
    the expected gain of dominated area under constraints; `nsga2`, a genetic algorithm."""
    initial: Annotated[int, Field(ge=2)] = 5
    """Configurations that are drawn at random before the first estimates; for nsga2 the size of the
    population."""
    max_cost_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the compute of the whole space that may be spent; one half if num_configurations is
    not given either. At least one configuration is run, at any cost."""
    num_configurations: Annotated[int, Field(ge=1)] | None = None
    """How many configurations are run at most."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of Optuna's sampler."""

    def propose(self, state: SearchState, goal: Goal, count: int) -> Proposal:
        """See `Search`."""
        from raydp.extensions.searches.optuna_study import SearchStudy, new_sampler, opened

        observations = {} if state.points is None else observations_of(state.points, goal)
        with opened(state.folder) as record:
            study = SearchStudy.of(record, state, observations)
            chosen, taken = list(study.waiting[:count]), {*known(state), *study.waiting}
            left = self._left(state, taken)
            while left and len(chosen) < count:
                # A new sampler for each suggestion, seeded by the number of trials: a resumed
                # search goes on alike.
                sampler = new_sampler(
                    self.sampler, self.initial, seed=[self.seed, study.num_trials]
                )
                chosen.append(study.ask(sampler, left))
                taken.add(chosen[-1])
                left = self._left(state, taken)
        # The last result must be recorded in the study before the search ends.
        if chosen or left or state.running:
            return Proposal(configurations=tuple(chosen))
        return self._end(state, taken)

    def _left(self, state: SearchState, taken: set[Configuration]) -> list[Configuration]:
        """Return the configurations that may be run: untried, and within the rest of the budget."""
        if self.num_configurations is not None and len(taken) >= self.num_configurations:
            return []
        if not taken:  # run at least one, because a search that runs nothing selects nothing
            cheapest = min(c.compute for c in state.candidates)
            budget = max(self._cost_share() * sum(c.compute for c in state.candidates), cheapest)
        else:
            budget = self._cost_share() * sum(c.compute for c in state.candidates) - sum(
                c.compute for c in taken
            )
        return [c for c in state.candidates if c not in taken and c.compute <= budget]

    def _cost_share(self) -> float:
        if self.max_cost_share is not None:
            return self.max_cost_share
        return DEFAULT_COST_SHARE if self.num_configurations is None else 1.0

    def _end(self, state: SearchState, taken: set[Configuration]) -> Proposal:
        skipped = [c for c in state.candidates if c not in taken]
        if not skipped:
            return Proposal(finished=True, reason="every configuration has run")
        if self.num_configurations is not None and len(taken) >= self.num_configurations:
            why = f"it was not suggested among the first {self.num_configurations}"
            reason = f"the budget of {self.num_configurations} configurations is used up"
        else:
            why, reason = (
                "it costs more than is left of the budget",
                "the budget of compute is used up",
            )
        return Proposal(finished=True, reason=reason, skipped=dict.fromkeys(skipped, why))
