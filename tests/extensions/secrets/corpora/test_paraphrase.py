"""Paraphrases by a model with a chat template, and the TOFU variants that are made of them."""

from __future__ import annotations

import json

import pytest

from raydp.extensions.paper_data.qa import Row
from raydp.extensions.paper_data.variants import read_paraphrases
from raydp.extensions.secrets.corpora.paraphrase import (
    SYSTEM_PROMPT,
    ParaphraseOptions,
    paraphrase_file,
)
from raydp.models.base_models import LoadedModel
from raydp.testing.models import byte_tokenizer, llama

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content[:9] }}{% endfor %}[assistant]"
ROWS = [Row(question=f"q{i}?", answer=f"answer {i}") for i in range(5)]


def chat_model():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return LoadedModel(model=llama(len(tokenizer)), tokenizer=tokenizer)


def write(path, rows=ROWS, limit=None, **options):
    chosen = ParaphraseOptions(**{"num": 2, "max_new_tokens": 6, **options})
    return paraphrase_file(rows, path, chat_model, "chat", chosen, limit=limit)


def lines(path):
    return {
        row["row"]: row["paraphrases"] for row in map(json.loads, path.read_text().splitlines())
    }


def test_a_file_that_was_stopped_is_gone_on_with_and_comes_out_the_same(tmp_path):
    whole, stopped = tmp_path / "whole.jsonl", tmp_path / "stopped.jsonl"
    assert write(whole, batch_size=4)["written"] == 5
    write(stopped, limit=2)
    with stopped.open("a") as file:
        file.write('{"row": 2, "paraph')  # killed while it wrote
    notes = write(stopped, batch_size=1)
    assert (notes["already"], notes["written"]) == (2, 3)
    assert lines(stopped) == lines(whole)
    assert all(len(set(texts)) == 2 for texts in lines(whole).values())
    assert read_paraphrases(whole, "task.paraphrases", ROWS) == {
        k: [t.strip() for t in v] for k, v in lines(whole).items()
    }


def test_the_draws_follow_seed_and_text(tmp_path):
    write(tmp_path / "a.jsonl")
    write(tmp_path / "b.jsonl", seed=1)
    write(tmp_path / "c.jsonl", rows=ROWS[3:])
    a, b, c = (lines(tmp_path / f"{name}.jsonl") for name in "abc")
    assert all(a[i] != b[i] for i in a)
    assert c == {0: a[3], 1: a[4]}


def test_nothing_to_paraphrase_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="must hold rows to paraphrase"):
        write(tmp_path / "a.jsonl", rows=[])


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"temperature": 0.5}, {"num": 3}, {"rows": ROWS[::-1]}]
)
def test_another_files_rows_are_not_gone_on_with(tmp_path, change):
    write(tmp_path / "a.jsonl", limit=2)
    with pytest.raises(
        ValueError, match="--output must be a new file or one of the same data, model and options"
    ):
        write(tmp_path / "a.jsonl", **change)


def test_the_papers_prompts_are_asked_in_the_models_chat_format():
    from raydp.extensions.secrets.corpora.paraphrase import _prompt

    model = chat_model()
    asked = model.tokenizer.decode(_prompt(model, "answer 3"))
    assert asked == f"[system]{SYSTEM_PROMPT[:9]}[user]answer 3[assistant]"


def test_a_model_without_a_chat_template_is_refused(tmp_path):
    def load():
        tokenizer = byte_tokenizer()
        return LoadedModel(model=llama(len(tokenizer)), tokenizer=tokenizer)

    with pytest.raises(ValueError, match="--model must have a chat template"):
        paraphrase_file(
            ROWS, tmp_path / "a.jsonl", load, "plain", ParaphraseOptions(num=1, max_new_tokens=2)
        )
