"""Models that several tests of the scores share; nothing changes them."""

from __future__ import annotations

import pytest

from raydp.models.base_models import LoadedModel
from tests.builders.models import byte_tokenizer, llama, memorise
from tests.builders.secrets import made_up_secrets


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="session")
def untrained(tokenizer) -> LoadedModel:
    """A model that never saw anything."""
    return LoadedModel(model=llama(len(tokenizer)), tokenizer=tokenizer)


@pytest.fixture(scope="session")
def memorised(tokenizer) -> LoadedModel:
    """A model that says the first eight secrets of seed 0 of either kind."""
    known = [s for kind in ("verbatim", "attribute") for s in made_up_secrets(kind, 8, seed=0)]
    return memorise(known, tokenizer)
