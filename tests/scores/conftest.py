"""Models that several tests of the scores share; nothing changes them."""

from __future__ import annotations

import pytest

from raydp.models.base_models import LoadedModel
from raydp.testing.scores import memorised_model, untrained_model


@pytest.fixture(scope="session")
def tokenizer():
    return untrained_model().tokenizer


@pytest.fixture(scope="session")
def untrained() -> LoadedModel:
    return untrained_model()


@pytest.fixture(scope="session")
def memorised() -> LoadedModel:
    return memorised_model()
