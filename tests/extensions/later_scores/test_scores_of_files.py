"""A score of a file of the user's, which is measured later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raydp.extensions.later_scores.requests import requests_from, requests_of
from tests.test_own_files import file, module  # noqa: F401 - fixtures


def test_a_command_may_name_a_score_of_a_file(file: Path) -> None:  # noqa: F811
    (request,) = requests_from(f"{file}:Constant", ["value=0.75"])
    assert (request.label, request.plugin.params.value) == ("Constant", 0.75)


def test_an_object_is_requested_by_the_name_of_its_class(module: Any) -> None:  # noqa: F811
    assert [each.label for each in requests_of([module.Constant(value=0.25)])] == ["Constant"]
