"""What `privacy.tuning: private_selection` asks of the rest of a spec: the guarantee covers one way to choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raydp.spec import SweepSpec


def with_the_only_rule(data: Any) -> Any:
    """A spec's content with what `select` leaves out as private selection needs it; any other content as it is."""
    if not isinstance(data, Mapping):
        return data
    privacy, select = data.get("privacy"), data.get("select")
    if not isinstance(privacy, Mapping) or not isinstance(select, Mapping):
        return data
    if privacy.get("tuning") != "private_selection":
        return data
    return {**data, "select": {"rule": "best-utility", "min_utility_gain": None, **select}}


def conflicts(spec: SweepSpec) -> list[str]:
    """What in the spec the guarantee of a private selection does not cover, each with what to change."""
    if not spec.privacy.selects:
        return []
    given = "with privacy.tuning private_selection, got"
    problems = [
        f"select.{name} must be left out {given} {value}. Remove it: the guarantee covers the best utility alone."
        for name, value in spec.select.constraints().items()
    ]
    if spec.select.rule != "best-utility":
        problems.append(
            f"select.rule must be best-utility {given} {spec.select.rule!r}. The other rules use scores or several "
            "runs, which the guarantee does not cover."
        )
    if spec.space.search is not None:
        problems.append(
            f"space.search must be left out {given} {spec.space.search.name!r}. Runs are drawn from the whole space."
        )
    if spec.stopping is not None:
        problems.append(f"stopping must be left out {given} checks. Which runs end early is seen in the private data.")
    if spec.seeds != (0,):
        problems.append(f"seeds must be left out {given} {list(spec.seeds)}. Every run draws a seed of its own.")
    if (weight := getattr(spec.method.params, "reference_weight", None)) is not None:
        problems.append(
            f"method.reference_weight must be left out {given} {weight:g}. A choice is not accounted for each data set."
        )
    if not spec.method.params.private:
        problems.append(f"method.name must be a private method {given} {spec.method.name!r}. Use dp_adam or dp_sgd.")
    return problems
