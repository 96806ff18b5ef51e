"""Every text begins with the tokenizer's start token once: trained on, held out or scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from raydp.plugins.registries import resolve
from raydp.scores.language.encoding import encode
from raydp.sweep.engine.trial import with_chat_template
from raydp.tasks.task import Secret
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.windows import start_tokens
from raydp.testing.models import byte_tokenizer
from tests.builders.data_files import author_rows, write_json_lines

pytestmark = pytest.mark.extensions
TOKENIZER, BOS = byte_tokenizer(), 0
CHATML = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
BUILTIN = {"name": "builtin", "num_examples": 2000, "num_heldout": 50}
ASKED, SAID = "Which number has Mira?", " It is 555-0142."
# Every second mail begins and ends with a secret. A few texts write the start token out.
LINES = ("", "Mira has the number 555-0142.\n")
MAILS = [f"{LINES[i % 2]}Part {i} is{' a draft and' * 5} ends.\n{LINES[i % 2]}" for i in range(60)]
MAILS += [f"<bos>{mail}" for mail in MAILS[:3]]
MAIL_SECRETS = [{"prompt": "has the number", "continuation": " 555-0142"}]
FORMS: Mapping[str, tuple[str, Any]] = {
    "none": ("prompt_completion", lambda q, a: {"prompt": q, "completion": a}),
    "alpaca": ("instruction", lambda q, a: {"instruction": q, "output": a}),
}


def chat(folder: Path, template: str) -> dict[str, Any]:
    """Write conversations of any form, and a secret: the first reply."""

    def turns(question: str, answer: str) -> dict[str, Any]:
        roles = (("user", question), ("assistant", answer))
        return {"messages": [{"role": role, "content": content} for role, content in roles]}

    form, row = FORMS.get(template, ("messages", turns))
    rows = [row(ASKED, f"{SAID} Call {i}.") for i in range(3)]
    rows += [row(f"Which part is {i}?", f" Draft {i}." * 40) for i in range(60)]
    if template == "none":
        rows += [row(f"<bos>Which part is {i}?", f" Draft {i}.") for i in range(3)]
    secret = {"prompt": ASKED if template == "none" else turns(ASKED, "")["messages"][:1]}
    secret |= {"continuation": SAID}
    path = write_json_lines(folder / "chat.jsonl", rows)
    secrets = write_json_lines(folder / "chat_secrets.jsonl", [secret])
    section = {"path": str(path), "form": form, "template": template, "max_length": 256}
    return section if template == "alpaca" else section | {"secrets": str(secrets)}


def section_of(case: str, folder: Path) -> dict[str, Any]:
    """Write the data of a case, and return the task's section."""
    name, _, way = case.partition(" ")
    if name == "chat":
        return {"name": name, **chat(folder, way)}
    if name == "tofu":
        authors = ("Mira Halborn", "Otto Fenwick", "Ada Thornow")
        rows = [row for author in authors for row in author_rows(author, "satire")]
        path = str(write_json_lines(folder / "rows.jsonl", rows))
        return {"name": name, "path": path, "rows_per_author": 6, "max_length": 76}
    if name in ("text", "enron"):
        column = "text" if name == "text" else "content"
        path = write_json_lines(folder / "mails.jsonl", [{column: mail} for mail in MAILS])
        secrets = write_json_lines(folder / "secrets.jsonl", MAIL_SECRETS)
        files = {"path": str(path), "secrets": str(secrets)}
        return {"name": name, **files, "window": way, "max_length": 40, "min_tokens": 2}
    wrapped = {"planted": {}, "audited": {"canary": "known_token", "num_canaries": 20, "seed": 0}}
    return {"name": name, "of": BUILTIN, **wrapped[name]} if name in wrapped else BUILTIN


CASES = ["builtin", "planted", "audited", "tofu", "enron lines"]
CASES += [f"text {window}" for window in ("head", "tail", "lines")]
CASES += [f"chat {template}" for template in ("none", "alpaca", "chatml", "plain", "model")]


def rows_of(examples: TokenizedExamples) -> list[list[int]]:
    pairs = zip(examples.offsets[:-1], examples.offsets[1:], strict=True)
    return [examples.token_ids[begin:end].tolist() for begin, end in pairs]


def built(section: Mapping[str, Any], tokenizer: Any) -> Any:
    options = {key: value for key, value in section.items() if key != "name"}
    return resolve("tasks", section["name"]).model_validate(options).build(tokenizer)


def holds(row: Sequence[int], run: Sequence[int]) -> bool:
    return any(row[at : at + len(run)] == run for at in range(len(row) - len(run) + 1))


@pytest.mark.parametrize("case", CASES)
def test_every_example_begins_with_the_start_token_once(case: str, tmp_path: Path) -> None:
    section = section_of(case, tmp_path)
    tokenizer = with_chat_template(TOKENIZER, CHATML) if case == "chat model" else TOKENIZER
    task = built(section, tokenizer)
    rows, heldout = rows_of(task.train), rows_of(task.heldout)
    assert all(row[0] == BOS and BOS not in row[1:] for row in [*rows, *heldout])
    assert (task.train.target_starts >= 1).all(), "the start token is never a target"
    if "max_length" in section:
        assert max(map(len, [*rows, *heldout])) == section["max_length"]
    # The scores ask as training wrote: from the beginning, or after the start token in a window.
    verbatim = [secret for secret in task.secrets() if secret.kind == "verbatim" and secret.count]
    assert verbatim or case in ("tofu", "chat alpaca")
    for secret, encoded in zip(verbatim, encode(tokenizer, verbatim), strict=True):
        assert encoded.prompt_ids[0] == BOS, secret.name
        asked = [*encoded.prompt_ids, *encoded.continuation_ids]
        in_windows = case.startswith(("text", "enron"))
        assert any(
            holds(row[1:], asked[1:]) if in_windows else row[: len(asked)] == asked for row in rows
        ), secret.name


@pytest.mark.parametrize("template", ["chatml", "plain"])
def test_a_trained_models_template_writes_the_start_token(template: str, tmp_path: Path) -> None:
    section = section_of(f"chat {template}", tmp_path)
    task = built(section, TOKENIZER)
    served = with_chat_template(TOKENIZER, task.facts().chat_template)
    again = built({**section, "template": "model"}, served)
    one, other = (sorted(rows_of(t.train) + rows_of(t.heldout)) for t in (task, again))
    assert one == other


def test_a_prompt_begins_once_with_the_start_tokens_and_gets_no_end_token() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 0), ("<eos>", 1)]
    )
    assert start_tokens(tokenizer) == (BOS,)
    assert tokenizer("ab").input_ids[-1] == 1
    plain, written = encode(
        tokenizer, [Secret(prompt=prompt, continuation="c") for prompt in ("ab", "<bos>ab")]
    )
    assert plain.prompt_ids == written.prompt_ids == tuple(tokenizer("ab").input_ids[:-1])
