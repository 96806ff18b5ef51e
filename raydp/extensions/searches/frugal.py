"""A search that runs only configurations that may still change the selection."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from raydp.analysis.selection.rules import Layout, choose
from raydp.analysis.tables.coordinates import Coordinates
from raydp.analysis.tables.points import configuration_means
from raydp.extensions.prediction.fitted_surface import FEWEST, Fitted
from raydp.search_spaces import Configuration
from raydp.spec.sections.section import Section
from raydp.sweep.search import Goal, Proposal, SearchState, known

Array = NDArray[np.float64]
Members = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class _SurfaceDraws:
    """S draws of the fitted surfaces of utility loss and score, at all m candidates.

    Attributes:
        layout: the candidates, with utility_loss and score [S, m].
        allowed: [S, m] whether a candidate keeps to the utility threshold of each draw, and to the
            bound on the score.
        rule: the rule that selects.
    """

    layout: Layout
    allowed: Members
    rule: str

    def selected_score(self, members: Members) -> Array:
        """Return [S, ...] the rule's score among members [..., m]; a draw's worst if none fits."""
        # The draws [S, m] are spread over the leading axes of the members [..., m].
        extra = (1,) * (members.ndim - 1)
        shape = (len(self.allowed), *extra, members.shape[-1])
        loss, score = self.layout.utility_loss.reshape(shape), self.layout.score.reshape(shape)
        pools = self.allowed.reshape(shape) & members
        none_allowed = np.asarray(~pools.any(axis=-1))
        # A rule needs a member; the result is replaced below.
        filled = np.where(none_allowed[..., None], True, pools)
        stacked = replace(self.layout, utility_loss=loss, score=score)
        chosen = choose(self.rule, stacked, filled)
        picked = np.take_along_axis(
            np.broadcast_to(score, filled.shape), chosen[..., None], axis=-1
        )[..., 0]
        return np.where(none_allowed, score.max(axis=-1), picked)


class FrugalSearch(Section):
    """Run next the configuration that is expected to improve the selection most for its cost.

    Surfaces of utility and score over the configurations' coordinates are fitted to the finished
    runs (`raydp.extensions.prediction.surface`: Gaussian processes whose slopes have the heuristics'
    signs as prior) and drawn many times at all candidates. In each draw, the utility threshold and
    the rule select from the configurations that have run, with and without one candidate more. A
    candidate's worth is the mean difference of the two selected scores per unit of compute C = b·T.
    The search ends when the probability that any one candidate would improve the selected score by
    more than `tolerance` is below `stop_probability`. The probability is estimated from the
    surfaces, so it ignores any effect that the surfaces cannot represent."""

    stop_probability: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """The search ends when the probability that one more configuration would win is below this."""
    tolerance: Annotated[float, Field(ge=0)] = 0.05
    """A win is an improvement by more than this share of the selected score's size."""
    initial: Annotated[int, Field(ge=FEWEST)] = 4
    """Configurations that are run before the first surfaces are fitted: cheap ones that lie far
    apart."""
    max_cost_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the compute of the whole space that may be spent; what is left over is not run."""
    num_draws: Annotated[int, Field(ge=50)] = 400
    """Number of draws of the fitted surfaces; more draws make the estimate of a win steadier and
    slower."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the draws of the surfaces."""

    def propose(self, state: SearchState, goal: Goal, count: int) -> Proposal:
        """See `Search`."""
        candidates = state.candidates
        # Find the candidates that are affordable, and end if there are none.
        cost = np.array([c.compute for c in candidates], dtype=np.float64)
        begun = set(known(state))
        taken = np.array([c in begun for c in candidates])
        affordable = ~taken & (cost <= self.max_cost_share * cost.sum() - cost[taken].sum())
        if taken.all():
            return Proposal(finished=True, reason="every configuration has run")
        if not affordable.any():
            return self._end(
                candidates, taken, "the budget of compute is used up", "it costs more than is left"
            )
        # Run the initial configurations first.
        if taken.sum() < self.initial:
            count = min(count, self.initial - int(taken.sum()))
            return Proposal(configurations=_spread_out(candidates, cost, taken, affordable, count))
        # Too few results for a surface: wait for the runs in progress, or run more.
        means = None if state.points is None else configuration_means(state.points)
        if means is None or len(means) < FEWEST:
            if state.running:
                return Proposal()
            return Proposal(configurations=_spread_out(candidates, cost, taken, affordable, count))
        # Choose by the fitted surfaces.
        draws = self._draws(candidates, means, goal)
        return self._next(candidates, cost, taken, affordable, draws, count)

    def _draws(
        self, candidates: tuple[Configuration, ...], means: pd.DataFrame, goal: Goal
    ) -> _SurfaceDraws:
        """Fit surfaces of utility loss and score to the means, and draw both at all candidates."""
        table = _table(candidates)
        surface = partial(Fitted.to, means, coordinates=Coordinates.of(table), seed=self.seed)
        loss = surface("utility_loss").draw(table, self.num_draws, seed=self.seed)
        # Another seed, because equal draws would tie the score to the utility.
        score = surface("score").draw(table, self.num_draws, seed=self.seed + 1)
        # In each draw, the best loss is over the whole space.
        allowed = loss <= goal.threshold(loss.min(axis=1))[:, None]
        if goal.max_score is not None:
            allowed &= score <= goal.max_score
        every = table.assign(score=0.0, score_std=np.nan, num_seeds=1)
        layout = replace(Layout.of(every.assign(utility_loss=0.0)), utility_loss=loss, score=score)
        # A draw has no errors, so the rule that weighs errors becomes the oracle.
        rule = "oracle" if goal.rule == "informed" else goal.rule
        return _SurfaceDraws(layout=layout, allowed=allowed, rule=rule)

    def _next(
        self,
        candidates: tuple[Configuration, ...],
        cost: Array,
        taken: Members,
        affordable: Members,
        draws: _SurfaceDraws,
        count: int,
    ) -> Proposal:
        """Choose candidates one by one, as if the earlier ones had run, while one may win."""
        members = taken.copy()
        chosen: list[Configuration] = []
        left_over = self.max_cost_share * cost.sum() - cost[taken].sum()
        while (
            len(chosen) < count
            and (left := np.flatnonzero(~members & affordable & (cost <= left_over))).size
        ):
            # One-step look-ahead: the selected score now and with each candidate more, in every
            # draw.
            now = draws.selected_score(members)
            with_one = np.tile(members, (len(left), 1))
            with_one[np.arange(len(left)), left] = True
            gain = now[:, None] - draws.selected_score(with_one)  # [S, left]
            wins = gain > self.tolerance * np.abs(now)[:, None]
            # Stop when in nearly every draw no single candidate would win.
            if wins.any(axis=1).mean() < self.stop_probability:
                if chosen:
                    break
                return self._stop(
                    candidates, taken, left, draws, wins.mean(axis=0), gain.mean(axis=0)
                )
            # Expected improvement per unit of compute, as if all that was chosen before had run.
            worth = np.maximum(gain, 0).mean(axis=0) / cost[left]
            best = int(left[int(worth.argmax())])
            chosen.append(candidates[best])
            members[best] = True
            left_over -= cost[best]
        return Proposal(configurations=tuple(chosen))

    def _stop(
        self,
        candidates: tuple[Configuration, ...],
        taken: Members,
        left: NDArray[np.intp],
        draws: _SurfaceDraws,
        wins: Array,
        gain: Array,
    ) -> Proposal:
        """End the search, with each remaining candidate's probability of a win and mean gain."""
        within = draws.allowed.mean(axis=0)
        skipped = {
            candidates[
                at
            ]: f"keeps to the threshold with probability {within[at]:.2f} and would improve the selected "
            f"score by more than {self.tolerance:.0%} with probability {win:.2f} (mean improvement "
            f"{mean:.3g})"
            for at, win, mean in zip(left, wins, gain, strict=True)
        }
        reason = f"the probability that a configuration left would win is below {self.stop_probability:g}"
        for at in np.flatnonzero(~taken):
            skipped.setdefault(candidates[at], "it costs more than is left of the budget")
        return Proposal(finished=True, reason=reason, skipped=skipped)

    def _end(
        self, candidates: tuple[Configuration, ...], taken: Members, reason: str, why: str
    ) -> Proposal:
        """End the search for a reason; `why` says why each remaining candidate is skipped."""
        skipped = {candidates[at]: why for at in np.flatnonzero(~taken)}
        return Proposal(finished=True, reason=reason, skipped=skipped)


def _table(candidates: tuple[Configuration, ...]) -> pd.DataFrame:
    return pd.DataFrame([c.to_row() for c in candidates])


def _spread_out(
    candidates: tuple[Configuration, ...],
    cost: Array,
    taken: Members,
    affordable: Members,
    count: int,
) -> tuple[Configuration, ...]:
    """Return cheap configurations that are far apart.

    The first is the cheapest. Each other one has the largest distance to the taken ones over the
    square root of its cost.
    """
    table = _table(candidates)
    coordinates = Coordinates.of(table).values(table)
    # Scale each coordinate's range to 1, so that none dominates the distance.
    spread = np.ptp(coordinates, axis=0)
    place = (coordinates - coordinates.min(axis=0)) / np.where(spread > 0, spread, 1.0)
    members, chosen = taken.copy(), []
    # Greedy farthest-point design, with the distance divided by the square root of the cost.
    for _ in range(count):
        left = np.flatnonzero(affordable & ~members)
        if not len(left):
            break
        if members.any():
            distance = np.sqrt(((place[left, None] - place[None, members]) ** 2).sum(axis=-1)).min(
                axis=1
            )
            best = int(left[int((distance / np.sqrt(cost[left])).argmax())])
        else:
            best = int(left[int(cost[left].argmin())])
        members[best] = True
        chosen.append(candidates[best])
    return tuple(chosen)
