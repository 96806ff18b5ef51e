"""Check that adding a row keeps other rows in their part, and a user's rows in one unit."""

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
from raydp.selftest.check_result import Check, check
from raydp.tasks.task import Task, TaskFacts
from raydp.tasks.text.language import LanguageModelingTask
from raydp.training.gradients.microbatches import Units

NUM_ROWS, NUM_USERS, NUM_ADDED = 72, 12, 5
CLASSES = ("no", "is")
"""Class names. Each is one token of the tiny model's tokenizer."""
WORDS = ("paper", "table", "window", "garden", "river", "letter", "music", "winter")
Row = dict[str, str | int]
Written = Callable[[Path, Sequence[Row]], Mapping[str, object]]
"""Writes rows into a folder, and returns the task as a spec writes it: name and parameters."""


class Divided(Protocol):
    """A task whose parts can be inspected. `public` are examples that may be known to anybody."""

    train: Contents
    heldout: Contents

    def facts(self) -> TaskFacts:
        """Return the task's facts."""

    def by_user(self) -> Task:
        """Return the task with the user as the unit of privacy."""


class Contents(Protocol):
    """Examples that can be compared."""

    def contents(self) -> list[bytes]:
        """Return the content of each example. Copies have equal contents."""


def division_checks() -> list[Check]:
    """Check tasks of text on generated files.

    1. A row that is added moves no other row (`moved_rows`).
    2. All rows of a user, which are scattered in the file, are in one unit, and no unit has rows of
       two users.
    """
    checks = [moved_rows("text", text_rows), moved_rows("text, by user", _rows_of_users)]
    # Compare units and users.
    tokenizer = models.load_tokenizer("tiny")
    with tempfile.TemporaryDirectory() as name:
        by_user = _built(_rows_of_users(Path(name), _rows()), tokenizer).by_user()
    assert isinstance(by_user, LanguageModelingTask)
    return [*checks, *_of_users(by_user, tokenizer)]


def moved_rows(title: str, written: Written) -> Check:
    """Check that a row that is added at the start, in the middle or at the end moves no other row.

    The parts are training, held-out, public and reference.
    """
    tokenizer, moved = models.load_tokenizer("tiny"), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = _parts(_built(written(folder, _rows()), tokenizer))
        # Add a row in each place, and compare the parts.
        for added, at in product(
            range(NUM_ROWS, NUM_ROWS + NUM_ADDED), (0, NUM_ROWS // 2, NUM_ROWS)
        ):
            rows = [*_rows()[:at], _row(added, NUM_USERS), *_rows()[at:]]
            after = _parts(_built(written(folder, rows), tokenizer))
            moved = max(moved, *(len(before[part] - after[part]) for part in before))
    return check(f"rows that one row more moves ({title})", moved, 0, 0, f"of {NUM_ROWS}")


def text_rows(folder: Path, rows: Sequence[Row], **parameters: object) -> dict[str, object]:
    """Write rows as texts, for the task text and tasks with its parameters."""
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return {"name": "text", "path": str(path), "heldout_fraction": 0.4, **parameters}


def _rows_of_users(folder: Path, rows: Sequence[Row]) -> dict[str, object]:
    return text_rows(folder, rows, user_column="user")


def _built(written: Mapping[str, object], tokenizer: PreTrainedTokenizerBase) -> Divided:
    """Return the task of a spec."""
    plugin = resolve_plugin("tasks", "task", written, [])
    assert plugin is not None
    task: Divided = plugin.params.build(tokenizer)
    return task


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


def _parts(task: Divided) -> dict[str, set[bytes]]:
    """Return the contents of each part of a task."""
    contents, num_training = task.train.contents(), task.facts().num_training
    public: Contents | None = getattr(task, "public", None)
    return {
        "training": set(contents[:num_training]),
        "reference": set(contents[num_training:]),
        "held-out": set(task.heldout.contents()),
        "public": set() if public is None else set(public.contents()),
    }


def _of_users(task: LanguageModelingTask, tokenizer: PreTrainedTokenizerBase) -> list[Check]:
    # Decode each unit, and read the users from its texts.
    units, owners = Units.of(task), list[set[int]]()
    for unit in range(len(units)):
        batch = task.batch(units.examples(np.array([unit])))
        texts = tokenizer.batch_decode(batch.input_ids)
        owners.append({int(text.split("User")[1].split()[0]) for text in texts})
    everywhere = [user for users in owners for user in users]
    sizes = units.offsets[1:] - units.offsets[:-1]
    return [
        check(
            "users in a unit",
            max(map(len, owners)),
            1,
            1,
            "largest number of users whose rows are in one unit",
        ),
        check(
            "units of a user",
            max(everywhere.count(user) for user in set(everywhere)),
            1,
            1,
            "largest number of units that hold one user's rows",
        ),
        check(
            "rows of a user in their unit",
            sizes.min(),
            NUM_ROWS // NUM_USERS,
            NUM_ROWS // NUM_USERS,
            "the fewest",
        ),
    ]
