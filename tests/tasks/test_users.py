"""Whose examples are whose, in every task that knows."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from raydp.extensions.paper_data.enron import EnronTask
from raydp.extensions.paper_data.tofu import TofuTask
from raydp.spec.reading import load_spec
from raydp.tasks.task import task_of
from raydp.tasks.text.any_text import TextTask
from raydp.tasks.text.builtin import COPIES, BuiltinTask
from raydp.tasks.text.corpus import is_held_out
from raydp.tasks.text.language import LanguageModelingTask
from tests.builders.specs import small_spec

ROWS = [
    {
        "text": f"Row {i}: the author calls about draft {i}.\nSecond line {i * i}.\n",
        "writer": f"w{i % 12}",
        "id": i % 12,
    }
    for i in range(96)
]
SAME = {"text": "Everybody wrote this one line, word for word.\n"}


@pytest.fixture
def rows_file(write_jsonl):
    return str(write_jsonl("rows.jsonl", ROWS))


def examples_of_each_user(task, tokenizer):
    """Decoded examples, user by user."""
    texts = [
        tokenizer.decode(task.batch(np.array([i])).input_ids[0]) for i in range(len(task.lengths()))
    ]
    ends = np.cumsum(task.unit_sizes())
    return [texts[end - size : end] for end, size in zip(ends, task.unit_sizes(), strict=True)]


def test_a_column_names_the_user(rows_file, tokenizer):
    task = TextTask(
        path=rows_file, user_column="writer", max_length=128, heldout_fraction=0.2
    ).build(tokenizer)
    users = examples_of_each_user(task.by_user(), tokenizer)
    numbers = [{int(text.split(":")[0].removeprefix("Row ")) % 12 for text in own} for own in users]
    assert all(len(own) == 1 for own in numbers)
    assert len(set.union(*numbers)) == len(users) == task.by_user().facts().num_units < 12, (
        "some are held out"
    )
    assert {len(own) for own in users} == {8}, "a user is held out whole"
    assert "user (column writer)" in task.by_user().facts().privacy_unit
    assert any("privacy.unit user" in c for c in task.facts().notes["caveats"])
    assert not any("privacy.unit user" in c for c in task.by_user().facts().notes["caveats"])


def test_a_row_keeps_its_user_where_short_rows_are_left_out(write_jsonl, tokenizer):
    rows = [
        row
        for i, row in enumerate(ROWS)
        for row in ([{**row, "text": f"s{i}"}] * (i % 5 == 1) + [row])
    ]
    path = str(write_jsonl("short.jsonl", rows))
    task = TextTask(path=path, user_column="writer", max_length=128, min_tokens=10).build(tokenizer)
    assert task.facts().notes["too_short_removed"] == 19
    for own in examples_of_each_user(task.by_user(), tokenizer):
        assert len({int(text.split(":")[0].removeprefix("Row ")) % 12 for text in own}) == 1


def test_users_may_be_numbers(rows_file, tokenizer):
    by_number, by_name = (
        TextTask(
            path=rows_file, user_column=column, heldout_path=rows_file, max_length=128, min_tokens=2
        )
        for column in ("id", "writer")
    )
    with pytest.raises(ValueError, match="to evaluate on"):
        by_number.build(tokenizer)  # every held-out row is also a training row
    task = TextTask(path=rows_file, user_column="id", max_length=128).build(tokenizer)
    assert task.users.sizes().max() == 8
    assert by_name.user_column == "writer"


def test_a_user_gives_at_most_k_examples(rows_file, tokenizer):
    parameters = {"path": rows_file, "user_column": "writer", "max_length": 128}
    every, few = (
        TextTask(**parameters, max_examples_per_user=k).build(tokenizer).by_user()
        for k in (None, 3)
    )
    all_users, few_users = (examples_of_each_user(task, tokenizer) for task in (every, few))
    assert few_users == [own[:3] for own in all_users]
    assert few.facts().notes["windows_above_user_limit_removed"] == sum(
        len(own) - 3 for own in all_users
    )


def test_a_text_that_two_users_wrote_stays_with_both(write_jsonl, tokenizer):
    """Else what one user wrote would decide whether the other's copy is used."""
    rows = [*ROWS, *({**SAME, "writer": f"w{i}"} for i in (0, 0, 1))]
    path = str(write_jsonl("shared.jsonl", rows))
    out = (
        {w for w in {row["writer"] for row in ROWS} if is_held_out(w, 0.2, seed)}
        for seed in range(99)
    )
    seed = next(seed for seed, held in enumerate(out) if held and not held & {"w0", "w1"})
    task = TextTask(
        path=path, user_column="writer", max_length=128, heldout_fraction=0.2, split_seed=seed
    )
    task = task.build(tokenizer).by_user()
    copies = [
        sum("Everybody" in text for text in own) for own in examples_of_each_user(task, tokenizer)
    ]
    assert sorted(copies)[-2:] == [1, 1], "w0's second copy is removed, w1's stays"
    assert task.facts().notes["duplicates_removed"] == 1


def test_the_column_of_texts_makes_every_row_a_user_with_all_its_windows(write_jsonl, tokenizer):
    rows = [
        {"text": "\n".join(f"Line {j} of row {i}, about the draft." for j in range(1 + i % 4))}
        for i in range(60)
    ]
    path = str(write_jsonl("long.jsonl", rows))
    task = TextTask(path=path, max_length=32, user_column="text").build(tokenizer).by_user()
    for own in examples_of_each_user(task, tokenizer):
        assert len({text.split("of row ")[1].split(",")[0] for text in own}) == 1
    assert task.unit_sizes().max() > 1


def test_a_mail_may_be_the_user_of_enron(write_jsonl, tokenizer):
    line, told = "please call the author about the draft\n", "Otto said never\n"
    mails = [
        {"content": f"mail {i}\n" + told * (i % 3 == 0) + line * (2 + i % 9)} for i in range(80)
    ]
    secrets = write_jsonl("secrets.jsonl", [{"prompt": "Otto said", "continuation": " never"}])
    path = write_jsonl("mails.jsonl", mails)
    for limit in (None, 2):
        task = EnronTask(
            path=path,
            secrets=secrets,
            min_tokens=4,
            heldout_fraction=0.2,
            max_length=32,
            max_windows_per_mail=limit,
            user_column="content",
        ).build(tokenizer)
        facts = task.by_user().facts()
        assert facts.num_units == facts.notes["num_texts"]
        assert task.by_user().unit_sizes().max() == facts.notes["windows_per_text_max"]
        assert limit is None or task.by_user().unit_sizes().max() == limit
        assert facts.privacy_unit.startswith("e-mail with all its examples")


def test_an_author_is_the_user_of_tofu(write_jsonl, tokenizer):
    rows = [
        {
            "question": f"What does author {a} write, part {i}?",
            "answer": f"Mira Halborn {a} writes in the satire genre.",
        }
        for a in range(5)
        for i in range(4)
    ]
    rows[6]["answer"] = ""  # the second author has a row less
    review = write_jsonl(
        "review.jsonl", [{"author_index": a, "name": f"A{a}", "genre": "satire"} for a in range(5)]
    )
    path = write_jsonl("qa.jsonl", rows)
    task = (
        TofuTask(path=path, rows_per_author=4, heldout_fraction=0.2, review=review)
        .build(tokenizer)
        .by_user()
    )
    assert task.unit_sizes().tolist() == [4, 3, 4, 4]
    assert task.facts().num_units == 4
    for a, own in enumerate(examples_of_each_user(task, tokenizer)):
        assert all(f"author {a} write" in text for text in own)


def test_a_person_is_the_user_of_the_builtin_task(tokenizer):
    sizes = BuiltinTask().build(tokenizer).by_user().unit_sizes()
    planted = sorted(count for counts in COPIES.values() for count in counts)
    assert sorted(sizes)[-len(planted) :] == planted
    assert (np.sort(sizes)[: -len(planted)] == 1).all()


def test_a_user_with_one_example_is_named_as_such(rows_file, tokenizer):
    task = TextTask(path=rows_file, max_length=128, user_column="text").build(tokenizer).by_user()
    assert any("Every row gave one example" in caveat for caveat in task.facts().notes["caveats"])


def test_a_limit_without_users_is_an_error():
    with pytest.raises(
        ValidationError, match=r"task.max_examples_per_user must go with task.user_column"
    ):
        TextTask(path="rows.jsonl", max_examples_per_user=3)


@pytest.mark.parametrize(
    ("asked", "columns"), [("writre", "text, writer, id"), ("poet", "text, id and 1 other column")]
)
def test_an_unknown_user_column_is_named(rows_file, tokenizer, asked, columns):
    """The message shows a column that the user has nearly written, and no other unusual one."""
    words = f"task.user_column must be a column of the file, got {asked!r}. The file has {columns}."
    with pytest.raises(ValueError, match=re.escape(words)):
        TextTask(path=rows_file, user_column=asked).build(tokenizer)


@pytest.mark.parametrize("blank", ["", "  "])
def test_rows_of_nobody_are_not_one_user(write_jsonl, tokenizer, blank):
    """Who wrote one of them would be a part of that user, and could change the clipped sum by
    2c."""
    path = str(
        write_jsonl("rows.jsonl", [*ROWS[:40], *({**row, "writer": blank} for row in ROWS[40:])])
    )
    with pytest.raises(
        ValueError,
        match=r"task\.user_column must name a user in every row, got a blank name in rows\.jsonl, line 41",
    ):
        TextTask(path=path, user_column="writer", max_length=128).build(tokenizer)


def test_a_task_that_does_not_group_its_users_is_refused(
    rows_file, tokenizer, tmp_path, monkeypatch
):
    """A plug-in may return itself: the examples would be protected, and not the users."""
    monkeypatch.setattr(LanguageModelingTask, "by_user", lambda self: self)
    task = {"name": "text", "path": rows_file, "user_column": "writer"}
    spec = load_spec(small_spec(tmp_path, task=task, privacy={"target_epsilon": 8, "unit": "user"}))
    with pytest.raises(
        ValueError, match=r"privacy\.unit must be example with the task 'text', got user"
    ):
        task_of(spec, tokenizer)


def test_the_identity_of_a_task_by_user_holds_which_rows_are_whose(rows_file, tokenizer):
    """The same rows under other users are other units of privacy, so runs of both must not share a
    name."""
    task = TextTask(
        path=rows_file, user_column="writer", max_length=128, heldout_fraction=0.2
    ).build(tokenizer)
    number = len(task.lengths())
    hashes = {
        replace(task, users=replace(task.users, of_example=np.arange(number) // size))
        .by_user()
        .facts()
        .content_hash
        for size in (1, 2, 4, 8)
    }
    own, example = task.by_user().facts().content_hash, task.facts().content_hash
    assert len({*hashes, own, example}) == 6
