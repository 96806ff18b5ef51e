"""An ε that a method states without an accountant: its columns, and what is read from them."""

from __future__ import annotations

import pytest

from raydp.analysis.tables.statements import UNPROVEN, Statement, stated_columns


@pytest.mark.parametrize("column", UNPROVEN)
def test_a_statement_is_read_from_its_column(column: str) -> None:
    stated = Statement.of({"epsilon": "inf", column: 8.0})
    assert stated is not None
    assert (stated.column, stated.epsilon) == (column, 8.0)
    assert Statement.of(stated_columns(stated)) == stated


def test_a_row_without_a_stated_epsilon_has_no_statement() -> None:
    assert Statement.of({"epsilon": 8.0}) is None
    assert Statement.of(stated_columns(None)) is None
    assert stated_columns(None) == {"claimed_epsilon": None}
