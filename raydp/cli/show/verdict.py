"""A choice in at most fourteen lines: what was selected, how sure, against what, and what next."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raydp.analysis.selection.verdict import SAME, Verdict
from raydp.privacy import bound_in_words
from raydp.sweep.ending.notes import limits_of
from raydp.sweep.store.measurements import words_of
from raydp.system.output import stderr, stdout
from raydp.system.shell import command_line, program, shell_line

if TYPE_CHECKING:
    from raydp.analysis import Selection
    from raydp.sweep.store.folder import SweepFolder
    from raydp.sweep.store.summary import RunCounts

MOST_LINES = 14
WIDTH = 80
_LABEL = 11
"""Columns before an answer, in which its question stands."""


def show_verdict(
    selection: Selection,
    best: Selection | None,
    *,
    source: str | Path,
    folder: SweepFolder | None,
    options: Sequence[str] = (),
    head: str | None = None,
    first: Sequence[str] = (),
) -> None:
    """Print what a person wants to know first, in at most `MOST_LINES` lines of `WIDTH` columns.

    Args:
        selection: the selection.
        best: the selection by utility alone; None if it may not be shown.
        source: the sweep, or the file of points, as a command names it.
        folder: the sweep; None for a file of points that belongs to none.
        options: the options of `raydp select` that lead to this selection.
        head: the line before the choice; None for none.
        first: cautions that come before all others.
    """
    verdict = Verdict.of(
        selection,
        best,
        words_of(folder, selection.score_name),
        bound_in_words(selection.epsilon, selection.delta),
    )
    # The choice, how sure it is, and what else could be chosen.
    lines = [] if head is None else [head]
    lines += _answer("Selected", _joined([verdict.configuration, *verdict.figures]))
    others = {"best utility": verdict.best_utility, "runner-up": verdict.runner_up}
    same = others.pop("best utility") if verdict.best_utility == SAME else None
    said = (verdict.leak, verdict.certainty, same and "it has the best utility, too")
    lines += _answer("", [sentence for sentence in said if sentence is not None])
    lines += _answer("Instead", [f"{k}: {text}" for k, text in others.items() if text is not None])
    # What limits the choice, as far as there is room, and the commands that follow.
    why = _why(str(source), *options)
    commands = _commands(selection, why, folder)
    cautions = verdict.cautions if folder is None else limits_of(folder, verdict.cautions)
    if not stderr.quiet:
        room = MOST_LINES - len(lines) - len(commands)
        lines += _cautions([*first, *cautions], room, command_line(*why))
    for line in lines:
        stdout.print(line, markup=False, style="bold" if line == lines[0] else None)
    for label, command in commands.items():
        stdout.print(f"{label:<{_LABEL}}{command}", markup=False, soft_wrap=True)


def head_of(counts: RunCounts, seconds: float | None, *, interrupted: bool = False) -> str:
    """Return the first line of a sweep's end: how many runs have ended, and how long it took."""
    numbers = [(counts.failed, "failed"), (counts.stopped, "stopped"), (counts.pending, "pending")]
    others = [f", {number} {name}" for number, name in numbers if number]
    mark = "! " if counts.failed else "" if interrupted else "✓ "
    text = f"{mark}{counts.finished} runs finished{''.join(others)}"
    if seconds is None:
        return text
    minutes, rest = divmod(round(seconds), 60)
    took = f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{text}{took:>{WIDTH - len(text)}}"


def source_of(folder: SweepFolder) -> str:
    """Return what a command in this folder calls a sweep: its name, or else its path."""
    usual = Path("raydp_runs") / folder.path.name
    return folder.path.name if folder.path.absolute() == usual.absolute() else str(folder.path)


def _answer(label: str, sentences: Sequence[str]) -> list[str]:
    """Return lines with a label before the first one."""
    lines = [line for sentence in sentences for line in _wrapped(sentence)]
    return [f"{label if not at else '':<{_LABEL}}{line}" for at, line in enumerate(lines)]


def _joined(parts: Sequence[str]) -> list[str]:
    """Return lines of parts that fit beside each other; no part is broken."""
    lines = [parts[0]]
    for part in parts[1:]:
        together = f"{lines[-1]}  {part}"
        lines[-1:] = [together] if len(together) <= WIDTH - _LABEL else [lines[-1], part]
    return lines


def _wrapped(sentence: str, width: int = WIDTH - _LABEL) -> list[str]:
    # A line that fits keeps its inner blanks, which textwrap would collapse.
    if len(sentence) <= width:
        return [sentence]
    return textwrap.wrap(sentence, width, break_long_words=False, break_on_hyphens=False)


def _cautions(cautions: Sequence[str], room: int, others: str) -> list[str]:
    """Return a line for each caution while there is room, and the command that has the others."""
    blocks = [
        [f"{'!' if not at else ' '} {line}" for at, line in enumerate(_wrapped(text, WIDTH - 2))]
        for text in dict.fromkeys(cautions)
    ]
    lines: list[str] = []
    for position, block in enumerate(blocks):
        left = len(blocks) - position
        # The last line is kept for the others, unless all of them fit.
        if len(lines) + len(block) > room - (left > 1):
            return [*lines, f"! {left} more: {others}"]
        lines += block
    return lines


def _why(source: str, *options: str) -> list[str]:
    """Return the words after `raydp` of the command that explains a selection."""
    # A name that begins with a dash would be read as an option.
    named = f"./{source}" if source.startswith("-") else source
    return ["select", named, *options, "--explain"]


def _commands(
    selection: Selection, why: Sequence[str], folder: SweepFolder | None
) -> dict[str, str]:
    """Return the commands that a reader may paste, by the question that each answers."""
    commands = {}
    if folder is not None and folder.report.exists():
        commands["Report"] = str(folder.report)
    commands["Why"] = command_line(*why)
    if selection.model_uri is not None:
        # Without options a sweep selects the same model again.
        again = folder is not None and len(why) == len(_why(""))
        call = f"raydp.select({json.dumps(why[1])}).load()" if again else selection.load_call
        code = f"import raydp; model = {call}"
        commands["Load"] = f"{program('python')} {shell_line('-ic', code)}"
    return commands
