"""Rules of `privacy.tuning: private_selection` for the rest of a spec. The guarantee covers one way to choose."""

from __future__ import annotations

from collections.abc import Mapping

from raydp.plugins.described import Plugin
from raydp.spec.sections.cluster import TrackingSpec
from raydp.spec.sections.privacy import PrivacySpec
from raydp.spec.sections.seeds import AdaptiveSeeds
from raydp.spec.sections.selection import SelectSpec
from raydp.spec.sections.space import SpaceSpec
from raydp.spec.sections.stopping import StoppingSpec


def with_the_only_rule(data: object) -> object:
    """Return a spec's content. For a private selection, fill in the only rule that its guarantee covers."""
    if not isinstance(data, Mapping):
        return data
    privacy, select = data.get("privacy"), data.get("select")
    if not isinstance(privacy, Mapping) or not isinstance(select, Mapping):
        return data
    if privacy.get("tuning") != "private_selection":
        return data
    return {**data, "select": {"rule": "best-utility", "min_utility_gain": None, **select}}


def conflicts(
    *,
    privacy: PrivacySpec,
    select: SelectSpec,
    space: SpaceSpec,
    stopping: StoppingSpec | None,
    seeds: AdaptiveSeeds | tuple[int, ...],
    method: Plugin,
    tracking: TrackingSpec,
) -> list[str]:
    """Return the parts of a spec that the guarantee of a private selection does not cover, each with a remedy."""
    if not privacy.selects:
        return []
    given = "with privacy.tuning private_selection, got"
    problems = [
        f"select.{name} must be left out {given} {value}. Remove it: the guarantee covers the best utility alone."
        for name, value in select.constraints().items()
    ]
    if select.rule != "best-utility":
        problems.append(
            f"select.rule must be best-utility {given} {select.rule!r}. The other rules use scores or several "
            "runs, which the guarantee does not cover."
        )
    if space.search is not None:
        problems.append(
            f"space.search must be left out {given} {space.search.name!r}. Runs are drawn from the whole space."
        )
    if stopping is not None:
        problems.append(f"stopping must be left out {given} checks. It ends runs early by looking at private data.")
    if seeds != (0,):
        written = seeds.model_dump() if isinstance(seeds, AdaptiveSeeds) else list(seeds)
        problems.append(f"seeds must be left out {given} {written}. Every run draws a seed of its own.")
    if tracking.loggers:
        problems.append(
            f"tracking.loggers must be left out {given} {list(tracking.loggers)}. Remove it: the logs would show the "
            "runs that are not released."
        )
    if (weight := dict(method.params).get("reference_weight")) is not None:
        problems.append(
            f"method.reference_weight must be left out {given} {weight:g}. "
            "The cost of a choice is not known for each data set."
        )
    if not method.params.private:
        problems.append(f"method.name must be a private method {given} {method.name!r}. Use dp_adam or dp_sgd.")
    return problems
