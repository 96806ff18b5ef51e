"""A store, its tracker and records of runs, as in the tests of tracking."""

from tests.tracking.conftest import (  # noqa: F401 - fixtures
    adapter,
    base_folder,
    empty_store,
    keys,
    record,
    schema,
    tracker,
    uri,
)
from tests.tracking.test_seals import signed  # noqa: F401 - a fixture
