"""Check that adding a row keeps every other row in its part, and that a user's rows are one unit."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from raydp.models import base_models as models
from raydp.plugins.described import resolve_plugin
from raydp.selftest.base import Check, check
from raydp.tasks.classification.labelled import ClassificationTask
from raydp.tasks.text.language import LanguageModelingTask
from raydp.training.gradients.microbatches import Units

NUM_ROWS, NUM_USERS, NUM_ADDED = 72, 12, 5
CLASSES = ("no", "is")
"""Class names. Each is one token of the tiny model's tokenizer."""
WORDS = ("paper", "table", "window", "garden", "river", "letter", "music", "winter")
Row = dict[str, str | int]


class Divided(Protocol):
    """A task's plug-in whose task can be inspected."""

    def build(self, tokenizer: PreTrainedTokenizerBase | None) -> LanguageModelingTask | ClassificationTask:
        """Return the task."""


def division_checks() -> list[Check]:
    """Check tasks on generated files.

    1. A row that is added at the start, in the middle or at the end moves no other row from one part to another. The
       parts are training, held-out, public and reference.
    2. All rows of a user, which are scattered in the file, are in one unit, and no unit has rows of two users.
    """
    tokenizer = models.load_tokenizer("tiny")
    assert tokenizer is not None
    checks = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Add a row in each place, and compare the parts.
        for title, task_of in _tasks(folder).items():
            before = _parts(task_of(_rows()).build(tokenizer))
            moved = 0
            for added, at in product(range(NUM_ROWS, NUM_ROWS + NUM_ADDED), (0, NUM_ROWS // 2, NUM_ROWS)):
                rows = [*_rows()[:at], _row(added, NUM_USERS), *_rows()[at:]]
                after = _parts(task_of(rows).build(tokenizer))
                moved = max(moved, *(len(before[part] - after[part]) for part in before))
            checks.append(check(f"rows that one row more moves ({title})", moved, 0, 0, f"of {NUM_ROWS}"))
        # Compare units and users.
        by_user = _tasks(folder)["text, by user"](_rows()).build(tokenizer).by_user()
        assert isinstance(by_user, LanguageModelingTask)
        checks += _of_users(by_user, tokenizer)
    return checks


def _row(number: int, user: int) -> Row:
    """Return a row whose text contains its number and its user."""
    word = WORDS[number % len(WORDS)]
    return {
        "text": f"User {user} wrote row {number} about the {word}.",
        "user": f"u{user}",
        "label": CLASSES[number % 2],
        "x": number,
        "y": number * number % 17,
    }


def _rows() -> list[Row]:
    """Return rows of users in turn, so that no two neighbouring rows belong to one user."""
    return [_row(number, number % NUM_USERS) for number in range(NUM_ROWS)]


def _tasks(folder: Path) -> dict[str, Callable[[Sequence[Row]], Divided]]:
    """Return, for each kind of task, the function that makes the task from rows."""

    def task(name: str, parameters: Mapping[str, object]) -> Divided:
        plugin = resolve_plugin("tasks", "task", {"name": name, **parameters}, [])
        assert plugin is not None
        params: Divided = plugin.params
        return params

    def text(rows: Sequence[Row], **parameters: object) -> dict[str, object]:
        path = folder / "rows.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return {"path": str(path), "heldout_fraction": 0.4, **parameters}

    def table(rows: Sequence[Row]) -> dict[str, object]:
        path = folder / "rows.csv"
        lines = ["x,y,label", *(f"{row['x']},{row['y']},{row['label']}" for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return {"path": str(path), "heldout_fraction": 0.4}

    return {
        "text": lambda rows: task("text", text(rows)),
        "text, by user": lambda rows: task("text", text(rows, user_column="user")),
        "text_classification": lambda rows: task("text_classification", text(rows)),
        "tabular": lambda rows: task("tabular", table(rows)),
        "with_public": lambda rows: task("with_public", {"of": {"name": "tabular", **table(rows)}}),
        "with_reference": lambda rows: task(
            "with_reference", {"of": {"name": "tabular", **table(rows)}, "fraction": 0.4}
        ),
    }


def _parts(task: LanguageModelingTask | ClassificationTask) -> dict[str, set[bytes]]:
    """Return the contents of each part of a task."""
    contents, num_training = task.train.contents(), task.facts().num_training
    public = task.public if isinstance(task, ClassificationTask) else None
    return {
        "training": set(contents[:num_training]),
        "reference": set(contents[num_training:]),
        "held-out": set(task.heldout.contents()),
        "public": set() if public is None else set(public.contents()),
    }


def _of_users(task: LanguageModelingTask, tokenizer: PreTrainedTokenizerBase) -> list[Check]:
    units, owners = Units.of(task), list[set[int]]()
    for unit in range(len(units)):
        batch = task.batch(units.examples(np.array([unit])))
        texts = tokenizer.batch_decode(batch.input_ids)
        owners.append({int(text.split("User")[1].split()[0]) for text in texts})
    everywhere = [user for users in owners for user in users]
    sizes = units.offsets[1:] - units.offsets[:-1]
    return [
        check("users in a unit", max(map(len, owners)), 1, 1, "largest number of users whose rows are in one unit"),
        check(
            "units of a user", max(everywhere.count(user) for user in set(everywhere)), 1, 1,
            "largest number of units that hold one user's rows",
        ),
        check("rows of a user in their unit", sizes.min(), NUM_ROWS // NUM_USERS, NUM_ROWS // NUM_USERS, "the fewest"),
    ]  # fmt: skip
