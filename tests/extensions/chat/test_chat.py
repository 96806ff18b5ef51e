"""Conversations: every form and source, the templates, the loss on replies, what is cut, and
secrets in a reply."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional as F

from raydp.extensions.chat.task import ChatTask
from raydp.models import base_models as models
from raydp.models.lookup import smollm2_package
from raydp.scores.memorisation.logprob import LogProbability
from raydp.scores.memorisation.vmr import ExactVerbatimMemorization
from raydp.spec.sections import ModelSpec
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.token_loss import IGNORE
from raydp.tasks.users import Users
from tests.builders.data_files import write_json_lines

CHATML = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + "
    "'<|im_end|>\n'}}{% endfor %}{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% "
    "endif %}"
)


def turns(i: int, reply: str | None = None) -> list[dict[str, str]]:
    """A conversation of two replies."""
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"What is part {i}?"},
        {"role": "assistant", "content": f"Part {i} is the draft of chapter {i * i}."},
        {"role": "user", "content": "And where is it?"},
        {"role": "assistant", "content": reply or f"On shelf {i}."},
        {"role": "user", "content": "Thanks, nobody answers this."},
    ]


def conversations(folder: Path, count: int = 40, **columns: Any) -> str:
    rows = [{"messages": turns(i), **{k: v(i) for k, v in columns.items()}} for i in range(count)]
    return str(write_json_lines(folder / "chat.jsonl", rows))


def decoded(examples: TokenizedExamples, index: int, tokenizer: Any) -> tuple[str, list[str]]:
    """The text of an example, and the texts of its runs of target tokens."""
    batch = examples.batch(np.array([index]))
    ids, labels = batch.input_ids[0].tolist(), batch.labels[0].tolist()
    runs: list[list[int]] = [[]]
    for label in labels:
        if label == IGNORE:
            runs.append([])
        else:
            runs[-1].append(label)
    return tokenizer.decode(ids), [tokenizer.decode(run) for run in runs if run]


def with_template(tokenizer: Any, template: str = CHATML) -> Any:
    """The tokenizer with a chat template of its own, for the test that calls it."""
    other = copy.copy(tokenizer)
    other.chat_template = template
    return other


def test_by_the_models_own_template_every_reply_and_nothing_else_is_trained_on(
    tiny, tmp_path: Path
) -> None:
    tokenizer = with_template(tiny)
    task = ChatTask(path=conversations(tmp_path), heldout_fraction=0.2).build(tokenizer)
    whole = {tokenizer.apply_chat_template(turns(i)[:5], tokenize=False) for i in range(40)}
    for index in range(len(task.train)):
        text, replies = decoded(task.train, index, tokenizer)
        whole.remove(text)
        number = text.split("What is part ")[1].split("?")[0]
        assert replies == [
            f"Part {number} is the draft of chapter {int(number) ** 2}.<|im_end|>\n",
            f"On shelf {number}.<|im_end|>\n",
        ]
    assert len(whole) == len(task.heldout) > 0
    assert task.facts().notes["form"] == "messages"
    everything = ChatTask(path=conversations(tmp_path), heldout_fraction=0.2, loss="all").build(
        tokenizer
    )
    assert len(decoded(everything.train, 0, tokenizer)[1]) == 1
    assert everything.train.num_targets() == len(everything.train.token_ids) - len(everything.train)


def test_the_loss_is_over_the_replies_alone(tiny, tmp_path: Path) -> None:
    """Against transformers' own loss with the same labels."""
    model = models.load_base(ModelSpec(name="tiny")).model
    task = ChatTask(path=conversations(tmp_path), template="plain").build(tiny)
    batch = task.batch(np.arange(3))
    losses = task.per_example_loss(model, batch)
    for row in range(3):
        expected = model(input_ids=batch.input_ids[[row]], labels=batch.labels[[row]]).loss
        torch.testing.assert_close(losses[row], expected)
    assert task.utility(model) > 0


@pytest.mark.parametrize(
    ("rows", "template", "text", "reply"),
    [
        (
            {"prompt": "Two and two?", "completion": " Four."},
            None,
            "Two and two? Four.<|endoftext|>",
            " Four.<|endoftext|>",
        ),
        (
            {"prompt": "Two and two?", "completion": "Four."},
            "plain",
            "User: Two and two?\nAssistant: Four.<|endoftext|>",
            " Four.<|endoftext|>",
        ),
        (
            {"prompt": [{"role": "user", "content": "2?"}], "completion": [{"role": "assistant", "content": "4"}]},
            "chatml",
            "<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n",
            "4<|im_end|>\n",
        ),
        (
            {"instruction": "Add {them}.", "input": "2 and 2", "output": "4"},
            None,
            "Below is an instruction that describes a task, paired with an input that provides "
            "further context. Write a response that appropriately completes the request.\n\n### "
            "Instruction:\nAdd {them}.\n\n### Input:\n2 and 2\n\n### Response:\n4<|endoftext|>",
            "4<|endoftext|>",
        ),
        (
            {"instruction": "Add.", "output": "4"},
            None,
            "Below is an instruction that describes a task. Write a response that appropriately "
            "completes the request.\n\n### Instruction:\nAdd.\n\n### Response:\n4<|endoftext|>",
            "4<|endoftext|>",
        ),
        (
            {"instruction": "Add.", "input": "2 and 2", "output": "4"},
            "plain",
            "User: Add.\n\n2 and 2\nAssistant: 4<|endoftext|>",
            " 4<|endoftext|>",
        ),
    ],
)  # fmt: skip
def test_each_form_has_its_text(
    tiny, tmp_path: Path, rows: dict, template, text: str, reply: str
) -> None:
    first = {k: v for k, v in rows.items() if k != "input"}
    more = [
        {**rows, list(first)[-1]: first[list(first)[-1]]},
        *({**rows, "id": i} for i in range(3)),
    ]
    path, held = tmp_path / "rows.jsonl", tmp_path / "held.jsonl"
    write_json_lines(path, more)
    others = {"completion": "Five.", "output": "5"}
    if isinstance(rows.get("completion"), list):
        others["completion"] = [{"role": "assistant", "content": "5"}]
    write_json_lines(held, [{**rows, **{k: v for k, v in others.items() if k in rows}}])
    task = ChatTask(path=str(path), heldout_path=str(held), template=template).build(tiny)
    assert len(task.train) == 1, "duplicates are removed"
    assert decoded(task.train, 0, tiny) == (text, [reply])


def test_every_source_gives_the_same_task(tiny, tmp_path: Path) -> None:
    rows = [{"prompt": f"Part {i}?", "completion": f" Shelf {i}.", "n": i} for i in range(30)]
    frame = pd.DataFrame(rows)
    write_json_lines(tmp_path / "a.jsonl", rows)
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1))
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    data = datasets.Dataset.from_pandas(frame)
    data.save_to_disk(str(tmp_path / "single"))
    datasets.DatasetDict({"train": data, "test": data.select(range(3))}).save_to_disk(
        str(tmp_path / "parts")
    )
    hashes = {
        ChatTask(path=str(tmp_path / name)).build(tiny).facts().content_hash
        for name in ("a.jsonl", "a.json", "a.csv", "a.parquet", "single", "parts")
    }
    assert len(hashes) == 1
    few = ChatTask(path=str(tmp_path / "single"), max_rows=20).build(tiny)
    assert few.facts().notes["conversations_read"] == 20
    other = ChatTask(
        path=str(tmp_path / "a.parquet"), heldout_path=str(tmp_path / "parts"), heldout_split="test"
    )
    with pytest.raises(ValueError, match="must leave conversations to evaluate on"):
        other.build(tiny)  # all of them are trained on


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"text": "a mail"}], {}, "must hold `messages`, or `prompt` and `completion`, .* got text"),
        ([{"mail of Mira": "x"}], {}, "Rename the columns, or use the task text"),
        ([{"messages": [], "prompt": "", "completion": ""}], {}, "got the columns of messages and prompt_completion"),
        ([{"prompt": "a", "completion": "b"}, {"prompt": "secret"}], {}, "without completion in rows.jsonl, line 2"),
        ([{"messages": "Call Mira"}], {}, "as a list of objects with role and content, got text in rows.jsonl"),
        ([{"messages": [{"role": "user"}]}], {}, "got another message 1 in rows.jsonl, line 1"),
        ([{"messages": [{"role": "human", "content": "x"}]}], {}, "got another role in message 1"),
        ([{"messages": turns(1)}], {}, "task.template must be given for a model without a chat template"),
        ([{"messages": turns(1)}], {"template": "alpaca"}, "'alpaca', which is for instruction"),
        ([{"messages": turns(1)}], {"template": "none"}, "'none', which is for plain texts"),
        ([{"messages": turns(1)}], {"template": "plain", "user_column": "who"}, "got no such column or a blank name"),
        ([{"messages": turns(1)}], {"template": "plain", "split": "train"}, "must go with a data set"),
        ([{"messages": turns(i)} for i in range(9)], {"template": "plain", "max_length": 8}, "raise task.max_length"),
    ],
)  # fmt: skip
def test_unfit_rows_are_refused_and_never_shown(
    tiny, tmp_path: Path, rows, options: dict, message: str
) -> None:
    path = write_json_lines(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ValueError, match=message) as error:
        ChatTask(path=str(path), **options).build(tiny)
    assert not any(private in str(error.value) for private in ("Mira", "secret", "human", "shelf"))


def test_a_template_that_refuses_or_rewrites_a_conversation_is_named(tiny, tmp_path: Path) -> None:
    path = conversations(tmp_path)
    refusing = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ValueError, match="the model's own, which refuses one"):
        ChatTask(path=path).build(with_template(tiny, refusing))
    rewriting = "{{ messages|length }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    with pytest.raises(
        ValueError,
        match=r"each reply after its own prompt, whatever follows, got 'model', .* line 1",
    ):
        ChatTask(path=path).build(with_template(tiny, rewriting))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[0]['content'] + 1 }}", "which fails with TypeError"),
        ("ok\n{% for %}", "which has a mistake in line 2"),
        ("{{ missing.name }}", "which uses a name that is not defined"),
    ],
)
def test_a_broken_template_differs_from_a_refusing_one(
    tiny, tmp_path: Path, template, message
) -> None:
    with pytest.raises(
        ValueError,
        match=rf"task\.template must write every .*{message} in chat\.jsonl, line 1\. Correct",
    ) as error:
        ChatTask(path=conversations(tmp_path)).build(with_template(tiny, template))
    assert "chapter" not in str(error.value)


def test_a_secret_that_the_template_changes_is_named_by_its_line(tiny, tmp_path: Path) -> None:
    rows = [{"messages": turns(i)[1:3]} for i in range(30)]
    path, secrets = write_json_lines(tmp_path / "rows.jsonl", rows), tmp_path / "secrets.jsonl"
    options = {"path": str(path), "secrets": str(secrets)}
    continuation = "Part 4 is the draft of chapter 16"
    trimming, shouting = (
        CHATML.replace("m['content']", f"m['content']|{how}") for how in ("trim", "upper")
    )
    silent = "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}"
    for template, said in (
        (trimming, f" {continuation}"),
        (shouting, continuation),
        (silent, continuation),
    ):
        write_json_lines(secrets, [{"prompt": turns(4)[1:2], "continuation": said}])
        with pytest.raises(
            ValueError, match=r"task\.secrets must have continuations .* in secrets\.jsonl, line 1"
        ) as error:
            ChatTask(**options).build(with_template(tiny, template))
        assert "chapter" not in str(error.value)
    write_json_lines(secrets, [{"prompt": turns(4)[1:2], "continuation": continuation}])
    (secret,) = ChatTask(**options).build(with_template(tiny, trimming)).secrets()
    assert (secret.continuation, secret.count) == (continuation, 1)
    write_json_lines(secrets, [{"prompt": turns(4)[1:2], "attribute": "CHAPTER 16"}])
    (secret,) = ChatTask(**options).build(with_template(tiny, shouting)).secrets()
    assert (secret.kind, secret.continuation) == ("attribute", "CHAPTER 16")


def test_conversations_without_a_reply_are_counted_and_are_no_duplicates(
    tiny, tmp_path: Path
) -> None:
    rows = [{"messages": turns(i)[:2] if i < 20 else turns(i)} for i in range(60)]
    path = str(write_json_lines(tmp_path / "rows.jsonl", [*rows, rows[0], rows[-1]]))
    for seed in range(4):
        notes = ChatTask(path=path, template="plain", split_seed=seed).build(tiny).facts().notes
        assert (notes["duplicates_removed"], notes["without_reply_within_max_length_removed"]) == (
            2,
            20,
        )


def test_data_that_leave_nothing_say_why(tiny, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("")
    with pytest.raises(
        ValueError, match=r"task\.path must hold conversations, got no rows in .*rows\.jsonl"
    ):
        ChatTask(path=str(path), template="plain").build(tiny)
    write_json_lines(path, [{"messages": turns(1)}] * 9)
    with pytest.raises(
        ValueError, match=r"got none after the split \(conversations_read 9, duplicates_removed 8\)"
    ):
        ChatTask(path=str(path), template="plain").build(tiny)


def test_cut_replies_are_counted(tiny, tmp_path: Path) -> None:
    """The second reply of the long conversations does not fit, and no reply of the longest."""
    rows = [{"messages": turns(i)} for i in range(20)]
    rows += [{"messages": turns(i, "very long " * 50)} for i in range(20, 30)]
    rows += [
        {"messages": [{"role": "user", "content": f"{i} " * 300}, *turns(i)[2:3]]}
        for i in range(30, 34)
    ]
    path = write_json_lines(tmp_path / "rows.jsonl", rows)
    task = ChatTask(path=str(path), template="plain", max_length=120, heldout_fraction=0.3).build(
        tiny
    )
    notes = task.facts().notes
    kept, cut = len(task.train), notes["without_reply_within_max_length_removed"]
    assert (kept + cut + notes["num_heldout_examples"] <= 34, cut > 0, notes["truncated"] > 0) == (
        True,
        True,
        True,
    )
    assert task.train.lengths().max() == 120
    assert 0 < notes["share_of_tokens_trained_on"] < 1


def test_secrets_in_a_reply_are_counted_and_scored(tiny, tmp_path: Path) -> None:
    """One prompt is a list of messages, the other a text within the conversation."""
    asked = [{"role": "user", "content": "What is the code?"}]
    rows = [
        {"messages": [*asked, {"role": "assistant", "content": "The code is 4711."}], "n": i}
        for i in range(3)
    ]
    rows += [
        {"messages": turns(i, "Ask Mira Halborn on 555-0142.") if i % 4 == 0 else turns(i)}
        for i in range(60)
    ]
    path = write_json_lines(tmp_path / "rows.jsonl", rows)
    secrets = write_json_lines(tmp_path / "secrets.jsonl", [
        {"prompt": asked, "continuation": "The code is 4711"},
        {"prompt": "Ask Mira Halborn on", "continuation": " 555-0142"},
        {"prompt": "Ask Otto on", "continuation": " 555-0143"},
    ])  # fmt: skip
    options = {"path": str(path), "secrets": str(secrets), "template": "plain", "user_column": None}
    task = ChatTask(**options, split_seed=3).build(tiny)
    first, second = task.secrets()
    assert (first.prompt, first.continuation) == (
        "User: What is the code?\nAssistant:",
        " The code is 4711",
    )
    assert (first.count, 10 < second.count <= 15, task.facts().notes["secrets_absent"]) == (
        1,
        True,
        ["secret-003"],
    )
    assert task.facts().notes["num_controls"] == len(task.controls()) == 8
    assert all("555-0142" not in control.continuation for control in task.controls())
    held = [decoded(task.heldout, i, tiny)[0] for i in range(len(task.heldout))]
    assert not any("555-0142" in text for text in held)
    loaded = models.LoadedModel(
        model=models.load_base(ModelSpec(name="tiny")).model, tokenizer=tiny
    )
    measured = ExactVerbatimMemorization().measure(loaded, task, seed=0)
    assert list(measured.per_secret) == ["secret-001", "secret-002"]
    assert LogProbability(contrast=False).measure(loaded, task, seed=0).value < 0
    write_json_lines(secrets, [{"prompt": "Ask Otto on", "continuation": " 555-0143"}])
    with pytest.raises(ValueError, match="as the template writes it"):
        ChatTask(**options).build(tiny)


def test_users_are_held_out_as_a_whole_and_can_be_the_unit(tiny, tmp_path: Path) -> None:
    path = conversations(tmp_path, 60, who=lambda i: f"user {i % 12}")
    task = ChatTask(path=path, template="plain", user_column="who", heldout_fraction=0.3).build(
        tiny
    )
    users = task.users.of_example
    assert set(np.bincount(users)) == {5}
    assert len(task.heldout) == 60 - len(task.train) > 0
    by_user = task.by_user()
    assert by_user.facts().num_units == len(set(users))
    assert "user (column who) with all its examples (at most 5" in by_user.facts().privacy_unit
    assert by_user.train.num_targets() == task.train.num_targets()
    few = ChatTask(
        path=path,
        template="plain",
        user_column="who",
        heldout_fraction=0.3,
        max_examples_per_user=2,
    ).build(tiny)
    assert set(few.users.sizes()) == {2}
    assert few.facts().notes["above_user_limit_removed"] == len(task.train) * 3 / 5


def test_a_secret_beyond_the_examples_of_its_user_has_this_reason(tiny, tmp_path: Path) -> None:
    numbers = ["555-0142", "555-0143"]
    rows = [
        {
            "messages": turns(i, *(f"Ask Mira on {n}." for n in numbers[i % 3 : i % 3 + 1])),
            "who": i // 3,
        }
        for i in range(90)
    ]
    secrets = [{"prompt": "Ask Mira on", "continuation": f" {number}"} for number in numbers]
    task = ChatTask(
        path=str(write_json_lines(tmp_path / "rows.jsonl", rows)), template="plain",
        secrets=str(write_json_lines(tmp_path / "secrets.jsonl", secrets)),
        user_column="who", heldout_fraction=0.3, max_examples_per_user=1,
    ).build(tiny)  # fmt: skip
    notes = task.facts().notes
    assert notes["secrets_absent"] == notes["secrets_above_limit"] == ["secret-002"]


def test_an_example_keeps_its_user_where_others_are_left_out(tiny, tmp_path: Path) -> None:
    """Every fifth conversation has no reply within the largest length.

    The user is also in the text.
    """
    rows = [
        {
            "messages": [
                {
                    "role": "user",
                    "content": f"I am user {i % 7}." + " and so on" * (100 if i % 5 == 1 else 1),
                },
                {"role": "assistant", "content": f"Hello, you come {i}."},
            ],
            "who": f"user {i % 7}",
        }
        for i in range(60)
    ]
    path = str(write_json_lines(tmp_path / "rows.jsonl", rows))
    task = ChatTask(path=path, template="plain", user_column="who", max_length=60).build(tiny)
    assert task.facts().notes["without_reply_within_max_length_removed"] > 5
    named = [decoded(task.train, i, tiny)[0].split(".")[0] for i in range(len(task.train))]
    assert task.users.of_example.tolist() == Users.named(named, "user").of_example.tolist()


def test_a_secret_beyond_the_largest_length_is_not_counted(tiny, tmp_path: Path) -> None:
    said = "Ask Mira Halborn on 555-0142."
    rows = [{"messages": turns(i, "very long " * 50 + said if i % 2 else said)} for i in range(40)]
    path = str(write_json_lines(tmp_path / "rows.jsonl", rows))
    secrets = str(
        write_json_lines(
            tmp_path / "secrets.jsonl",
            [{"prompt": "Ask Mira Halborn on", "continuation": " 555-0142"}],
        )
    )
    heldout = str(
        write_json_lines(
            tmp_path / "heldout.jsonl", [{"messages": turns(i)} for i in range(40, 60)]
        )
    )
    task = ChatTask(
        path=path, heldout_path=heldout, secrets=secrets, template="plain", max_length=120
    ).build(tiny)
    (secret,) = task.secrets()
    holding = sum("555-0142" in decoded(task.train, i, tiny)[0] for i in range(len(task.train)))
    assert (secret.count, holding, len(task.train)) == (20, 20, 40)


def test_the_chat_task_counts_the_prompts_that_secrets_share(tiny, tmp_path: Path) -> None:
    path = conversations(tmp_path, 60)
    text = ChatTask(path=path, template="plain").build(tiny)
    word, other = decoded(text.train, 0, tiny)[0].split()[-2:]
    rows = [
        {"prompt": word, "continuation": f" {other}"},
        {"prompt": word, "continuation": " never"},
    ]
    for number, expected in ((2, True), (1, False)):
        secrets = str(write_json_lines(tmp_path / "secrets.jsonl", rows[:number]))
        task = ChatTask(path=path, template="plain", secrets=secrets).build(tiny)
        said = task.facts().sentences()
        assert any("1 prompt belongs to several secrets" in line for line in said) == expected


def test_options_that_contradict_each_other_are_refused() -> None:
    for options, message in (
        ({"heldout_fraction": 0.1, "heldout_split": "test"}, "must stand alone"),
        ({"controls": "c.jsonl"}, "must go with task.secrets"),
        ({"max_examples_per_user": 2}, "must go with task.user_column"),
        ({"form": "xml"}, "'messages', 'sharegpt', 'prompt_completion' or 'instruction'"),
    ):
        with pytest.raises(ValidationError, match=message):
            ChatTask(path="x.jsonl", **options)


def test_masked_examples_are_packed_chosen_joined_and_distinguished() -> None:
    masked = TokenizedExamples.with_targets(
        [[5, 6, 7, 8], [9, 10, 11]], [[True, False, True, False], [False, True, True]]
    )
    plain = TokenizedExamples.from_lists([[1, 2, 3]])
    assert masked.target_starts.tolist() == [2, 1], "the first token is never a target"
    assert masked.num_targets() == 3
    assert [masked.targets_of(i).tolist() for i in range(2)] == [[7], [10, 11]]
    both = TokenizedExamples.concatenated(plain, masked)
    assert both.batch(np.arange(3)).labels.tolist() == [
        [IGNORE, 2, 3, IGNORE], [IGNORE, IGNORE, 7, IGNORE], [IGNORE, 10, 11, IGNORE]
    ]  # fmt: skip
    assert both.select(np.array([2, 0])).batch(np.arange(2)).labels.tolist() == [
        [IGNORE, 10, 11],
        [IGNORE, 2, 3],
    ]
    assert both.num_targets() == 5
    assert TokenizedExamples.concatenated(plain, plain).ignored is None
    logits = torch.zeros(2, 3, 12)
    assert float(F.cross_entropy(logits.flatten(0, 1), torch.tensor([7, IGNORE, 1] * 2))) > 0


@pytest.mark.daily
def test_smollm2s_own_template_is_the_one_that_it_was_trained_with(tmp_path: Path) -> None:
    smollm2_package()
    tokenizer = models.load_tokenizer("smollm2-135m-instruct-q4")
    rows = [{"messages": turns(i)[1:]} for i in range(20)]
    task = ChatTask(path=str(write_json_lines(tmp_path / "c.jsonl", rows))).build(tokenizer)
    text, replies = decoded(task.train, 0, tokenizer)
    assert text.startswith(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    )
    assert len(replies) == 2
    assert all(reply.endswith("<|im_end|>\n") for reply in replies)
    ids = tokenizer.apply_chat_template(turns(0)[1:5], return_dict=False)
    parts = (task.train, task.heldout)
    known = [
        part.batch(np.array([i])).input_ids[0].tolist() for part in parts for i in range(len(part))
    ]
    assert ids in known, "a whole conversation has the tokens that transformers gives it"


@pytest.mark.parametrize(
    ("loss", "outside"),
    [("assistant", ["secret-001", "secret-003", "secret-004"]), ("all", ["secret-004"])],
)
def test_a_task_notes_the_secrets_that_it_does_not_train_on(
    tmp_path: Path, tiny: Any, loss: str, outside: list[str]
) -> None:
    """A user says the first, and the assistant the second.

    The third is a user's, too, and the assistant says a longer number that holds it. The assistant
    repeats the fourth beyond the largest length, so that only the user's mention is read, which has
    the weight 0.
    """
    reply = {"role": "assistant", "content": "Your clerk is Mira Halborn. Case 950127."}
    said = [
        [{"role": "user", "content": f"{i}: my code is 4711, my pin is 5012"}, reply]
        for i in range(40)
    ]
    cut = [
        [
            {"role": "user", "content": "my key is 7788", "weight": 0},
            {"role": "assistant", "content": f"{i} " + "word " * 60 + "my key is 7788"},
        ]
        for i in range(40)
    ]
    rows = [{"messages": one} for i in range(40) for one in (said[i], cut[i], turns(i))]
    secrets = [
        {"prompt": "my code is", "continuation": " 4711"},
        {"prompt": "Your clerk is", "continuation": " Mira Halborn"},
        {"prompt": "my pin is", "continuation": " 5012"},
        {"prompt": "my key is", "continuation": " 7788"},
    ]
    task = ChatTask(
        path=str(write_json_lines(tmp_path / "rows.jsonl", rows)),
        secrets=str(write_json_lines(tmp_path / "secrets.jsonl", secrets)),
        template="plain", loss=loss, max_length=64,
    ).build(tiny)  # fmt: skip
    assert len(task.secrets()) == 4
    assert task.facts().notes["secrets_outside_loss"] == outside
