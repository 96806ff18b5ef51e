"""Sweeps that several files of tests look at: each is run once."""

from __future__ import annotations

import pytest

from tests.sweep.trained import Trained
from tests.sweep.undisturbed import Done


@pytest.fixture(scope="session")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return Done(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))
