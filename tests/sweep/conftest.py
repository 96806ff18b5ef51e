"""Sweeps that several files of tests look at: each is run once."""

from __future__ import annotations

import pytest

from tests.builders.specs import SMALL_TASK
from tests.sweep.explored import Explored
from tests.sweep.trained import Trained

TWINS = {"name": "planted", "of": SMALL_TASK, "copies": {20: 3}, "twins": True}
"""A task whose secrets and controls are other ones for each seed."""


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"), task=TWINS)


@pytest.fixture(scope="session")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Explored:
    return Explored(tmp_path_factory.mktemp("explored"))
