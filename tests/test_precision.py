"""A machine whose bfloat16 products are slow says so before a sweep begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from raydp.models import precision
from raydp.spec.reading import load_spec
from raydp.sweep.planning.plan import make_plan
from tests.builders import toys
from tests.builders.specs import small_spec


@pytest.fixture(autouse=True)
def _measured_anew() -> Iterator[None]:
    precision.bfloat16_factor.cache_clear()
    yield
    precision.bfloat16_factor.cache_clear()


def warnings_of(folder: Path, dtype: str, **cluster: Any) -> str:
    spec = small_spec(folder, cluster=cluster)
    spec["model"]["dtype"] = dtype
    return " ".join(
        str(warning)
        for warning in make_plan(load_spec(spec), toys.task(2000).facts(), "weights").warnings
    )


def test_the_factor_is_measured_and_leaves_the_threads_alone() -> None:
    before = torch.get_num_threads()
    assert 0.01 < precision.bfloat16_factor() < 1000
    assert torch.get_num_threads() == before


def test_slow_products_are_said_with_the_factor_where_this_machine_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        precision, "_seconds", lambda dtype: 8.3 if dtype == torch.bfloat16 else 1.0
    )
    said = "got bfloat16, which take 8.3 times as long as those in float32. Write float32"
    assert said in warnings_of(tmp_path, "bfloat16")
    assert said not in warnings_of(tmp_path, "float32")
    assert said not in warnings_of(tmp_path, "bfloat16", gpus_per_worker=1), "a GPU computes"
    assert said not in warnings_of(tmp_path, "bfloat16", address="10.0.0.1:6379"), (
        "other machines compute"
    )


def test_fast_products_are_not_worth_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        precision, "_seconds", lambda dtype: 0.2 if dtype == torch.bfloat16 else 1.0
    )
    assert "float32" not in warnings_of(tmp_path, "bfloat16")
