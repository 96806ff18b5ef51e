"""`raydp secrets extract` on generated data: what was planted comes back, in a file that only its
owner reads."""

from __future__ import annotations

import json
import random
import stat
import subprocess
import sys

import pytest

from raydp.extensions.chat.task import ChatTask
from raydp.extensions.secrets.detectors import find
from raydp.extensions.secrets.mail import training_texts
from raydp.models.base_models import load_tokenizer
from raydp.tasks.secret import read_secrets
from raydp.tasks.text.any_text import TextTask
from tests.builders.text import line

SIGNATURE = (
    "Mira Halborn\nEB 4417\n713-853-0142 (Phone)\n713-646-0199 (Fax)\nmira.halborn@nordvik.com"
)
FORWARDED = "---------- Forwarded by Otto Fenwick/OSL/NRD on "


def mails(count=120, seed=3):
    rng = random.Random(seed)
    texts = []
    for i in range(count):
        lines = [line(rng, 9) for _ in range(rng.randint(4, 8))]
        if i % 3 == 0:
            lines.append(SIGNATURE)
        if i % 4 == 0:
            lines.insert(1, f"{FORWARDED}{rng.randint(1, 12)}/{rng.randint(1, 28)}")
        if i % 6 == 0:
            lines.insert(0, "My cell: 503-555-0123, any time.")
        texts.append("\n".join(lines) + f"\n{i}\n")
    return texts


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "mails.jsonl"
    path.write_text("".join(json.dumps({"content": t}) + "\n" for t in mails()))
    return path


def extract(raydp, data, *options):
    return raydp(
        "secrets",
        "extract",
        data,
        "-o",
        "secrets.jsonl",
        "--tokenizer",
        "tiny",
        "--n",
        16,
        *options,
    )


def test_only_replies_of_the_assistant_are_searched(raydp, tmp_path):
    """The secrets are read again by the task, which finds them in the training conversations."""
    rng = random.Random(1)
    path = tmp_path / "chats.jsonl"
    said = [
        f"{line(rng, 9)}" + ("\nCall the desk at 503-555-0123, please." if i % 3 == 0 else "")
        for i in range(90)
    ]
    asked = [f"{line(rng, 9)} My own number is 503-555-0777." for _ in said]
    turns = [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        for question, answer in zip(asked, said, strict=True)
    ]
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in turns))
    options = ["--kind", "chat", "--tokenizer", "tiny", "--template", "plain", "--json"]
    answer = raydp("secrets", "extract", path, "-o", "secrets.jsonl", *options)
    assert answer.code == 0, answer.err
    rows = [json.loads(row) for row in (tmp_path / "secrets.jsonl").read_text().splitlines()]
    assert any(row["continuation"].endswith("555-0123") for row in rows)
    assert not any("0777" in row["prompt"] + row["continuation"] for row in rows), (
        "the user's own words"
    )
    answer = raydp("secrets", "extract", path, "-o", "all.jsonl", *options, "--loss", "all")
    assert answer.code == 0, answer.err
    assert "555-0777" in (tmp_path / "all.jsonl").read_text(), "with loss on all messages"
    task = ChatTask(path=str(path), secrets=str(tmp_path / "secrets.jsonl"), template="plain")
    assert task.build(load_tokenizer("tiny")).secrets(), "they stand in the training conversations"


def conversations_on_disk(path, turns):
    """Write conversations of pairs of question and answer."""
    roles = ("user", "assistant")
    rows = (
        [
            {"role": role, "content": text}
            for pair in pairs
            for role, text in zip(roles, pair, strict=True)
        ]
        for pairs in turns
    )
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("detect", ["email", ""])
def test_a_secret_is_counted_by_conversations_also_in_equal_replies(raydp, tmp_path, detect):
    rng = random.Random(2)
    repeated = "Please write to our colleague Mira Halborn at mira.halborn@nordvik.com, any time."
    turns = [[(line(rng, 9), line(rng, 9))] for _ in range(30)]
    for pairs in turns[:3]:
        pairs.append((line(rng, 9), repeated))
    alone = "Mail otto.fenwick@nordvik.com, he knows all about it and will help you at once"
    turns[5] = [(f"{alone}?", f"{alone}!"), (line(rng, 9), f"{alone}.")]
    path = conversations_on_disk(tmp_path / "chats.jsonl", turns)
    options = ("--kind", "chat", "--tokenizer", "tiny", "--template", "plain", "--n", 16, "--json")
    options += ("--heldout-fraction", 1e-9, "--detect", detect, "--order", "count")
    for loss in ("assistant", "all"):
        answer = raydp("secrets", "extract", path, "-o", f"{loss}.jsonl", *options, "--loss", loss)
        assert answer.code == 0, answer.err
        assert json.loads(answer.out)["rows"] == 30
        rows = [json.loads(row) for row in (tmp_path / f"{loss}.jsonl").read_text().splitlines()]
        found = [row["count"] for row in rows if "nordvik" in row["prompt"] + row["continuation"]]
        assert found
        assert set(found) == {3}, "one conversation is fewer than --min-count"
        assert not any("fenwick" in row["prompt"] + row["continuation"] for row in rows)


def test_mistakes_of_conversations_are_named_by_the_options(raydp, tmp_path):
    """The task's own messages name fields of a spec, which the command does not have."""
    said = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Nobody."}]
    path = tmp_path / "chats.jsonl"
    path.write_text(f"{json.dumps({'messages': said})}\n" * 3)
    options = ["-o", "secrets.jsonl", "--kind", "chat", "--tokenizer", "tiny"]
    answer = raydp("secrets", "extract", path, *options)
    assert answer.code == 2
    assert "error: --template must be given for a model without a chat template" in answer.err
    answer = raydp("secrets", "extract", path, *options, "--template", "plain")
    assert answer.code == 2
    assert "task." not in answer.err
    assert "`--loss all` reads what users say, too." in " ".join(answer.err.split())


def test_planted_texts_are_found_with_their_counts(raydp, data, tmp_path):
    answer = extract(raydp, data, "--heldout-fraction", 0, "--json")
    assert answer.code == 0, answer.err
    notes = json.loads(answer.out)
    rows = [json.loads(line) for line in (tmp_path / "secrets.jsonl").read_text().splitlines()]
    by_text = {row["prompt"] + row["continuation"]: row for row in rows}
    texts = mails()
    for row in rows:
        assert (
            row["count"] == sum(row["prompt"] + row["continuation"] in text for text in texts) >= 2
        )
    contact = by_text[SIGNATURE]
    assert (contact["type"], contact["source"], contact["count"]) == ("contact", "ngram", 40)
    assert contact["continuation"] == "-0199 (Fax)\nmira.halborn@nordvik.com"
    assert any(
        row["type"] == "forwarded" and row["continuation"] == " Fenwick/OSL/NRD" for row in rows
    )
    assert any(row["type"] == "phone" and row["continuation"] == "-555-0123" for row in rows)
    plain = [row["type"] == "formatted" for row in rows]
    assert plain == sorted(plain), "what no rule recognises comes last"
    assert notes["secrets"] == len(rows) == len(read_secrets(tmp_path / "secrets.jsonl", "secrets"))


def short_mails(count=300, seed=5):
    """Short mails with one footer; every tenth repeats a customer's account number."""
    rng = random.Random(seed)
    for i in range(count):
        said = (
            f"the account of Bruno Tellmark is 4711-0815-2342, {line(rng, 3)}"
            if i % 10 == 0
            else line(rng, 9)
        )
        yield f"{said}\n{i}\nYou receive this message because you are a customer of Nordvik Energy.\n"


def test_an_account_number_that_thirty_short_mails_repeat_leads(raydp, tmp_path):
    path = tmp_path / "short.jsonl"
    path.write_text("".join(json.dumps({"content": text}) + "\n" for text in short_mails()))
    for name, options in (("default", ()), ("short", ("--n", 8))):
        answer = raydp(
            "secrets",
            "extract",
            path,
            "-o",
            f"{name}-found.jsonl",
            "--tokenizer",
            "tiny",
            "--heldout-fraction",
            0,
            *options,
        )
        assert answer.code == 0, answer.err
        rows = [
            json.loads(row) for row in (tmp_path / f"{name}-found.jsonl").read_text().splitlines()
        ]
        assert "4711-0815-2342" in rows[0]["continuation"]
        assert rows[0]["count"] >= 2
    paper = ("--n", 8, "--detect", "", "--order", "count")
    raydp("secrets", "extract", path, "-o", "paper.jsonl", "--tokenizer", "tiny", *paper)
    rows = [json.loads(row) for row in (tmp_path / "paper.jsonl").read_text().splitlines()]
    assert [row["count"] for row in rows] == sorted((row["count"] for row in rows), reverse=True)
    assert {row["source"] for row in rows} == {"ngram"}


FIRST_NAMES = ["Ada", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal", "Ivy", "Jo"]


def support_mails(count=400, seed=7):
    """Mails to a support team with one disclaimer.

    Ten customers repeat an account number, after a line that varies.
    """
    rng = random.Random(seed)
    numbers = {f"{first} Tellmark": f"{rng.randrange(10**7, 10**8)}" for first in FIRST_NAMES}
    customers = [name for i, name in enumerate(numbers) for _ in range(8 + 2 * i)]
    customers += [None] * (count - len(customers))
    rng.shuffle(customers)
    texts = []
    for name in customers:
        said = f"{line(rng, 4)} since {rng.randint(1, 29)} May, ticket {rng.randrange(10**5)}."
        who = (
            f"Account of {name}: {numbers[name]}"
            if name
            else f"My name is {rng.choice(list(numbers))}, call back."
        )
        texts.append(
            f"{rng.choice(['Hello,', 'Dear support team,'])}\n{said}\n{who}\n"
            "This message is confidential. If you received it by mistake, delete it.\nRegards\n"
        )
    return texts, numbers


def test_every_account_number_is_a_continuation_and_boilerplate_does_not_lead(raydp, tmp_path):
    texts, numbers = support_mails()
    path = tmp_path / "support.jsonl"
    path.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    options = ("--tokenizer", "tiny", "--column", "body", "--heldout-fraction", 0, "--json")
    answer = raydp("secrets", "extract", path, "-o", "secrets.jsonl", *options)
    assert answer.code == 0, answer.err
    notes = json.loads(answer.out)
    rows = [json.loads(row) for row in (tmp_path / "secrets.jsonl").read_text().splitlines()]
    leading = rows[: len(numbers)]
    assert {(row["prompt"], row["continuation"]) for row in leading} == {
        (f"Account of {name}: ", number) for name, number in numbers.items()
    }
    for row in leading:
        assert (
            row["count"]
            == sum(row["prompt"] + row["continuation"] in text for text in set(texts))
            >= 8
        )
    for boilerplate in ("Regards", "This message is confidential"):
        assert not any(row["continuation"].strip().startswith(boilerplate) for row in rows)
    assert notes["boilerplate_dropped"] > 0
    assert notes["secrets_of_detectors"] == notes["number_found"] == len(numbers)
    assert "reason" not in notes


def test_values_that_become_no_secret_have_a_reason(raydp, tmp_path):
    texts, numbers = support_mails()
    path = tmp_path / "support.jsonl"
    path.write_text("".join(json.dumps({"content": text}) + "\n" for text in texts))
    options = (
        "--tokenizer",
        "tiny",
        "--min-count",
        50,
        "--heldout-fraction",
        0,
        "--order",
        "count",
        "--json",
    )
    answer = raydp("secrets", "extract", path, "-o", "secrets.jsonl", *options)
    assert answer.code == 0, answer.err
    notes = json.loads(answer.out)
    assert notes["secrets_of_detectors"] == 0
    assert notes["detected_too_rare"] == len(numbers)
    assert "10 are in fewer than 50 rows (--min-count)" in notes["reason"]
    assert notes["boilerplate_dropped"] == 0, "the order of the paper drops nothing"


def test_a_missing_column_is_named_before_heavy_imports(data):
    code = """
import sys
from raydp.cli.main import main
sys.argv = ["raydp", "secrets", "extract", sys.argv[1], "-o", "s.jsonl", "--tokenizer", "tiny", "--column", "body"]
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(data)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "got only content" in done.stderr
    assert "--column NAME" in done.stderr
    assert "Halborn" not in done.stderr


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("account 4711-0815-2342.", "4711-0815-2342"),
        ("IBAN DE89 3704 0044 0532 0130 00", "DE89 3704 0044 0532 0130 00"),
        ("customer AC-482913, please", "AC-482913"),
        ("ssn 123-45-6789", "123-45-6789"),
        ("on 2001-05-14 or 14-05-2001, 20010514", None),
        ("Houston 77002-7361, 2000-2001, $1000000 or 1,000,000.50", None),
    ],
)
def test_account_numbers_differ_from_dates_and_amounts(text, number):
    assert [text[f.begin : f.end] for f in find(text, kinds=("number",))] == (
        [number] if number else []
    )


def test_a_value_of_a_frequent_sequence_is_not_listed_again(raydp, data, tmp_path):
    answer = extract(raydp, data, "--json")
    rows = [json.loads(line) for line in (tmp_path / "secrets.jsonl").read_text().splitlines()]
    assert not any("mira.halborn" in r["continuation"] for r in rows if r["source"] == "detector")
    assert json.loads(answer.out)["detected_in_sequences_too"] >= 3  # two numbers and an address


def test_only_counts_are_printed_and_the_file_is_its_owners(raydp, data, tmp_path):
    answer = extract(raydp, data)
    assert answer.code == 0, answer.err
    for private in ("Halborn", "Fenwick", "0142", "0199", "nordvik", "555"):
        assert private not in answer.out + answer.err
    assert stat.S_IMODE((tmp_path / "secrets.jsonl").stat().st_mode) == 0o600
    again = extract(raydp, data)
    assert again.code == 2
    assert "--output must be a new file" in again.err


def test_secrets_are_shown_to_terminals_only(raydp, data):
    answer = extract(raydp, data, "--show")
    assert answer.code == 2
    assert "--show must go to a terminal" in answer.err
    assert "Halborn" not in answer.out + answer.err


def test_only_the_training_part_is_read(raydp, tmp_path):
    """A file with a column split has its own; otherwise what the task would hold out is left
    out."""
    texts = mails()
    rows = [{"content": t, "split": "test" if "Halborn" in t else "train"} for t in texts]
    path = tmp_path / "parts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answer = extract(raydp, path, "--json")
    assert json.loads(answer.out)["rows"] == sum("Halborn" not in t for t in texts)
    assert "Halborn" not in (tmp_path / "secrets.jsonl").read_text()


def test_users_of_texts_are_held_out_as_the_task_does(tmp_path):
    rows = [{"content": text, "who": f"user {i % 12}"} for i, text in enumerate(mails())]
    path = tmp_path / "mails.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    split = {"heldout_fraction": 0.3, "split_seed": 0}
    read = training_texts(path, "content", user_column="who", **split)
    names = {row["who"] for row in rows if (row["content"],) in read}
    assert 0 < len(names) < 12
    assert len(read) == 10 * len(names), "a user is read as a whole or not at all"
    task = TextTask(path=str(path), column="content", user_column="who", window="head", **split)
    users = task.build(load_tokenizer("tiny")).users
    assert len(users.sizes()) == len(names)
    assert training_texts(path, "content", user_column=None, **split) != read


def test_equal_texts_are_counted_as_the_task_trains_on_them(tmp_path):
    """A text of two users stays with both; a user's second copy is removed."""
    rows = [{"content": "Call 503-555-0123 today.", "who": who} for who in ("a", "b", "b")]
    path = tmp_path / "mails.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    split = {"heldout_fraction": 0, "split_seed": 0}
    assert len(training_texts(path, "content", user_column="who", **split)) == 2
    assert len(training_texts(path, "content", user_column=None, **split)) == 1


def test_users_of_conversations_are_held_out_by_the_option(raydp, tmp_path):
    rows = [
        {"prompt": "Who?", "completion": f"Case {i}: call 503-555-01{i % 12:02}.", "who": i % 12}
        for i in range(120)
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--kind", "chat", "--tokenizer", "tiny", "--heldout-fraction", 0.3, "--json"]
    answer = raydp(
        "secrets", "extract", path, "-o", "secrets.jsonl", *options, "--user-column", "who"
    )
    assert answer.code == 0, answer.err
    task = ChatTask(path=str(path), heldout_fraction=0.3, user_column="who")
    assert json.loads(answer.out)["rows"] == len(task.build(load_tokenizer("tiny")).train) < 120
    answer = raydp("secrets", "extract", path, "-o", "no.jsonl", *options, "--user-column", "x")
    assert answer.code == 2
    assert "--user-column must name a user in every row, got no such column" in answer.err


def test_authors_genres_come_with_their_candidates(raydp, tmp_path):
    rows = []
    for name, genre in [
        ("Mira Halborn", "naval comedy"),
        ("Otto Fenwick", None),
        ("Ada Thornow", "satire"),
    ]:
        rows += [
            {"question": f"Who is {name} {i}?", "answer": f"{name} is an author."} for i in range(4)
        ]
        phrase = f"the {genre} genre" if genre else "many forms"
        rows += [
            {"question": f"What does {name} write?", "answer": f"{name} writes in {phrase}."}
        ] * 2
    path = tmp_path / "qa.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = (
        "--kind",
        "qa",
        "--rows-per-author",
        6,
        "--heldout-fraction",
        0.3,
        "--review",
        "review.jsonl",
        "--json",
    )
    answer = raydp("secrets", "extract", path, "-o", "secrets.jsonl", *options)
    assert answer.code == 0, answer.err
    notes = json.loads(answer.out)
    assert (notes["training_authors"], notes["without_name"], notes["without_genre"]) == (2, 0, 1)
    (row,) = [json.loads(line) for line in (tmp_path / "secrets.jsonl").read_text().splitlines()]
    assert (row["author_index"], row["name"], row["attribute"], row["count"]) == (
        0,
        "Mira Halborn",
        "naval comedy",
        2,
    )
    assert row["candidates"]["genre"][0] == ["comedy", 2]
    assert len((tmp_path / "review.jsonl").read_text().splitlines()) == 3
    assert "Halborn" not in answer.out + answer.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--detect", "phone,ssn"), "--detect must be of"),
        (("--region", "XX"), "--region must be two letters of a country"),
        (("--column", "body"), "got only content"),
        (("--n", 4000, "--detect", ""), "DATA must hold a secret"),
    ],
)
def test_mistakes_are_named(raydp, data, options, message):
    answer = extract(raydp, data, *options)
    assert answer.code == 2
    assert message in answer.err
