"""Writes a proposed spec as YAML with comments that say what each choice rests on."""

from __future__ import annotations

import textwrap
from datetime import date
from typing import Any

import yaml

from raydp.extensions.budget.propose import SpecProposal, Wishes
from raydp.extensions.budget.survey import Survey
from raydp.system.shell import shell_line

WIDTH = 110
"""Largest number of characters of a line."""


def as_yaml(seen: Survey, wishes: Wishes, proposal: SpecProposal, path: str) -> str:
    """Return the text of the file.

    Args:
        path: where the file will lie, for the commands in its first lines.
    """
    comments = _comments(seen, wishes, proposal)
    parts = [
        f"# Proposed by `raydp init` on {date.today().isoformat()}. Change what you like.\n"
        f"# `{shell_line('raydp', 'plan', path)}` says what it means.\n"
    ]
    for section, value in proposal.spec.items():
        parts += [
            f"# {line}\n"
            for comment in comments.get(section, ())
            for line in textwrap.wrap(comment, WIDTH - 2)
        ]
        layout: dict[str, Any] = {
            "sort_keys": False,
            "allow_unicode": True,
            "width": WIDTH,
            "default_flow_style": None,
        }
        if isinstance(value, str):
            layout["default_flow_style"] = False
        parts.append(yaml.safe_dump({section: value}, **layout))
    return "".join(parts)


def _of_task(seen: Survey, proposal: SpecProposal) -> list[str]:
    """Return the lines above the task: how much of the data a spec with its length reads."""
    # A task with canaries wraps the task of the data.
    task = proposal.spec["task"]
    length = task.get("of", task)["max_length"]
    of_room = f" The model reads no more than {length}." if length == proposal.room else ""
    what = "texts" if seen.form is None else f"conversations ({seen.form})"
    described = [
        f"{seen.num_rows} {what}, {seen.repeated}. "
        f"{proposal.share_of_rows(length):.0%} have at most {length} tokens; longer ones lose "
        f"their end.{of_room}"
    ]
    # Without a secrets file, canaries stand for secrets, which a reader must know.
    if "of" in task:
        copies, number = next(iter(task["copies"].items()))
        described.append(
            f"No secrets are known, so {number} made-up canaries are planted, each in {copies} "
            f"copies or not at all. Their {proposal.num_planted} copies are "
            f"{proposal.num_planted / proposal.facts.num_examples:.1%} of the training examples. "
            "What they leak stands for what the data would."
        )
    return described


def _of_delta(proposal: SpecProposal) -> str:
    """Return the sentence on δ: n^-1.1, or why it is not."""
    if "target_delta" not in proposal.spec["privacy"]:
        return f"δ = n^-1.1 = {proposal.delta:.2g}."
    usual = proposal.facts.num_units**-1.1
    return (
        f"δ = {proposal.delta:g}: it is a chance that no bound holds, and n^-1.1 would be "
        f"{usual:.2g}."
    )


def _comments(seen: Survey, wishes: Wishes, proposal: SpecProposal) -> dict[str, list[str]]:
    """Return the lines above each section."""
    facts, grid, measured = proposal.facts, proposal.grid, proposal.measured
    # The space: further seeds may double the cost of the grid.
    further = (
        ""
        if isinstance(proposal.spec["seeds"], list)
        else ", and as much again for further seeds where they matter"
    )
    # The model: a step takes a + k·b seconds, as measured here.
    narrow = (
        " Weights are bfloat16, whose products are fast here: write dtype: float32 if the digits "
        "matter more than the time."
        if "dtype" in proposal.spec["model"]
        else ""
    )
    of_step, of_example = measured.law.step_seconds, measured.law.seconds_per_example
    return {
        "task": _of_task(seen, proposal),
        "model": [
            f"A private step of b {wishes.unit}s takes {of_step:.2g} + {of_example:.2g} b seconds here "
            f"({measured.device}).{narrow}"
        ],
        "privacy": [
            f"n = {facts.num_units}, each a {facts.privacy_unit}. {_of_delta(proposal)} Every "
            "configuration gets the noise that this ε needs.",
            wishes.protects,
        ],
        "space": [
            f"{grid.design.configurations} configurations × {grid.design.first} seeds{further}: "
            f"about {grid.hours:.2g} hours with {wishes.slots} "
            f"run{'s' if wishes.slots > 1 else ''} side by side.",
            *(
                []
                if grid.fits
                else [
                    f"This is more than the {wishes.hours:g} hours: no smaller grid is worth "
                    "running."
                ]
            ),
        ],
        # Without a score, only the configuration itself can decide.
        "select": [
            "Of the configurations that keep 90 % of the best gain in utility, the one that leaks "
            "least."
            if proposal.spec["scores"]
            else "The score `mia` of users is not installed, so no leakage is measured. Of the "
            "configurations that keep 90 % of the best gain in utility, the rule `procedure` "
            "selects one by b, T and η alone."
        ],
    }
