"""A store, its tracker and records of runs, as in the tests of tracking, and keys that sign."""

import pytest

from raydp import tracking
from tests.tracking.conftest import (  # noqa: F401 - fixtures
    adapter,
    base_folder,
    empty_store,
    open_tracker,
    record,
    schema,
    tracker,
    uri,
)
from tests.tracking.test_seals import two_models


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Two private keys and their public halves."""
    folder = tmp_path_factory.mktemp("keys")
    return {name: (folder / name, tracking.new_key(folder / name)) for name in ("team", "other")}


@pytest.fixture
def signed(uri, record, keys):  # noqa: F811 - fixtures
    """A store with two models that the team has signed, and their folders."""
    return two_models(open_tracker(uri, signing_key=keys["team"][0]), record)
