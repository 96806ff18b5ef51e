"""Every search runs the conformance suite, and the room that they live in is light."""

from __future__ import annotations

import subprocess
import sys

import pytest

from raydp.plugins import registries
from raydp.testing.searches import SearchConformance


class TestFrugal(SearchConformance):
    name, written = "frugal", {"num_draws": 50, "max_cost_share": 0.1}


class TestRandom(SearchConformance):
    name, written = "random", {"num_configurations": 7}


class TestOptuna(SearchConformance):
    name, written = "optuna", {"num_configurations": 20}


@pytest.mark.slow
class TestOptunaByCost(SearchConformance):
    name, written = "optuna", {"max_cost_share": 0.2, "initial": 3}


@pytest.mark.slow
class TestOptunaNSGA2(SearchConformance):
    name, written = "optuna", {"sampler": "nsga2", "num_configurations": 20, "initial": 4}


def test_every_registered_search_runs_the_suite() -> None:
    own = {
        suite.name for suite in SearchConformance.__subclasses__() if suite.__module__ == __name__
    }
    assert own == set(registries.names("searches"))


def test_a_search_is_imported_without_ray_torch_or_optuna() -> None:
    code = (
        "import sys; from raydp.plugins import registries; "
        "[registries.resolve('searches', n) for n in registries.names('searches')]; "
        "print(*sorted({'ray', 'torch', 'mlflow', 'optuna'} & set(sys.modules)))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert not loaded.split()
