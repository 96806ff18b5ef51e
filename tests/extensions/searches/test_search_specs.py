"""The section `space.search` of a spec that names a search of the extension."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from tests.builders.specs import small_spec

WITHOUT_SCORES: dict[str, Any] = {"scores": [], "select": {"min_gain_share": None}}


def spec_of(search: Any, **changes: Any) -> SweepSpec:
    content = small_spec(Path(), **changes)
    return load_spec({**content, "space": {**content["space"], "search": search}})


@pytest.mark.parametrize(
    ("search", "changes", "message"),
    [
        ("frugl", {}, "Did you mean 'frugal'"),
        ({"name": "frugal", "stop_probability": 2}, {}, "space.search.stop_probability must"),
        ({"name": "optuna", "sampler": "cma"}, {}, "space.search.sampler must"),
        ({"name": "frugal"}, WITHOUT_SCORES, "space.search must be random"),
        ("frugal", {"seeds": {"first": 2}}, "seeds must be a list with space.search 'frugal'"),
    ],
)
def test_a_wrong_search_is_refused(search: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec_of(search, **changes)


def test_a_search_is_written_by_its_name() -> None:
    frugal, optuna = (spec_of(name).space.search for name in ("frugal", "optuna"))
    assert frugal is not None
    assert optuna is not None
    assert frugal.params.stop_probability == 0.1
    assert optuna.params.sampler == "tpe"
    spec = spec_of("frugal")
    assert load_spec(spec.model_dump(mode="json")) == spec, "as the sweep's folder keeps it"
