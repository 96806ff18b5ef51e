from __future__ import annotations

import csv
import sys

import datasets
import numpy as np
import pytest
from pydantic import ValidationError

from raydp.tasks.text.any_text import TextTask
from raydp.tasks.text.corpus import is_held_out
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import content_hash

ROWS = [
    f"Row {i}: the author writes about the draft, part {i * i}.\nSecond line {i}.\n"
    for i in range(60)
]
SECRET = {"prompt": "Call Mira", "continuation": " on 555-0142"}
WITH_SECRET = [row + "Call Mira on 555-0142\n" if i % 6 == 0 else row for i, row in enumerate(ROWS)]


@pytest.fixture
def rows_file(write_jsonl):
    return str(write_jsonl("rows.jsonl", [{"text": row} for row in WITH_SECRET]))


@pytest.fixture
def saved(tmp_path):
    train = datasets.Dataset.from_dict({"body": WITH_SECRET, "id": list(range(60))})
    parts = datasets.DatasetDict({"train": train, "validation": train.select(range(0, 60, 5))})
    parts.save_to_disk(tmp_path / "parts")
    train.save_to_disk(tmp_path / "single")
    return tmp_path


def test_every_source_gives_the_same_task(rows_file, saved, tmp_path, tokenizer):
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["text"], *([row] for row in WITH_SECRET)])
    tasks = [
        TextTask(path=rows_file),
        TextTask(path=str(tmp_path / "rows.csv")),
        TextTask(path=str(saved / "parts"), column="body"),
        TextTask(path=str(saved / "parts"), column="body", split="train"),
        TextTask(path=str(saved / "single"), column="body"),
    ]
    assert len({task.build(tokenizer).facts().content_hash for task in tasks}) == 1


def test_a_text_file_is_read_by_lines(tmp_path, tokenizer):
    path = tmp_path / "notes.txt"
    path.write_text("\n".join(f"line {i} of the notes" for i in range(40)))
    facts = TextTask(path=str(path)).build(tokenizer).facts()
    assert facts.notes["texts_read"] == 40
    assert facts.notes["num_texts"] + facts.notes["num_heldout_texts"] == 40


def test_without_secrets_there_are_none(rows_file, tokenizer):
    task = TextTask(path=rows_file).build(tokenizer)
    assert task.secrets() == task.controls() == ()


def test_verbatim_secrets_leave_the_held_out_rows_and_attributes_do_not(
    rows_file, write_jsonl, tokenizer
):
    attribute = {"prompt": "Who writes?", "attribute": "Author"}
    secrets = write_jsonl("s.jsonl", [SECRET, attribute, {"prompt": "Who?", "attribute": "nobody"}])
    task = TextTask(path=rows_file, secrets=secrets, heldout_fraction=0.3, max_length=128).build(
        tokenizer
    )
    sides = [(row, is_held_out(row, 0.3, 0)) for row in WITH_SECRET]
    train = [row for row, out in sides if not out]
    leaking = [row for row, out in sides if out and "Call Mira on 555-0142" in row]
    assert task.facts().notes["heldout_with_secret_removed"] == len(leaking) > 0
    assert task.facts().notes["num_heldout_texts"] == len(ROWS) - len(train) - len(leaking)
    counts = {s.continuation: s.count for s in task.secrets()}
    assert counts == {
        " on 555-0142": sum("Call Mira" in row for row in train),
        "Author": len(train),
    }
    assert {c.kind for c in task.controls()} == {"verbatim"}


@pytest.mark.parametrize(
    "left_out_by", [{"window": "head"}, {"user_column": "who", "max_examples_per_user": 1}]
)
def test_a_secret_that_no_example_shows_is_not_counted(write_jsonl, tokenizer, left_out_by):
    """In half of the rows, the secret is beyond the first window, or in a further row of the same
    user."""
    secrets = write_jsonl("secrets.jsonl", [SECRET])
    beyond = "and so on " * 60 if "window" in left_out_by else ""
    rows = [
        {"text": f"Row {i}. {beyond * (i % 2)}Call Mira on 555-0142\n", "who": f"w{i // 2}"}
        for i in range(24)
    ]
    path, other = (
        write_jsonl("rows.jsonl", rows),
        write_jsonl("other.jsonl", [{"text": row} for row in ROWS]),
    )
    options = {
        "path": str(path),
        "heldout_path": str(other),
        "secrets": str(secrets),
        "max_length": 64,
    }
    task = TextTask(**options, **left_out_by).build(tokenizer)
    shown = [
        tokenizer.decode(task.batch(np.array([i])).input_ids[0]) for i in range(len(task.train))
    ]
    assert task.secrets()[0].count == sum("Call Mira on 555-0142" in text for text in shown) == 12


def test_a_secret_beyond_the_examples_of_its_user_has_this_reason(write_jsonl, tokenizer):
    further = {"prompt": "Call Otto on", "continuation": " 555-0143"}
    rows = [
        {
            "text": f"Row {i}. Call {'Otto on 555-0143' if i % 2 else 'Mira on 555-0142'}\n",
            "who": f"w{i // 2}",
        }
        for i in range(40)
    ]
    task = TextTask(
        path=str(write_jsonl("rows.jsonl", rows)), secrets=str(write_jsonl("s.jsonl", [SECRET, further])),
        heldout_path=str(write_jsonl("other.jsonl", [{"text": row} for row in ROWS])),
        user_column="who", max_examples_per_user=1,
    ).build(tokenizer)  # fmt: skip
    notes = task.facts().notes
    assert notes["windows_above_user_limit_removed"] == 20
    assert notes["secrets_absent"] == notes["secrets_above_limit"] == ["secret-002"]


def test_a_held_out_file_loses_the_rows_of_the_training_data(rows_file, write_jsonl, tokenizer):
    secrets = write_jsonl("s.jsonl", [SECRET])
    heldout = [
        "New and clean row of text.\n",
        ROWS[1],
        "x Call Mira on 555-0142 y",
        "Another new row.\n",
    ]
    path = str(write_jsonl("heldout.jsonl", [{"text": row} for row in heldout]))
    facts = TextTask(path=rows_file, secrets=secrets, heldout_path=path).build(tokenizer).facts()
    assert facts.notes["num_texts"] == 60
    assert facts.notes["heldout_duplicates_removed"] == 1
    assert facts.notes["heldout_with_secret_removed"] == 1
    assert facts.notes["num_heldout_texts"] == 2


def test_a_part_of_a_data_set_can_be_held_out(saved, tokenizer):
    task = TextTask(path=str(saved / "parts"), column="body", heldout_split="validation")
    with pytest.raises(ValueError, match=r"task\.path must leave texts to evaluate on"):
        task.build(tokenizer)  # every row of this part is also in the training part
    swapped = TextTask(
        path=str(saved / "parts"), column="body", split="validation", heldout_split="train"
    )
    facts = swapped.build(tokenizer).facts()
    assert (facts.notes["num_texts"], facts.notes["num_heldout_texts"]) == (12, 48)


@pytest.mark.parametrize(
    ("folder", "parameters", "message"),
    [
        (
            "parts",
            {"split": "test"},
            r"task\.split must be a part of the data set, got 'test'\. It has train, validation",
        ),
        ("single", {"split": "train"}, r"task\.split must go with a data set in parts"),
        (
            "parts",
            {"heldout_split": "test"},
            r"task\.heldout_split must be a part of the data set, got 'test'\. It has train, validation",
        ),
        (
            "parts",
            {"column": "text"},
            r"task\.column must be a column of the data set, got 'text'\. It has body, id",
        ),
        ("parts", {"column": "id"}, r"task\.path must have a string 'id'.*got a number in .*row 1"),
        (
            "nowhere",
            {},
            r"task\.path must be an existing file, a folder of datasets\.save_to_disk or",
        ),
    ],
)
def test_an_absent_part_of_a_data_set_is_refused(
    saved, tokenizer, monkeypatch, folder, parameters, message
):
    datasets = sys.modules["datasets"]
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=message):
        TextTask(**{"path": str(saved / folder), "column": "body"} | parameters).build(tokenizer)


def test_a_folder_that_holds_no_data_set_is_an_error(tmp_path, tokenizer):
    with pytest.raises(
        ValueError,
        match=r"task\.path must be an existing file, a folder of datasets\.save_to_disk or",
    ):
        TextTask(path=str(tmp_path)).build(tokenizer)


def test_without_the_package_the_extra_is_named(monkeypatch, tokenizer):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ValueError, match=r"task\.path must be an existing file .*got 'someone/rows'.*\[datasets\]"
    ):
        TextTask(path="someone/rows").build(tokenizer)


def test_a_missing_file_is_not_sought_on_the_hub(tokenizer, tmp_path):
    with pytest.raises(
        ValueError, match=r"task\.path must be an existing file, got '.*none\.jsonl'"
    ):
        TextTask(path=str(tmp_path / "none.jsonl")).build(tokenizer)
    path = tmp_path / "t.txt"
    path.write_text("a line of text\n")
    task = TextTask(path=str(path), heldout_path=str(tmp_path / "none.csv"))
    with pytest.raises(
        ValueError, match=r"task\.heldout_path must be an existing file, got '.*none\.csv'"
    ):
        task.build(tokenizer)


def test_a_split_of_a_file_is_an_error(rows_file, tokenizer):
    with pytest.raises(
        ValueError, match=r"task\.split must go with a data set, got 'train' with the file"
    ):
        TextTask(path=rows_file, split="train").build(tokenizer)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"heldout_path": "x.jsonl", "heldout_fraction": 0.2},
            r"task\.heldout_fraction must stand alone, got",
        ),
        (
            {"window": "tail", "max_windows_per_row": 1},
            r"task\.max_windows_per_row must go with window lines",
        ),
        ({"controls": "c.jsonl"}, r"task\.controls must go with task\.secrets"),
        ({"colum": "text"}, "colum"),
    ],
)
def test_parameters_are_checked_before_any_work(parameters, message):
    with pytest.raises(ValidationError, match=message):
        TextTask(path="rows.jsonl", **parameters)


def test_a_public_held_out_file_is_shaped_by_nothing_private(rows_file, write_jsonl, tokenizer):
    heldout = [
        "New and clean row of text.\n",
        ROWS[1],
        "x Call Mira on 555-0142 y",
        "New and clean row of text.\n",
    ]
    path = str(write_jsonl("heldout.jsonl", [{"text": row} for row in heldout]))
    parameters = {"heldout_path": path, "secrets": write_jsonl("s.jsonl", [SECRET])}
    public = TextTask(path=rows_file, heldout_is_public=True, **parameters).build(tokenizer)
    other = TextTask(
        path=str(write_jsonl("other.jsonl", [{"text": "Call Mira on 555-0142"}])), **parameters
    )
    other = other.model_copy(update={"heldout_is_public": True}).build(tokenizer)
    private = TextTask(path=rows_file, **parameters).build(tokenizer)
    assert public.facts().utility_is_public
    assert not private.facts().utility_is_public
    assert public.facts().notes["num_heldout_texts"] == 3
    assert private.facts().notes["num_heldout_texts"] == 1
    assert public.heldout.token_ids.tolist() == other.heldout.token_ids.tolist()
    assert not TextTask(path=rows_file).build(tokenizer).facts().utility_is_public


@pytest.mark.parametrize("heldout_path", [None, "rows.jsonl", "./rows.jsonl"])
def test_part_of_the_private_data_cannot_be_declared_public(heldout_path):
    with pytest.raises(
        ValidationError,
        match=r"task\.heldout_is_public must go with a task\.heldout_path of its own",
    ):
        TextTask(path="rows.jsonl", heldout_path=heldout_path, heldout_is_public=True)


@pytest.mark.parametrize("part", [0, 1], ids=["training", "held-out"])
def test_equal_lengths_and_other_tokens_are_another_task(part: int) -> None:
    """A cache of hidden states that took both for one task would mix their data."""
    parts = [TokenizedExamples.from_lists([[1, 2, 3], [4, 5]]) for _ in range(2)]
    before = content_hash(parts[0], parts[1], [])
    parts[part] = TokenizedExamples.from_lists([[1, 2, 3], [4, 6]])
    assert content_hash(parts[0], parts[1], []) != before
