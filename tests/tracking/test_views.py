"""The view that a sweep saves in its experiment, also where another sweep saves it first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.exceptions import MlflowException

from raydp.tracking.views import NOTE_TAG, VIEW_TAG, save_view


class Store:
    """A store in which another sweep sets each tag after this one has looked for it."""

    def __init__(self, *, refuses_for_good: bool = False) -> None:
        self.tags: dict[str, str] = {}
        self._for_good = refuses_for_good

    def get_experiment(self, experiment_id: str) -> Any:
        return SimpleNamespace(tags=dict(self.tags))

    def set_experiment_tag(self, experiment_id: str, tag: str, text: str) -> None:
        if not self._for_good:
            self.tags[tag] = "of the other sweep"
        raise MlflowException("duplicate key value violates unique constraint")


def test_a_view_that_another_sweep_saves_at_the_same_moment_stays() -> None:
    store: Any = Store()
    save_view(store, "1")
    assert store.tags == {VIEW_TAG: "of the other sweep", NOTE_TAG: "of the other sweep"}


def test_a_store_that_refuses_the_view_for_good_is_an_error() -> None:
    store: Any = Store(refuses_for_good=True)
    with pytest.raises(MlflowException, match="duplicate key"):
        save_view(store, "1")
