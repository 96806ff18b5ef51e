"""A sweep that several files of tests look at: it is run once."""

from __future__ import annotations

import pytest

from tests.sweep.trained import Trained


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))
