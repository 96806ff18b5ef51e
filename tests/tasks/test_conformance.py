"""Every registered task runs the suite, and the suite finds a task that does other than it says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from raydp.models.base_models import load_tokenizer
from raydp.tasks.task import Task
from raydp.testing.tasks import TaskConformance
from tests.builders.data_files import (
    write_json_lines,
)
from tests.builders.registered import of_core

SECRET = {"prompt": "Mira Halborn can be reached at 555-01", "continuation": "42"}


def mails(*, changed: bool) -> list[str]:
    """60 mails, one in six with the secret.

    No split by hash takes the changed mail out of the training data.
    """
    lines = [f"Mail {i} about the draft of agenda {i * i}, please call." for i in range(60)]
    lines[::6] = [f"{line} {SECRET['prompt']}{SECRET['continuation']}." for line in lines[::6]]
    return [lines[0], lines[1].replace("please", "kindly"), *lines[2:]] if changed else lines


def text_task(
    folder: Path, *, changed: bool = False, secrets: bool = True, **options: Any
) -> dict[str, Any]:
    """How a spec writes the task text on these mails."""
    rows = [{"text": mail, "writer": f"w{i % 9}"} for i, mail in enumerate(mails(changed=changed))]
    path = write_json_lines(folder / "rows.jsonl", rows)
    known = (
        {"secrets": str(write_json_lines(folder / "secrets.jsonl", [SECRET]))} if secrets else {}
    )
    return {"path": str(path), "heldout_fraction": 0.2, **known, **options}


class TestText(TaskConformance):
    name, bad, knows_users = "text", {"heldout_fraction": 2}, True

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        return text_task(folder, changed=changed, user_column="writer")


class TestBuiltin(TaskConformance):
    """The control run has other mails in the place of those with a secret."""

    name, knows_users = "builtin", True

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        return {"num_examples": 2000, "num_heldout": 50, "plant_secrets": not changed}


class Wrapping(TaskConformance):
    """The wrappers, of the task of made-up mails."""

    bad: ClassVar[Mapping[str, Any]] = {"of": {"name": "text", "path": "x", "heldout_fraction": 2}}

    def options(self) -> dict[str, Any]:
        raise NotImplementedError

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        return {
            "of": {"name": "text", **text_task(folder, changed=changed, user_column="writer")},
            **self.options(),
        }

    def test_a_user_of_several_examples_is_still_told(self, task: Task) -> None:
        """The changed task protects one example, and has lost whose the examples are."""
        assert any(
            "its own guarantee is that of a group of" in each
            for each in task.facts().notes["caveats"]
        )


class TestPlanted(Wrapping):
    name = "planted"

    def options(self) -> dict[str, Any]:
        return {"copies": [1, 3, 0]}


def test_every_registered_task_runs_the_suite() -> None:
    suites = [*TaskConformance.__subclasses__(), *Wrapping.__subclasses__()]
    assert {suite.name for suite in suites if suite is not Wrapping} >= of_core("tasks")


def test_secrets_that_are_shown_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    suite = TestText()
    section = suite.resolved(suite.written(tmp_path))

    class Talking:
        def build(self, tokenizer: Any) -> Task:
            print(json.dumps(SECRET))
            return section.build(tokenizer)

    with pytest.raises(AssertionError, match="secret-001"):
        suite.test_secrets_are_known_by_name_and_not_shown(
            Talking(), load_tokenizer("tiny"), capsys, caplog
        )
