"""The section `privacy` of a private selection, and its rules for the rest of a spec.

The guarantee covers one way to choose.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from raydp.extensions.private_selection.num_runs import (
    BinomialRuns,
    NumRuns,
    PoissonRuns,
    TruncatedNegativeBinomial,
)
from raydp.extensions.private_selection.record import BY_UTILITY
from raydp.extensions.private_selection.tuning import check_bound
from raydp.spec.document import SweepSpec
from raydp.spec.sections import AdaptiveSeeds, PrivacySpec, Section


class NumRunsSpec(Section):
    """The distribution of the number K of runs of a private selection."""

    distribution: Literal["truncated_negative_binomial", "poisson", "binomial"] = (
        "truncated_negative_binomial"
    )
    """`truncated_negative_binomial` (K >= 1), `poisson` or `binomial` (with K = 0 nothing is
    trained or released)."""
    mean: Annotated[float, Field(gt=1, le=1000)] = 10.0
    """E[K], the expected number of runs."""
    eta: Annotated[float, Field(ge=-0.5, le=10)] = 1.0
    """η of the truncated negative binomial: 1 is geometric, 0 is logarithmic.

    A smaller value costs less privacy and spreads K more.
    """
    trials: Annotated[int, Field(ge=2, le=10_000)] | None = None
    """The largest K of the binomial distribution, above the mean.

    Fewer trials spread K less and cost more privacy.
    """

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> NumRunsSpec:
        # Only what the user wrote can be ignored; a default cannot.
        for name in self._unused() & self.model_fields_set:
            raise ValueError(
                f"privacy.num_runs.{name} must be left out with distribution {self.distribution}, "
                f"got {getattr(self, name):g}. Remove it."
            )
        if self.distribution == "binomial" and not (self.trials or 0) > self.mean:
            raise ValueError(
                f"privacy.num_runs.trials must be an integer > mean {self.mean:g} with "
                f"distribution binomial, got {self.trials}. It is the largest number of runs: "
                "twice the mean is usual."
            )
        return self

    def _unused(self) -> set[str]:
        """Return the fields that the distribution does not have."""
        used = {"truncated_negative_binomial": "eta", "binomial": "trials"}.get(self.distribution)
        return {"eta", "trials"} - {used}

    @model_serializer(mode="wrap")
    def _without_what_does_not_apply(
        self, handler: SerializerFunctionWrapHandler
    ) -> dict[str, object]:
        # Unused fields are no part of the identity of a run.
        values: dict[str, object] = handler(self)
        return {k: v for k, v in values.items() if k not in self._unused()}

    def in_words(self) -> str:
        """Describe the distribution, and nothing that was drawn."""
        return {
            "poisson": f"Poisson distribution with mean {self.mean:g}",
            "binomial": f"binomial distribution with mean {self.mean:g} of at most {self.trials} "
            "runs",
            "truncated_negative_binomial": "truncated negative binomial distribution with mean "
            f"{self.mean:g} and η = {self.eta:g}",
        }[self.distribution]


class PrivateSelectionSpec(PrivacySpec):
    """The guarantee of a private selection: ε covers the release of the best of several runs."""

    tuning: Literal["private_selection"]
    """`private_selection`: ε covers the one released model, which is the best of a random number of
    runs (Papernot and Steinke 2022): by utility on public data, or by the leak of planted twins.
    """
    num_runs: NumRunsSpec = NumRunsSpec()
    """The distribution of the number of runs; with tuning `private_selection` only."""

    @model_validator(mode="before")
    @classmethod
    def _has_a_distribution(cls, data: object) -> object:
        """Add the default distribution where the spec has an empty one."""
        if isinstance(data, Mapping) and data.get("num_runs") is None:
            return {**data, "num_runs": {}}
        return data

    @model_validator(mode="after")
    def _has_a_bound(self) -> PrivateSelectionSpec:
        check_bound(self.accountant, field="privacy.accountant")
        # Papernot and Steinke 2022 have no Rényi bound for a binomial number of runs.
        if (self.num_runs.distribution, self.accountant) == ("binomial", "rdp"):
            raise ValueError(
                "privacy.accountant must be pld with num_runs.distribution binomial, got 'rdp'. "
                "Rényi divergences have no theorem for it: set it to pld."
            )
        return self


def num_runs_of(spec: SweepSpec) -> NumRuns:
    """Return the distribution of the number of runs that a spec asks for."""
    assert isinstance(spec.privacy, PrivateSelectionSpec), "the tuning chooses the section"
    chosen = spec.privacy.num_runs
    if chosen.distribution == "poisson":
        return PoissonRuns(mean=chosen.mean)
    if chosen.distribution == "binomial":
        assert chosen.trials is not None, "the section checks it"
        return BinomialRuns(mean=chosen.mean, trials=chosen.trials)
    return TruncatedNegativeBinomial.with_mean(chosen.mean, eta=chosen.eta)


def with_the_usual_rule(data: Mapping[str, object]) -> Mapping[str, object]:
    """Return a spec's content with the rule by utility, unless it has another one."""
    select = data.get("select")
    if not isinstance(select, Mapping):
        return data
    # What the user wrote wins, and is refused later if the guarantee does not cover it.
    return {**data, "select": {"rule": "best-utility", "min_gain_share": None, **select}}


def by_least_leak(spec: SweepSpec) -> bool:
    """Return whether the released run is the one that leaks least of those that are useful enough.

    A run is useful enough if its utility loss on public data is at most `select.max_loss`. The leak
    is `select.score`, measured on planted twins. See `_leak_conflicts`.
    """
    return spec.select.rule == "oracle"


def best_in_words(spec: SweepSpec) -> str:
    """Say by what the released run is the best."""
    if by_least_leak(spec):
        select = spec.select
        return (
            f"by the lowest {select.score} of planted twins among those with a utility loss of at "
            f"most {select.max_loss:g} on public data"
        )
    return BY_UTILITY


def _leak_conflicts(spec: SweepSpec, given: str) -> list[str]:
    """Return why the leak of a run is more than a function of the model and of the run's own coins.

    The canaries are nobody's data. Which twin of a pair is planted is decided by coins that depend
    on the run's seed alone. So given the coins, training data of neighbours differ in one unit, and
    a score of the twins post-processes the model. The order of two runs by (useful enough, leak)
    then depends on nothing else, as the theorems ask of any order. The canaries count in n.
    """
    select, task = spec.select, spec.task.params
    problems = []
    if select.max_loss is None:
        problems.append(
            f"select.max_loss must be given with select.rule oracle {given} nothing. A run is "
            "useful enough up to this loss, which may not depend on the runs."
        )
    if not (spec.task.name == "planted" and task.twins and not task.own_secrets):
        problems.append(
            f"task must be planted with twins: true and own_secrets: false with select.rule oracle "
            f"{given} {spec.task.name!r}. A leak of private secrets is outside the guarantee."
        )
    kinds = {score.name: score.params.secret_kinds for score in spec.scores}
    if not kinds.get(select.score or ""):
        problems.append(
            "select.score must be a score of secrets alone, such as logprob, with select.rule "
            f"oracle {given} {select.score!r}. Others look at private examples."
        )
    return problems


def conflicts(spec: SweepSpec) -> list[str]:
    """Return the parts of a spec that a private selection does not cover, each with a remedy."""
    # Papernot and Steinke 2022 release the best of K runs by one measure. Everything that looks at
    # other results, or at runs that are not released, is refused.
    select, space, method, seeds = spec.select, spec.space, spec.method, spec.seeds
    given = "with privacy.tuning private_selection, got"
    # Check the selection: it orders the runs by figures that are public but for the model.
    problems = [
        f"select.{name} must be left out {given} {value}. Remove it: the guarantee does not cover "
        "it."
        for name, value in select.constraints().items()
        if not (by_least_leak(spec) and name == "max_loss")
    ]
    if by_least_leak(spec):
        problems += _leak_conflicts(spec, given)
    elif select.rule != "best-utility":
        problems.append(
            f"select.rule must be best-utility, or oracle on planted twins, {given} "
            f"{select.rule!r}. The other rules use private scores or several runs, which the "
            "guarantee does not cover."
        )
    # Check the runs: they are K independent draws from the whole space.
    if space.search is not None:
        problems.append(
            f"space.search must be left out {given} {space.search.name!r}. Runs are drawn from the "
            "whole space."
        )
    if spec.stopping is not None:
        problems.append(
            f"stopping must be left out {given} checks. It ends runs early by looking at private "
            "data."
        )
    if seeds != (0,):
        written = seeds.model_dump() if isinstance(seeds, AdaptiveSeeds) else list(seeds)
        problems.append(
            f"seeds must be left out {given} {written}. Every run draws a seed of its own."
        )
    # Check what leaves the sweep's folder: only the released run may.
    if spec.tracking.loggers:
        problems.append(
            f"tracking.loggers must be left out {given} {list(spec.tracking.loggers)}. Remove it: the "
            "logs would show the runs that are not released."
        )
    # Check the mechanism of each run: it is one event with a finite ε.
    if (weight := dict(method.params).get("reference_weight")) is not None:
        problems.append(
            f"method.reference_weight must be left out {given} {weight:g}. "
            "The cost of a choice is not known for each data set."
        )
    if not method.params.private:
        problems.append(
            f"method.name must be a private method {given} {method.name!r}. Use dp_adam or dp_sgd."
        )
    return problems
