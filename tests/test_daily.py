"""Which daily checks run again: those that have not passed within a day, or whose files changed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from daily import DAY_SECONDS, STAMP, TARGETS, changed_files, is_due

from tests.conftest import group_of

ROOT = Path(__file__).parents[1]
GUARANTEES = {
    *("tests/methods", "tests/privacy", "tests/security", "tests/selftest", "tests/training"),
    *(
        f"tests/extensions/{subject}"
        for subject in (
            *("auditing", "calculator", "dp_weights", "frozen_prefix", "matrix_factorisation"),
            *("output_perturbation", "pate", "private_selection", "reference_data"),
        )
    ),
}
"""Folders of tests that guard a guarantee: each runs on every submission."""
START = 1_700_000_000


class Repository:
    """A repository whose commits have chosen times."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q")

    def git(self, *arguments: str, at: int = START) -> str:
        date = f"{at} +0000"
        names = {
            f"GIT_{who}_{what}": "t"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        environment = {**os.environ, **names, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        command = ["git", "-C", str(self.root), *arguments]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, file: str, text: str, at: int = START) -> str:
        path = self.root / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "change", at=at)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_all_are_due_without_a_commit_at_which_they_passed(repository: Repository) -> None:
    assert changed_files(repository.root) is None, "no history"
    repository.commit("docs/page.md", "text")
    assert changed_files(repository.root) is None, "never passed"
    repository.commit(STAMP, "0" * 40)
    assert changed_files(repository.root) is None, "a commit of another history"
    repository.commit(STAMP, "")
    assert changed_files(repository.root) is None, "an empty file"
    assert is_due(["docs"], None)


def test_those_are_due_whose_files_changed_since_they_passed(repository: Repository) -> None:
    passed = repository.commit("docs/page.md", "text")
    repository.commit(STAMP, passed, at=START + 60)
    assert changed_files(repository.root) == [STAMP]
    repository.commit("docs/page.md", "other text", at=START + DAY_SECONDS)
    changed = changed_files(repository.root)
    assert changed is not None
    assert is_due(["docs"], changed)
    assert is_due(["raydp", "docs/page.md"], changed)
    assert not is_due(["docs/pag", "raydp"], changed)
    repository.commit("docs/page.md", "text", at=START + DAY_SECONDS)
    assert not is_due(["docs"], changed_files(repository.root)), "as it was when they passed"


def test_all_are_due_a_day_after_they_passed(repository: Repository) -> None:
    passed = repository.commit("docs/page.md", "text")
    repository.commit(STAMP, passed, at=START + DAY_SECONDS + 1)
    assert changed_files(repository.root) is None


def test_files_of_targets_exist() -> None:
    assert all((ROOT / file).exists() for files in TARGETS.values() for file in files)


def test_named_files_exist_and_no_test_of_a_guarantee_is_daily() -> None:
    daily = {
        path: marks
        for path in (ROOT / "tests").rglob("test_*.py")
        if path != Path(__file__)
        and (marks := re.findall(r"pytest\.mark\.daily(?:\((.*?)\))?", path.read_text()))
    }
    assert len(daily) > 20
    for path, marks in daily.items():
        for file in re.findall(r'"(.*?)"', " ".join(marks)):
            assert (ROOT / file).exists(), f"{path} names {file}"
        assert (
            not {p.relative_to(ROOT).as_posix() for p in path.parents if p.is_relative_to(ROOT)}
            & GUARANTEES
        )


def test_files_that_share_a_sweep_or_a_server_are_one_group() -> None:
    files = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in (ROOT / "tests").rglob("test_*.py")
    }
    marked = {file for file, text in files.items() if re.search(r"pytest\.mark\.xdist_group", text)}
    assert marked == {file for file in files if group_of(file) != file}
    assert group_of("tests/sweep/test_sweep.py") == group_of("tests/sweep/test_waits.py")
