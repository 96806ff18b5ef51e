"""What people read: every letter of a cell, documents in lines and tables."""

from __future__ import annotations

import time
from io import StringIO

import pytest
from rich.console import Console

from raydp.system.output import WordConsole, phase, print_document, print_table


def test_brackets_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """Reasons of failures hold them; rich reads [name] as a style and fails at [/name]."""
    reason = "worker [rank0] died: cannot open [/tmp/x] dtype[bfloat16]"
    print_table("a [title]", [{"reason [why]": reason}])
    out = capsys.readouterr().out
    assert reason in out
    assert "a [title]" in out
    assert "reason [why]" in out


def test_an_epsilon_in_a_document_is_rounded_up(capsys: pytest.CaptureFixture[str]) -> None:
    together = {"models": 8, "epsilon": 48.1601, "delta": 1e-05}
    print_document({"released_together": together, "epsilon": 7.9901, "score": 7.9901})
    print_document({"profile": [{"delta": 1e-05, "epsilon": 7.9901}]})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "released_together: models 8, epsilon 48.17, delta 1e-05"
    assert lines[1:3] == ["epsilon: 7.991", "score: 7.99"]
    assert lines[-1].split() == ["1e-05", "7.991"]


def test_a_document_for_people_has_lines_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    print_document(
        {
            "n": 36,
            "interval": [0.25, 0.5],
            "aliases": [],
            "f_test": {"f": 67.4, "p": None},
            "terms": {"intercept": {"coef": -0.5}, "slope": {"coef": 0.125, "reason": "[few]"}},
            "size": {"series": [{"fixed": {"b": 64}, "points": [{"b": 64, "score": 0.5}]}]},
        }
    )
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for line in (
        "n: 36", "interval: 0.25 to 0.5", "aliases: none", "f_test: f 67.4, p -", "name coef reason",
        "slope 0.125 [few]", "fixed: b 64", "size series points", "b score", "64 0.5",
    ):  # fmt: skip
        assert line.split() in lines, line


def test_a_document_that_is_a_table_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    print_document({"compute": {"correct": 4, "pairs": 6}, "updates": {"correct": 5}}, "accuracy")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["accuracy"],
        ["name", "correct", "pairs"],
        ["compute", "4", "6"],
        ["updates", "5", "-"],
    ]


def test_a_document_of_a_page_breaks_long_lines_and_shows_every_field(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A pipe otherwise gets whole lines: a reason of a promotion is a paragraph."""
    reason = (
        "It has the lowest score of the 15 that may be selected, and was promoted for that. " * 4
    )
    promoted = [
        {"alias": f"alias-{k}", "reason": reason, "by": f"user-{k}", "at": f"time-{k}"}
        for k in range(6)
    ]
    document = {
        "caveat": reason,
        "lists": [reason, "short"],
        "promotions": promoted,
        "inner": {"one": {"a": [reason]}},
    }
    print_document(document, width=100)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert out.split().count("promoted") == 4 * 4, "a reason that all rows share is stated once"
    assert all(f"{name}-{k}" in out for name in ("alias", "user", "time") for k in range(6))
    print_document(document)
    assert max(map(len, capsys.readouterr().out.splitlines())) > 300


@pytest.mark.parametrize("terminal", [True, False])
def test_a_phase_is_said_where_it_is_not_shown(terminal: bool) -> None:
    console = Console(file=StringIO(), force_terminal=terminal)
    with phase(console, "starting [it]"):
        said = console.file.getvalue()  # type: ignore[attr-defined]
    assert (said == "starting [it]\n") is not terminal


@pytest.mark.parametrize(("silent_seconds", "printed"), [(0.01, "reading [it]\n"), (60.0, "")])
def test_off_a_terminal_a_status_is_said_if_it_takes_long(
    silent_seconds: float, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raydp.system.waiting.SILENT_SECONDS", silent_seconds)
    console = WordConsole(file=StringIO(), force_terminal=False)
    with console.status("reading [it]"):
        time.sleep(0.5)
    time.sleep(0.1)
    assert console.file.getvalue() == printed  # type: ignore[attr-defined]


def test_on_a_terminal_lines_break_between_words_only() -> None:
    uri = "file:///" + "a/" * 30
    configuration = "selected: (b=256, T=60, η=0.005) utility_loss 1.3646, score -0.05596"
    console = WordConsole(
        file=StringIO(), force_terminal=True, width=40, highlight=False, color_system=None
    )
    console.print(f"  {configuration} {uri} end", markup=False)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert all(len(line) <= 40 or line.strip() == uri for line in lines)
    assert all(line.startswith("  ") for line in lines)
    assert " ".join(line.strip() for line in lines) == f"{configuration} {uri} end"


@pytest.mark.parametrize(("terminal", "options"), [(False, {}), (True, {"soft_wrap": True})])
def test_a_file_or_a_command_to_copy_has_whole_lines(
    terminal: bool, options: dict[str, bool]
) -> None:
    console = WordConsole(file=StringIO(), force_terminal=terminal, width=40, color_system=None)
    console.print("word " * 40 + "end", **options)
    assert console.file.getvalue() == "word " * 40 + "end\n"  # type: ignore[attr-defined]
