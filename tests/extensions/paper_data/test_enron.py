from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest
from pydantic import ValidationError

from raydp.extensions.paper_data.enron import EnronTask
from raydp.tasks.text.corpus import is_held_out

SECRETS = [
    {"prompt": "Mira Halborn\n555-01", "continuation": "42\nmira@nordvik.com"},
    {"prompt": " Forwarded by Otto", "continuation": " Fenwick/OSL"},
    {"prompt": "never", "continuation": " written"},
]
FULL = [s["prompt"] + s["continuation"] for s in SECRETS]


def mails(count=200, seed=7):
    """Mails of a few lines of made-up words; one in five has a secret somewhere."""
    rng = random.Random(seed)
    texts = []
    for i in range(count):
        lines = [
            " ".join(rng.choices(["please", "the", "draft", "call", "author"], k=8))
            for _ in range(rng.randint(4, 9))
        ]
        if i % 5 == 0:
            lines.insert(rng.randrange(len(lines)), f"--{FULL[1]}" if i % 10 else FULL[0])
        texts.append(f"mail {i}\n" + "\n".join(lines) + "\n")
    return texts


@pytest.fixture
def make(write_jsonl):
    def make(texts, secrets=SECRETS, **parameters):
        path = write_jsonl("mails.jsonl.gz", [{"content": text} for text in texts])
        defaults = {"path": path, "secrets": write_jsonl("secrets.jsonl", secrets), "min_tokens": 4}
        return EnronTask(**defaults | parameters)

    return make


def decoded(tokenizer, examples):
    ids, offsets = examples.token_ids, examples.offsets
    return [tokenizer.decode(ids[a:b].tolist()) for a, b in pairwise(offsets)]


@pytest.mark.parametrize("window", ["tail", "lines"])
def test_counts_are_of_training_examples_as_the_model_sees_them(make, tokenizer, window):
    task = make(mails(), window=window, max_length=64).build(tokenizer)
    texts = decoded(tokenizer, task.train)
    assert len(texts) == task.facts().num_examples
    kept = {s.prompt + s.continuation: s.count for s in task.secrets()}
    assert kept == {full: n for full in FULL if (n := sum(full in text for text in texts))}
    assert kept
    absent = set(task.facts().notes["secrets_absent"])
    assert len(absent) == len(SECRETS) - len(kept)


def test_windows_of_lines_do_not_cut_secrets(make, tokenizer):
    task = make(mails(), max_length=40).build(tokenizer)
    train = [m for m in mails() if not is_held_out(m, 0.1, 0)]
    counts = {s.prompt + s.continuation: s.count for s in task.secrets()}
    assert counts == {full: sum(full in mail for mail in train) for full in FULL[:2]}


def test_the_held_out_part_has_no_secret_and_no_training_mail(make, tokenizer):
    task = make(mails(), heldout_fraction=0.3, max_length=32).build(tokenizer)
    notes = task.facts().notes
    heldout = [m for m in mails() if is_held_out(m, 0.3, 0)]
    assert (
        notes["heldout_with_secret_removed"] == sum(any(f in m for f in FULL) for m in heldout) > 0
    )
    clean = "".join(m for m in heldout if not any(f in m for f in FULL))
    assert "".join(decoded(tokenizer, task.heldout)) == clean
    assert (
        notes["num_heldout_texts"] + notes["heldout_with_secret_removed"] + notes["num_texts"]
        == 200
    )


def test_a_mail_more_moves_no_other_mail():
    texts = mails()
    side = {text: is_held_out(text, 0.25, 3) for text in texts}
    assert 0.15 < sum(side.values()) / len(side) < 0.35  # 0.25 ± 3.3 standard errors, n = 200
    assert side != {text: is_held_out(text, 0.25, 4) for text in texts}


def test_clean_up_counts_dropped_rows(make, tokenizer):
    log = "x\nNo ancillary schedules awarded.  No variances detected.\n\n    LOG MESSAGES:\n\nPARSING FILE -->> O:\\a\n"
    hour = "Start\nHourAhead schedule download\nfailed. Manual intervention required.\n"
    dropped = [log, hour, "a\t" * 101 + "b", "hi"]
    texts = mails()
    task = make([*texts, texts[3], texts[3], *dropped], min_tokens=5).build(tokenizer)
    notes = task.facts().notes
    assert notes["texts_read"] == 206
    assert notes["duplicates_removed"] == 2
    assert notes["log_messages_removed"] == 2
    assert notes["tables_removed"] == 1
    assert notes["too_short_removed"] == 1
    assert task.facts().content_hash == make(texts).build(tokenizer).facts().content_hash


def test_a_mail_with_exactly_100_tabs_stays(make, tokenizer):
    notes = make([*mails(), "a\t" * 100 + "b"]).build(tokenizer).facts().notes
    assert notes["tables_removed"] == 0


@pytest.mark.parametrize("limit", [1, 2, None])
def test_windows_per_mail_are_limited_and_secrets_come_first(make, tokenizer, limit):
    task = make(mails(), max_length=32, max_windows_per_mail=limit).build(tokenizer)
    facts = task.facts()
    if limit:
        assert facts.notes["windows_per_text_max"] == limit
        assert facts.privacy_unit.endswith(f"at most {limit} per e-mail")
    else:
        assert facts.notes["windows_per_text_max"] > 2
    every = make(mails(), max_length=32).build(tokenizer)
    assert [(s.id, s.count) for s in task.secrets()] == [
        (s.id, s.count) for s in every.secrets()
    ]  # one secret a mail
    assert facts.num_examples == facts.num_units == len(task.lengths())
    assert facts.num_tokens == int((task.lengths() - 1).sum())


def test_one_example_per_mail_without_lines(make, tokenizer):
    facts = make(mails(), window="tail").build(tokenizer).facts()
    assert facts.num_examples == facts.notes["num_texts"]
    assert facts.privacy_unit == "e-mail (last 64 tokens)"


def test_controls_do_not_occur_in_training(make, tokenizer):
    task = make(mails(), num_controls_per_secret=3).build(tokenizer)
    assert len(task.controls()) == 6
    assert not any(c.prompt + c.continuation in mail for c in task.controls() for mail in mails())


def test_a_file_of_controls_takes_the_place_of_generated_ones(make, tokenizer, write_jsonl):
    path = write_jsonl(
        "controls.jsonl", [{"prompt": " Forwarded by Ida", "continuation": " Marwick/OSL"}]
    )
    task = make(mails(), controls=path).build(tokenizer)
    assert [c.prompt for c in task.controls()] == [" Forwarded by Ida"]


def test_building_twice_gives_the_same_and_the_hash_sees_every_change(make, tokenizer):
    base = {"max_length": 32}
    hashes = {make(mails(), **base).build(tokenizer).facts().content_hash for _ in range(2)}
    assert len(hashes) == 1
    for change in (
        {"max_length": 33},
        {"split_seed": 1},
        {"secrets": SECRETS[:1]},
        {"num_controls_per_secret": 1},
    ):
        parameters = base | change
        secrets = parameters.pop("secrets", SECRETS)
        hashes.add(make(mails(), secrets, **parameters).build(tokenizer).facts().content_hash)
    assert len(hashes) == 5


def test_notes_are_strict_json_and_give_no_secret_away(make, tokenizer):
    notes = json.dumps(make(mails()).build(tokenizer).facts().notes, allow_nan=False)
    assert not any(part in notes for part in ("Mira", "Otto", "Fenwick", "555", "never"))


def test_the_number_of_prompts_that_secrets_share_is_a_caveat(make, tokenizer):
    numbers = [f"4711-{i:04}" for i in range(3)]
    texts = [
        f"{mail}My account: {numbers[i % 3]}\n" if i < 30 else mail
        for i, mail in enumerate(mails())
    ]
    shared = [{"prompt": "My account: ", "continuation": number} for number in numbers]
    for secrets, expected in ((SECRETS + shared, True), (SECRETS + shared[:1], False)):
        sentences = make(texts, secrets).build(tokenizer).facts().sentences()
        assert any("1 prompt belongs to several secrets" in s for s in sentences) == expected
        assert not any("My account" in s or "4711" in s for s in sentences)


@pytest.mark.parametrize(
    ("window", "remedy"),
    [
        ("tail", r"Set task\.window to lines, raise task\.max_length, or"),
        ("lines", r"\. Raise task\.max_length, or"),
    ],
)
def test_no_secret_in_training_is_refused_with_a_remedy(make, tokenizer, window, remedy):
    with pytest.raises(
        ValueError, match=rf"task\.secrets must hold a secret that occurs.*got none of 1.*{remedy}"
    ):
        make(mails(), SECRETS[2:], window=window).build(tokenizer)


def test_a_continuation_after_other_text_is_counted(make, tokenizer):
    """Who wrote the prompt wrongly looks there, and not at max_length."""
    texts = [*mails(), *(f"a line\nmy pin: 4711 {'x' * i}\n" for i in range(9))]
    after = "a continuation occurs in [1-9] rows, after other text"
    for continuation, said in (("4711", after), ("0815", "no row holds a continuation")):
        secret = {"prompt": "My PIN: ", "continuation": continuation}
        with pytest.raises(ValueError, match=rf"; {said}\. "):
            make(texts, [secret]).build(tokenizer)


def test_nothing_left_is_an_error(make, tokenizer):
    with pytest.raises(
        ValueError, match=r"task\.path must leave texts to train on.*task\.min_tokens"
    ):
        make(mails(5), min_tokens=10_000).build(tokenizer)


def test_a_missing_file_is_an_error(make, tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"task\.path must be an existing file, got "):
        make(mails(), path=tmp_path / "none.jsonl").build(tokenizer)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_length": 4}, "greater than or equal to 8"),
        ({"heldout_fraction": 0.0}, "greater than 0"),
        ({"window": "middle"}, "head.*tail.*lines"),
        (
            {"window": "head", "max_windows_per_mail": 2},
            r"task\.max_windows_per_mail must go with window lines, got",
        ),
        ({"max_lenght": 64}, "max_lenght"),
    ],
)
def test_parameters_are_checked_before_any_work(make, parameters, message):
    with pytest.raises(ValidationError, match=message):
        make(mails(2), **parameters)
