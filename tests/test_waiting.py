"""A file or a pipe is told of waits: every phase that takes long, again at intervals, with the
time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from raydp.system.output import WordConsole, begin_phase, end_phase
from raydp.system.waiting import AGAIN_SECONDS, SILENT_SECONDS, Phase, Waits
from tests.conftest import Answer


class Clock:
    """Time that passes when it is told to.

    The waits are asked every tenth of a second, as by their thread.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[tuple[float, str]] = []
        self.waits = Waits(lambda: self.now, thread=False)

    def show(self, line: str) -> None:
        self.lines.append((self.now, line))

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.now = round(self.now + 0.1, 1)
            self.waits.speak()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_phase_is_named_once_it_is_long_and_again_with_its_time(clock: Clock) -> None:
    phase = clock.waits.begin(lambda: "reading", clock.show)
    clock.run(SILENT_SECONDS - 0.1)
    assert clock.lines == []
    clock.run(2 * AGAIN_SECONDS + 0.3)
    assert clock.waits.end(phase) == pytest.approx(22.2)
    assert clock.lines == [(2.0, "reading"), (12.0, "reading (12 s)"), (22.0, "reading (22 s)")]


def test_a_wait_of_minutes_has_fewer_lines(clock: Clock) -> None:
    clock.waits.begin(lambda: "measuring", clock.show)
    clock.run(600)
    assert 20 <= len(clock.lines) <= 26
    gaps = [b - a for (a, _), (b, _) in zip(clock.lines, clock.lines[1:], strict=False)]
    assert max(gaps) <= 3 * AGAIN_SECONDS + 0.2


@pytest.mark.parametrize(
    ("parts", "lines"),
    [
        (
            [
                ("checking a", 3),
                ("checking b", 3),
                ("calibrating 0/40", 3),
                *((f"calibrating {k}/40", 1) for k in "1234"),
            ],
            ["checking a", "checking b", "calibrating 0/40"],
        ),
        (
            [("checking a", 25), ("checking b", 12.2)],
            [
                "checking a",
                "checking a (12 s)",
                "checking a (22 s)",
                "checking b",
                "checking b (12 s)",
            ],
        ),
    ],
    ids=["no line for each number", "with the time of the present part"],
)
def test_each_part_of_a_status_that_takes_long_is_named(
    parts: list[tuple[str, float]], lines: list[str], clock: Clock
) -> None:
    said = ""
    clock.waits.begin(lambda: said, clock.show)
    for part, seconds in parts:
        said = part
        clock.run(seconds)
    assert [line for _, line in clock.lines] == lines


def test_parts_that_are_short_each_are_not_silent_together(clock: Clock) -> None:
    said = ""
    clock.waits.begin(lambda: said, clock.show)
    for part in "abcdefghijklmnopqrstuvwx":
        said = f"check {part}"
        clock.run(SILENT_SECONDS - 0.5)
    assert [round(when / AGAIN_SECONDS) for when, _ in clock.lines] == [1, 2, 3]


def test_the_innermost_phase_speaks(clock: Clock) -> None:
    outer = clock.waits.begin(lambda: "working", clock.show)
    clock.run(1)
    inner = clock.waits.begin(lambda: "reading", clock.show)
    clock.run(3)
    clock.waits.end(inner)
    clock.run(1)
    own = clock.waits.begin(str, clock.show)  # prints lines of its own
    clock.run(40)
    clock.waits.printed()
    clock.waits.end(own)
    assert [line for _, line in clock.lines] == ["reading"]
    clock.run(3)
    clock.waits.end(outer)
    clock.run(40)
    assert [line for _, line in clock.lines] == ["reading", "working (47 s)"]


@pytest.mark.parametrize(("between", "shown"), [(True, 12), (False, 142)])
def test_the_time_shown_is_of_the_wait_that_the_line_names(
    between: bool, shown: int, clock: Clock
) -> None:
    """A command's own phase names the wait since its last inner phase.

    Another phase goes on meanwhile.
    """
    clock.waits.begin(lambda: "working", clock.show, between=between)
    for inner in (100, 40):
        reading = clock.waits.begin(lambda: "reading", clock.show)
        clock.run(inner)
        clock.waits.end(reading)
    clock.waits.printed()
    clock.run(12.2)  # after a minute the line of 142 s is not said again
    assert clock.lines[-1][1] == f"working ({shown} s)"


def test_whoever_prints_a_line_ends_the_silence(clock: Clock) -> None:
    clock.waits.begin(lambda: "training", clock.show, said=True)
    for _ in range(8):
        clock.run(AGAIN_SECONDS / 2)
        clock.waits.printed()
    assert clock.lines == []


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_gets_no_lines_of_waits(
    terminal: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raydp.system.output.WAITS", clock.waits)
    console = WordConsole(file=StringIO(), force_terminal=terminal)
    begun = begin_phase(console, lambda: "reading [it]")
    clock.run(3)
    end_phase(begun)
    assert console.file.getvalue() == ("" if terminal else "reading [it]\n")  # type: ignore[attr-defined]


SLOW_COMMAND = """
import sys, time
from raydp.system import waiting
waiting.SILENT_SECONDS, waiting.TICK_SECONDS = 0.2, 0.05
from raydp.cli import main as cli
cli.app.registered_commands[:] = []
@cli.app.command()
def slow():
    time.sleep(1)
    from raydp.system.output import stderr
    with stderr.status("reading"):
        time.sleep(1)
    time.sleep(1)
cli.main()
"""


@pytest.mark.slow
def test_a_command_names_waits_for_which_it_has_no_words(tmp_path: Path) -> None:
    """Libraries are imported before a command's first phase, and so most of such waits are at its
    begin."""
    done = subprocess.run(
        [sys.executable, "-c", SLOW_COMMAND, "slow"], capture_output=True, text=True, cwd=tmp_path
    )
    lines = [
        line for line in done.stderr.splitlines() if not line.startswith("reading: ")
    ]  # the time of the phase
    assert lines == ["loading the libraries", "reading", "working"], done.stderr
    assert len(done.stderr.splitlines()) == 4


@pytest.mark.extensions
def test_a_wait_that_is_asked_for_at_once_has_words(
    raydp: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that speaks may ask for the text before `begin_phase` returns."""

    def begin_and_ask(console: Console, text: Callable[[], str], *, between: bool) -> Phase:
        assert text() == "loading the libraries"
        return begin_phase(console, text, between=between)

    monkeypatch.setattr("raydp.cli.groups.begin_phase", begin_and_ask)
    assert raydp("list").code == 0
