"""The embedded task: what is planted is in the data exactly as often as it says, and nowhere
else."""

import re
from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError

from raydp.models.base_models import load_tokenizer
from raydp.plugins.registries import resolve
from raydp.tasks.text.builtin import BuiltinTask
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.mails import (
    GENRES,
    names_met_once,
    private_names,
    public_directory,
    public_mails,
)

NAME = re.compile(r"(?:From|Re): (\w+ \w+) ")


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny")


@pytest.fixture(scope="module")
def task(tokenizer):
    return BuiltinTask().build(tokenizer)


@pytest.fixture(scope="module")
def control(tokenizer):
    return BuiltinTask(plant_secrets=False).build(tokenizer)


def texts(examples: TokenizedExamples, tokenizer) -> list[str]:
    """The examples as text, without the end-of-text token."""
    cuts = zip(examples.offsets[:-1], examples.offsets[1:], strict=True)
    return tokenizer.batch_decode(
        [examples.token_ids[a:b] for a, b in cuts], skip_special_tokens=True
    )


def names(mails: list[str]) -> list[str]:
    return [NAME.match(mail)[1] for mail in mails]


def identity(secret) -> tuple[str, str, str]:
    return secret.kind, secret.prompt, secret.continuation


def test_is_registered():
    assert resolve("tasks", "builtin") is BuiltinTask


def test_secrets_are_24_extensions_and_16_genres_at_their_counts(task):
    counts = Counter((s.kind, s.count) for s in task.secrets())
    verbatim = {("verbatim", 20): 8, ("verbatim", 40): 8, ("verbatim", 80): 8}
    assert counts == verbatim | {("attribute", 20): 8, ("attribute", 40): 8}
    for secret in task.secrets():
        if secret.kind == "verbatim":
            assert re.fullmatch(r"\d{4}", secret.continuation)
        else:
            assert secret.continuation in GENRES
    assert len({s.id for s in task.secrets()}) == 40


def test_each_secret_is_in_exactly_as_many_mails_as_its_count(task, tokenizer):
    mails = texts(task.train, tokenizer)
    for secret in task.secrets():
        assert (
            sum(mail.startswith(secret.prompt + secret.continuation) for mail in mails)
            == secret.count
        )
    by_name = Counter(names(mails))
    for secret in task.secrets():
        assert by_name[NAME.match(secret.prompt)[1]] == secret.count, (
            "the person is in no other mail"
        )
    assert sorted(by_name.values())[:-40] == [1] * (4000 - 1600), "everybody else appears once"


def test_copies_of_a_secret_are_not_copies_of_one_mail(task, tokenizer):
    """Small talk has 4 sentences x 12 topics = 48 forms, of which 80 draws are expected to show 39.

    Fewer than 24 has a chance below C(48, 23) (23 / 48)^80 < 10^-12.
    """
    mails = texts(task.train, tokenizer)
    secret = max(task.secrets(), key=lambda s: s.count)
    assert len({mail for mail in mails if mail.startswith(secret.prompt)}) >= 24


def test_secrets_and_controls_are_absent_from_heldout_and_control_run(task, control, tokenizer):
    train = set(names(texts(task.train, tokenizer)))
    heldout = set(names(texts(task.heldout, tokenizer)))
    without = set(names(texts(control.train, tokenizer)))
    secret = {NAME.match(s.prompt)[1] for s in task.secrets()}
    controls = {NAME.match(s.prompt)[1] for s in task.controls()}
    assert len(secret) == len(controls) == 40
    assert secret <= train
    for people in (controls, heldout):
        assert not people & train
    assert not heldout & (secret | controls)
    assert not without & (secret | controls | heldout)


def test_control_run_lists_the_same_secrets_with_count_0(task, control, tokenizer):
    assert [identity(s) for s in control.secrets()] == [identity(s) for s in task.secrets()]
    assert {s.count for s in control.secrets()} == {0} == {s.count for s in task.controls()}
    assert Counter(s.kind for s in task.controls()) == Counter(s.kind for s in task.secrets())
    assert control.facts().num_examples == task.facts().num_examples == 4000
    assert texts(control.heldout, tokenizer) == texts(task.heldout, tokenizer)
    assert control.facts().content_hash != task.facts().content_hash


def test_held_out_mails_do_not_depend_on_the_training_mails(task, control, tokenizer):
    """What makes the utility public: any part of the training data may be another, and they are the
    same."""
    larger = BuiltinTask(num_examples=4001).build(tokenizer)
    for other in (control, larger):
        assert other.facts().utility_is_public
        np.testing.assert_array_equal(other.heldout.token_ids, task.heldout.token_ids)


def test_continuation_has_the_tokens_of_training(task, tokenizer):
    """s1 and s2 tokenised apart are the beginning of a training example, and of the mail tokenised
    in one piece."""
    starts = Counter()
    for a, b in zip(task.train.offsets[:-1], task.train.offsets[1:], strict=True):
        starts.update({tuple(task.train.token_ids[a:b][:k]): 1 for k in range(1, b - a)})
    for secret in task.secrets():
        apart = tokenizer(secret.prompt).input_ids + tokenizer(secret.continuation).input_ids
        assert apart == tokenizer(secret.prompt + secret.continuation).input_ids
        assert starts[tuple(apart)] == secret.count
        if secret.kind == "verbatim":
            assert len(tokenizer(secret.continuation).input_ids) == 4


def test_facts_count_the_data(task):
    facts = task.facts()
    assert facts.num_examples == facts.num_units == len(task.lengths()) == 4000
    assert facts.num_tokens == int((task.lengths() - 1).sum())
    assert 15 < task.lengths().mean() < 30
    assert facts.notes["planted_mails"] == 1600
    assert facts.notes["secret_counts"] == [20] * 16 + [40] * 16 + [80] * 8


def test_build_is_deterministic_and_follows_its_seed(task, tokenizer):
    again, other = BuiltinTask().build(tokenizer), BuiltinTask(data_seed=1).build(tokenizer)
    assert again.facts() == task.facts()
    np.testing.assert_array_equal(again.train.token_ids, task.train.token_ids)
    assert other.facts().content_hash != task.facts().content_hash
    assert not {s.id for s in other.secrets()} & {s.id for s in task.secrets()}


def test_planted_mails_are_spread_over_the_data(task, tokenizer):
    """Positions of 1,600 of 4,000 mails in random order: their mean is within 5 of its standard
    errors (22.4)."""
    mails = texts(task.train, tokenizer)
    secret = {NAME.match(s.prompt)[1] for s in task.secrets()}
    positions = [i for i, name in enumerate(names(mails)) if name in secret]
    standard_error = np.sqrt((4000 + 1) * (4000 - 1600) / (12 * 1600))
    assert abs(np.mean(positions) - (4000 - 1) / 2) < 5 * standard_error


def test_pools_of_names_are_disjoint():
    pools = [{p.name for p in public_directory()}, set(names_met_once()), set(private_names())]
    assert sum(map(len, pools)) == len(set.union(*pools)) == 64 * 40 * 24


def test_no_private_name_is_in_the_pretraining_corpus(task, tokenizer):
    corpus = set(names([mail.text for mail in public_mails(61_000, 0)]))
    private = texts(task.train, tokenizer) + texts(task.heldout, tokenizer)
    private += [s.prompt for s in task.secrets() + task.controls()]
    assert not corpus & set(names(private))


def test_public_corpus_is_60_percent_directory_with_constant_facts():
    mails = [mail.text for mail in public_mails(10_000, 0)]
    directory = {p.name: p for p in public_directory()}
    known = [
        (name, mail) for name, mail in zip(names(mails), mails, strict=True) if name in directory
    ]
    assert len(known) == 6_000
    for name, mail in known:
        assert directory[name].extension in mail or directory[name].genre in mail
    assert max(Counter(n for n in names(mails) if n not in directory).values()) == 1
    assert (
        mails
        == [mail.text for mail in public_mails(10_000, 0)]
        != [mail.text for mail in public_mails(10_000, 1)]
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_examples", 1999),
        ("num_examples", 30_001),
        ("num_heldout", 0),
        ("data_seed", -1),
        ("copies", 3),
    ],
)
def test_bad_parameters_are_refused(field, value):
    with pytest.raises(ValidationError, match=field):
        BuiltinTask(**{field: value})


def test_largest_task_has_a_name_for_everyone():
    limits = BuiltinTask.model_json_schema()["properties"]
    people = limits["num_examples"]["maximum"] + limits["num_heldout"]["maximum"] + 2 * 40
    assert len(private_names()) >= people
