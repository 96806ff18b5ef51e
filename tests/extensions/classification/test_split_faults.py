"""Faults of the split into rows for training and held-out rows, which a check of the self-test finds."""

from __future__ import annotations

from typing import Any

import pytest

from raydp.extensions.classification.checks import CHECKS
from raydp.extensions.classification.tabular import TabularTask
from raydp.extensions.classification.text_classification import TextClassificationTask
from tests.marks import slow_after
from tests.selftest.faults import rewrite
from tests.selftest.test_accounting_faults import each_split, failed_of


def test_without_a_fault_nothing_fails() -> None:
    assert not failed_of(lambda: CHECKS.checks(None, float))


@each_split
@pytest.mark.parametrize(
    ("owner", "old", "rows", "title"),
    slow_after(1, [
        (TabularTask, "[is_held_out(c, self.heldout_fraction, self.data_seed) for c in contents]",
         "list(contents)", "tabular"),
        (TextClassificationTask, "[is_held_out(text, self.heldout_fraction, self.data_seed) for text in texts]",
         "texts", "text_classification"),
    ]),
    ids=["tabular", "text_classification"],
)  # fmt: skip
def test_a_split_that_one_row_more_moves(
    monkeypatch: pytest.MonkeyPatch, owner: Any, old: str, rows: str, title: str, split: str
) -> None:
    rewrite(monkeypatch, owner, "build", (old, split.format(rows)))
    assert f"rows that one row more moves ({title})" in failed_of(
        lambda: CHECKS.checks(None, float)
    )
