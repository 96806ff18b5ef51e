"""What is seen of data: their form, columns, repeated rows, lengths and users."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from raydp.extensions.budget.survey import UserColumn, survey
from raydp.extensions.chat.task import ChatTask
from raydp.models.base_models import load_tokenizer


def jsonl(path: Path, rows: Iterable[Mapping[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def said(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def test_conversations_are_known_by_their_columns(tmp_path: Path) -> None:
    rows = [
        {"messages": said(f"Question {k % 3}", "An answer."), "user": f"u{k % 10}"}
        for k in range(12)
    ]
    seen = survey(jsonl(tmp_path / "a.jsonl", rows))
    assert (seen.form, seen.column, seen.num_rows, seen.num_distinct) == ("messages", None, 12, 3)
    assert seen.user_columns == (UserColumn(name="user", num_users=10, most_rows=2),)
    assert survey(str(tmp_path / "a.jsonl"), max_rows=10).user_columns[0].unit == "example", (
        "each has one row"
    )
    texts = [{"prompt": f"Q{k}", "completion": "A", "id": str(k)} for k in range(3)]
    assert survey(jsonl(tmp_path / "b.jsonl", texts)).form == "prompt_completion"
    told = [{"instruction": "Sum up.", "input": str(k), "output": "A"} for k in range(3)]
    assert survey(jsonl(tmp_path / "c.jsonl", told)).num_distinct == 3


def test_of_other_rows_the_longest_texts_are_taken(tmp_path: Path) -> None:
    rows = [
        {"title": "Short", "body": f"A much longer text, number {k}.", "n": k} for k in range(5)
    ]
    seen = survey(jsonl(tmp_path / "a.jsonl", rows))
    assert (seen.form, seen.column) == (None, "body")
    assert survey(jsonl(tmp_path / "a.jsonl", rows), column="title").column == "title"


def test_the_lengths_are_those_of_the_task(tmp_path: Path) -> None:
    rows = [{"messages": said(f"Question {k}", "word " * k)} for k in range(1, 30)]
    path, tokenizer = jsonl(tmp_path / "a.jsonl", rows), load_tokenizer("tiny")
    seen = survey(path)
    assert seen.template(tokenizer) == "chatml"
    task = ChatTask(path=path, template="chatml", max_length=4096, heldout_fraction=0.4).build(
        tokenizer
    )
    both = [*task.train.lengths(), *task.heldout.lengths()]
    assert seen.lengths(tokenizer) == sorted(both)
    assert len(both) == 29


@pytest.mark.parametrize(
    ("rows", "column", "message"),
    [
        ([{"text": "One row that is long enough."}], None, "at least 2 rows, got 1"),
        ([{"n": 1}, {"n": 2}], None, "a column of texts, got n"),
        ([{"Mira Okonkwo 555-0142": "a"}] * 2, None, "got 1 column of other names"),
        ([{"text": "A text of some length."}] * 2, "body", "--column must be a column"),
        ([{"text": "A text of some length."}, {"text": None}], "text", "1 rows without one"),
        ([{"messages": [], "prompt": "", "completion": ""}] * 2, None, "rows of one form"),
    ],
)
def test_rows_that_make_no_task_are_refused(
    tmp_path: Path, rows: list[Mapping[str, object]], column: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        survey(jsonl(tmp_path / "a.jsonl", rows), column=column)
    assert "Okonkwo" not in str(error.value)


def test_only_usual_names_of_columns_may_name_users(tmp_path: Path) -> None:
    """A CSV file without a header begins with somebody's row."""
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Mira Okonkwo", "sender", "text"])
        writer.writerows(
            ["x", f"s{k % 12}", f"A text of some length, number {k}."] for k in range(24)
        )
    assert [column.name for column in survey(str(path)).user_columns] == ["sender"]
    assert [column.name for column in survey(str(path), user_column="text").user_columns] == [
        "text"
    ]
    with pytest.raises(ValueError, match="--user-column must be a column of the data, got 'who'"):
        survey(str(path), user_column="who")


def test_a_column_of_few_values_names_roles(tmp_path: Path) -> None:
    rows = [
        {"text": f"A text of some length, number {k}.", "speaker": "ab"[k % 2]} for k in range(40)
    ]
    path = jsonl(tmp_path / "a.jsonl", rows)
    assert survey(path).user_columns == ()
    assert survey(path, user_column="speaker").user_columns[0].num_users == 2


def test_the_answer_user_takes_the_column_with_the_most_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from types import SimpleNamespace

    from raydp.extensions.budget import command

    column = SimpleNamespace(name="user_id", unit="user")
    monkeypatch.setattr(command.typer, "prompt", lambda *asked, **options: "user")
    assert command._asked_unit(SimpleNamespace(user_columns=(column,))) == (column, "user")
