"""Tables for people show every letter of their cells."""

from __future__ import annotations

import pytest

from raydp.output import print_table


def test_brackets_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """Reasons of failures hold them; rich reads [name] as a style and fails at [/name]."""
    reason = "worker [rank0] died: cannot open [/tmp/x] dtype[bfloat16]"
    print_table("a [title]", [{"reason [why]": reason}])
    out = capsys.readouterr().out
    assert reason in out
    assert "a [title]" in out
    assert "reason [why]" in out
