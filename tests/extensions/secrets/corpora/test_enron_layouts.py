"""The published layouts of the Enron e-mails, generated; every address and text is made up."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import stat
import tarfile

import pytest

from raydp.extensions.paper_data.enron import EnronTask
from raydp.extensions.secrets.corpora.enron import EnronOptions, split_of
from raydp.extensions.secrets.corpora.mail_files import parse_mail, read_mails
from tests.builders.text import line

OFTEN = ("mira@nordvik.com", "otto@nordvik.com", "ada@nordvik.com")


def message(sender, receivers, body, *, newline="\n", headers=""):
    """A mail as the archive has it: addresses folded over lines, odd headers kept."""
    folded = f",{newline}\t".join(receivers)
    head = [
        f"Message-ID: <{abs(hash(body))}.JavaMail.evans@thyme>",
        "Date: Mon, 14 May 2001 16:39:00 -0700 (PDT)",
        f"From: {sender}",
        f"To: {folded}",
        "Subject: a subject",
        "Mime-Version: 1.0",
        *([headers] if headers else []),
        f"X-To: {folded}",
    ]
    return newline.join([*head, "", body.replace("\n", newline)]).encode()


def text(rng, words=12, lines=5):
    return "\n".join(line(rng, words) for _ in range(lines)) + "\n"


def messages(count=150, seed=0):
    """Mails between three people who write often, one who only sends and one who only receives."""
    rng = random.Random(seed)
    made = []
    for i in range(count):
        sender, receiver = rng.sample(OFTEN, 2)
        body = f"mail {i}\n{text(rng)}"
        if i % 10 == 3:
            sender = "robot@nordvik.com"  # receives nothing
        if i % 10 == 4:
            body = "short\n"
        if i % 25 == 5:
            body = (
                f"{i} HourAhead schedule download failed. Manual intervention required\n{text(rng)}"
            )
        if i % 25 == 6:
            body = "\t" * 101 + body
        if i % 10 == 7 and made:
            body = made[0][2]  # a duplicate
        receivers = [receiver, "reader@nordvik.com"] if i % 3 else [receiver]
        made.append((sender, receivers, body))
    return [message(*m, newline="\r\n" if i % 2 else "\n") for i, m in enumerate(made)]


def write_layout(folder, layout, mails):
    if layout == "csv":
        path = folder / "emails.csv"
        with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerow(["file", "message"])
            writer.writerows(
                [f"a/{i}.", m.decode("utf-8", "surrogateescape")] for i, m in enumerate(mails)
            )
        return path
    if layout == "folder":
        path = folder / "maildir"
        for i, mail in enumerate(mails):
            place = path / f"user-{i // 50}" / "sent" / f"{i:04d}."
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(mail)
        return path
    path = folder / "enron_mail_20150507.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for i, mail in enumerate(mails):
            info = tarfile.TarInfo(f"maildir/user-{i // 50}/sent/{i:04d}.")
            info.size = len(mail)
            archive.addfile(info, io.BytesIO(mail))
    return path


def prepare(raydp, raw, *options):
    return raydp(
        "data", "enron", raw, "-o", "enron.jsonl.gz", "--tokenizer", "tiny", "--top", 4, *options
    )


@pytest.mark.parametrize("layout", ["csv", "folder", "archive"])
def test_the_four_steps_on_every_layout(raydp, tmp_path, layout):
    mails = messages()
    answer = prepare(raydp, write_layout(tmp_path, layout, mails), "--json")
    assert answer.code == 0, answer.err
    notes = answer.json()
    parsed = [parse_mail(m) for m in mails]
    distinct = {m.content: m for m in reversed(parsed)}
    by_often = [m for m in distinct.values() if m.sender in OFTEN]
    assert notes["mails"] == len(mails)
    assert notes["after_step_1_distinct"] == len(distinct) < len(mails)
    assert notes["frequent_senders"] == 3
    assert notes["after_step_2_frequent_senders"] == len(by_often) < len(distinct)
    left = [
        m
        for m in by_often
        if "HourAhead" not in m.content and m.content.count("\t") <= 100 and len(m.content) > 9
    ]
    assert notes["after_step_3_filters"] == len(left)
    assert notes["log_messages_removed"] + notes["tables_removed"] + notes[
        "too_short_removed"
    ] == len(by_often) - len(left)
    assert notes["tables_removed"] > 0
    with gzip.open(tmp_path / "enron.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    assert {row["content"] for row in rows} == {m.content for m in left}
    assert {row["sender"] for row in rows} <= set(OFTEN)
    assert [sum(row["split"] == s for row in rows) for s in ("train", "validation", "test")] == [
        notes[s] for s in ("train", "validation", "test")
    ]
    assert stat.S_IMODE((tmp_path / "enron.jsonl.gz").stat().st_mode) == 0o600
    assert not list(tmp_path.glob(".enron-*"))  # the distinct mails do not stay behind


def test_the_task_reads_the_file_and_its_parts(raydp, tmp_path):
    from raydp.models.base_models import load_tokenizer

    secrets = tmp_path / "secrets.jsonl"
    secrets.write_text('{"prompt": "mail", "continuation": " 1"}\n')
    shares = ("--validation-fraction", 0.3, "--test-fraction", 0.2)
    raw = write_layout(tmp_path, "csv", messages())
    notes = prepare(raydp, raw, *shares, "--secrets", secrets, "--json").json()
    assert notes["heldout_with_secret_removed"] > 0
    with gzip.open(tmp_path / "enron.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    assert not any("mail 1" in row["content"] for row in rows if row["split"] != "train")
    shown = {
        "path": tmp_path / "enron.jsonl.gz",
        "secrets": secrets,
        "window": "head",
        "max_length": 32,
    }
    task = EnronTask(**shown, heldout_split="test").build(load_tokenizer("tiny"))
    assert task.facts().num_examples == notes["train"]
    assert len(task.heldout) == notes["test"]
    with pytest.raises(
        ValueError, match=r"task.heldout_fraction must be left out with task.heldout_split"
    ):
        EnronTask(**shown, heldout_split="test", heldout_fraction=0.2)


def test_the_part_of_a_mail_does_not_depend_on_the_others():
    options = EnronOptions(validation_fraction=0.1, test_fraction=0.2)
    contents = [f"mail {i}" for i in range(4000)]
    parts = [split_of(c, options) for c in contents]
    assert parts[7:9] == [split_of(c, options) for c in contents[7:9]]
    shares = [parts.count(p) / 4000 for p in ("validation", "test")]
    assert shares == pytest.approx(
        [0.1, 0.2], abs=4 * (0.2 * 0.8 / 4000) ** 0.5
    )  # 4 standard errors


ODD = [
    (message(' "Halborn, Mira"\r\n <MIRA@nordvik.com>', ["otto@nordvik.com"], "a\nb"), "a\nb"),
    (
        message("mira@nordvik.com", ["x@y.z"], "caf\xe9").replace("caf\xe9".encode(), b"caf\xe9"),
        "café",
    ),
    (
        message(
            "mira@nordvik.com",
            ["x@y.z"],
            "café",
            headers="Content-Type: text/plain; charset=wrong-8",
        ),
        "café",
    ),
    (
        message(
            "mira@nordvik.com",
            ["x@y.z"],
            "5 =3D 5=\n!",
            headers="Content-Transfer-Encoding: quoted-printable",
        ),
        "5 = 5!",
    ),
    (message("mira@nordvik.com", ["x@y.z"], "a\n\nFrom: nobody\n"), "a\n\nFrom: nobody\n"),
]


@pytest.mark.parametrize(("mail", "content"), ODD)
def test_odd_mails_are_read(mail, content):
    parsed = parse_mail(mail)
    assert (parsed.content, parsed.sender) == (content, "mira@nordvik.com")


def test_receivers_are_taken_from_folded_lines_once_each():
    parsed = parse_mail(
        message("a@b.c", ["x@y.z", "Ada <ADA@nordvik.com>", "x@y.z"], "text", newline="\r\n")
    )
    assert parsed.receivers == ("x@y.z", "ada@nordvik.com")


def test_a_damaged_archive_is_not_read_in_part(tmp_path):
    whole = write_layout(tmp_path, "tar", messages(40)).read_bytes()
    plain = bytearray(gzip.decompress(whole))
    headers = [i for i in range(0, len(plain), 512) if plain[i + 257 : i + 262] == b"ustar"]
    plain[headers[20] + 148] ^= 0xFF  # its checksum
    damaged = {
        "a.tar": bytes(plain),
        "b.tar.gz": gzip.compress(plain),
        "c.tar.gz": whole[:-8] + b"\0" * 8,
    }
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="whole tar archive"):
            list(read_mails(tmp_path / name))


def test_pipes_and_links_that_lead_up_are_left_out(tmp_path):
    (tmp_path / "maildir" / "a").mkdir(parents=True)
    (tmp_path / "maildir" / "a" / "1.").write_bytes(message("a@b.c", ["x@y.z"], "text"))
    os.mkfifo(tmp_path / "maildir" / "a" / "pipe")
    (tmp_path / "maildir" / "a" / "up").symlink_to("..")
    assert len(list(read_mails(tmp_path / "maildir"))) == 1


@pytest.mark.parametrize("charset", ["utf-7", "idna", "undefined"])
def test_an_undecodable_character_set_is_read_as_utf_8(charset):
    mail = (
        f"From: a@b.c\nContent-Type: text/plain; charset={charset}\n\nsome +2AA- ..text\n".encode()
    )
    assert parse_mail(mail).content == "some +2AA- ..text\n"


def test_an_unknown_layout_is_named(raydp, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "cut.tar.gz").write_bytes(b"\x1f\x8b\x08 not an archive")
    for raw, part in [
        ("gone", "must be a folder"),
        ("empty", "must hold a mail"),
        ("other.csv", "column message"),
    ]:
        answer = prepare(raydp, tmp_path / raw)
        assert (answer.code, part in answer.err) == (2, True), answer.err
    assert prepare(raydp, tmp_path / "cut.tar.gz").code == 2
    assert list(read_mails(write_layout(tmp_path, "csv", messages(3))))


@pytest.mark.parametrize(
    ("options", "output", "message"),
    [
        ((), "mails.jsonl", "--output must end in .jsonl.gz"),
        (
            ("--validation-fraction", "0.6", "--test-fraction", "0.6"),
            "mails.jsonl.gz",
            "must be below 1 together",
        ),
        (("--min-tokens", "100000"), "mails.jsonl.gz", "Lower --min-tokens"),
    ],
)
def test_options_that_leave_nothing_say_which(raydp, tmp_path, options, output, message):
    raw = write_layout(tmp_path, "csv", messages(30))
    answer = raydp("data", "enron", raw, "-o", tmp_path / output, "--tokenizer", "tiny", *options)
    assert (answer.code, message in answer.err) == (2, True), answer.err
    assert not (tmp_path / output).exists()
