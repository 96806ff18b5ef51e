"""Chat templates: every character of a reply is a target and no other is, under the layouts of
common models."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raydp.extensions.chat.task import ChatTask
from raydp.extensions.chat.templates import JINJA, ChatTemplate
from raydp.tasks.text.token_loss import IGNORE
from tests.builders.data_files import write_json_lines

CALLS = (
    "{% for c in m.tool_calls %}<tool_call>"
    "{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %}"
)
CHATML = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    + CALLS
    + "<|im_end|>\n{{ '' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{{ '' }}{% endif %}"
)
LLAMA3 = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + "
    "'<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}{% if "
    "add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
QWEN3 = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set "
    "ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{% set content = "
    "m.content %}{% set thought = '' %}{% if m.role == 'assistant' and '</think>' in content %}{% "
    "set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}{% set content "
    "= content.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ '<|im_start|>' + m.role + '\n' "
    "}}{% if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or thought) %}{{ "
    "'<think>\n' + thought + '\n</think>\n\n' }}{% endif %}{{ content + '<|im_end|>\n' }}{% endfor "
    "%}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL = (
    "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}{% set "
    "ns.system = m.content + '\n\n' %}{% elif m.role == 'user' %}{{ '[INST] ' + (ns.system if "
    "loop.index0 < 2 else '') + m.content + ' [/INST]' }}{% elif loop.index0 == 0 or "
    "messages[loop.index0 - 1].role != 'user' %}{{ raise_exception('must alternate') }}{% else "
    "%}{{ ' ' + m.content + '</s>' }}{% endif %}{% endfor %}"
)
Parts = list[tuple[str, bool]]


def chatml_parts(turns: list[dict[str, Any]]) -> Parts:
    """What chatml writes, by hand."""
    parts: Parts = []
    for m in turns:
        parts += [(f"<|im_start|>{m['role']}\n", False), (m["content"] + "<|im_end|>\n", said(m))]
    return parts


def llama3_parts(turns: list[dict[str, Any]]) -> Parts:
    parts: Parts = [("<|begin_of_text|>", False)]
    for m in turns:
        parts += [(f"<|start_header_id|>{m['role']}<|end_header_id|>\n\n", False)]
        parts += [(m["content"].strip() + "<|eot_id|>", said(m))]
    return parts


def qwen3_parts(turns: list[dict[str, Any]]) -> Parts:
    """The last reply alone follows a block of thinking; it is context if it is empty in the
    data."""
    parts: Parts = []
    for number, m in enumerate(turns):
        parts.append((f"<|im_start|>{m['role']}\n", False))
        thought, closed, content = m["content"].rpartition("</think>")
        content = content.lstrip("\n") if closed else content
        if number == len(turns) - 1:
            block = "<think>\n" + thought.removeprefix("<think>").strip("\n") + "\n</think>\n\n"
            parts.append((block, said(m) and bool(closed)))
        parts.append((content + "<|im_end|>\n", said(m)))
    return parts


def mistral_parts(turns: list[dict[str, Any]]) -> Parts:
    parts: Parts = []
    system = ""
    for number, m in enumerate(turns):
        if m["role"] == "system":
            system = m["content"] + "\n\n"
        elif m["role"] == "user":
            parts.append(
                ("[INST] " + (system if number < 2 else "") + m["content"] + " [/INST]", False)
            )
        else:
            parts.append((" " + m["content"] + "</s>", said(m)))
    return parts


def said(message: dict[str, Any]) -> bool:
    return message["role"] == "assistant" and message.get("weight", 1) == 1


LAYOUTS = {
    "chatml": (CHATML, chatml_parts),
    "llama3": (LLAMA3, llama3_parts),
    "qwen3": (QWEN3, qwen3_parts),
    "mistral": (MISTRAL, mistral_parts),
}
PIECES = [
    "Ja.",
    " so\n",
    "<|im_end|>",
    "assistant",
    "[INST]",
    "é漢",
    "  ",
    "User:",
    "\n\n",
    "<b>x</b>",
    "4711",
]
texts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Turns of user and assistant, perhaps after a system message, some with a weight and some with
    thinking."""
    turns: list[dict[str, Any]] = (
        [{"role": "system", "content": draw(texts)}] if draw(st.booleans()) else []
    )
    for _ in range(draw(st.integers(1, 3))):
        thinking = draw(
            st.sampled_from(["", "", "<think>\nhm\n</think>\n\n", "<think>\n\n</think>\n\n"])
        )
        turns.append({"role": "user", "content": draw(texts)})
        turns.append({"role": "assistant", "content": thinking + draw(texts)})
        turns[-1] |= draw(st.sampled_from([{}, {}, {"weight": 1}, {"weight": 0}]))
    return turns


def with_template(tokenizer: Any, template: str) -> Any:
    other = copy.copy(tokenizer)
    other.chat_template = template
    return other


def characters(parts: Parts) -> list[tuple[str, bool]]:
    return [(character, target) for text, target in parts for character in text]


@pytest.mark.parametrize("layout", LAYOUTS)
@given(turns=conversations())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_character_of_a_reply_is_a_target_and_no_other(
    layout: str, tiny: Any, tmp_path: Path, turns
) -> None:
    """Down to the tokens: their texts, each with its own flag, are the characters that the layout
    writes by hand."""
    template, by_hand = LAYOUTS[layout]
    until = max((n for n, m in enumerate(turns) if said(m)), default=-1) + 1
    path = write_json_lines(tmp_path / "rows.jsonl", [{"messages": turns}, {"messages": PLAIN}])
    held = write_json_lines(
        tmp_path / "held.jsonl", [{"messages": [*PLAIN[:1], {**PLAIN[1], "content": "other"}]}]
    )
    task = ChatTask(path=str(path), heldout_path=str(held)).build(with_template(tiny, template))
    if until == 0:
        assert len(task.train) == 1, (
            "a conversation whose replies all have the weight 0 has no target"
        )
        return
    batch = task.train.batch(np.array([0]))
    ids, labels = batch.input_ids[0].tolist(), batch.labels[0].tolist()
    ids, labels = ids[: task.train.lengths()[0]], labels[: task.train.lengths()[0]]
    expected = characters(by_hand(turns[:until]))
    got: list[tuple[str, bool]] = []
    begin = 0
    for end in range(1, len(ids) + 1):  # tokens of one flag together: a character may have several
        if end == len(ids) or (labels[end] == IGNORE) != (labels[begin] == IGNORE):
            got += characters([(tiny.decode(ids[begin:end]), labels[begin] != IGNORE)])
            begin = end
    assert got == expected


PLAIN = [{"role": "user", "content": "2?"}, {"role": "assistant", "content": "4"}]
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": {}}}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"town": "Aachen"}'},
        }
    ],
}
ANSWERED = [*PLAIN[:1], CALLED, {"role": "tool", "tool_call_id": "c1", "content": "21"}, PLAIN[1]]


def built(folder: Path, tokenizer: Any, rows: list[dict[str, Any]], **options: Any) -> Any:
    path = write_json_lines(folder / "rows.jsonl", rows)
    held = write_json_lines(
        folder / "held.jsonl", [{"messages": [*PLAIN[:1], {**PLAIN[1], "content": "other"}]}]
    )
    return ChatTask(path=str(path), heldout_path=str(held), **options).build(tokenizer)


def targets(task: Any, tokenizer: Any, index: int = 0) -> str:
    batch = task.train.batch(np.array([index]))
    return tokenizer.decode([label for label in batch.labels[0].tolist() if label != IGNORE])


def test_tool_calls_and_tools_are_written_by_the_template(tiny: Any, tmp_path: Path) -> None:
    tokenizer = with_template(tiny, CHATML)
    task = built(
        tmp_path,
        tokenizer,
        [{"messages": ANSWERED, "tools": [FUNCTION], "parallel_tool_calls": False}],
    )
    text = tokenizer.decode(task.train.batch(np.array([0])).input_ids[0].tolist())
    assert text.startswith(
        '<|im_start|>system\n[{"type": "function", "function": {"name": "weather"'
    )
    assert targets(task, tokenizer) == (
        '<tool_call>weather {"town": "Aachen"}</tool_call><|im_end|>\n4<|im_end|>\n'
    ), "the arguments are an object, and no empty reply is trained on"
    assert task.facts().notes["keys_not_read"] == [
        "messages.tool_call_id in 1 rows",
        "parallel_tool_calls in 1 rows",
    ]


@pytest.mark.parametrize(
    ("row", "template"),
    [
        ({"messages": ANSWERED}, "chatml"),
        ({"messages": ANSWERED}, "plain"),
        ({"messages": PLAIN, "tools": [FUNCTION]}, "chatml"),
        ({"messages": ANSWERED}, LLAMA3),
        ({"messages": PLAIN, "tools": json.dumps([FUNCTION])}, QWEN3),
        ({"messages": ANSWERED}, CHATML.replace("{{ c.function.arguments | tojson }}", "")),
        ({"messages": ANSWERED}, CHATML.replace("for m in messages", "for m in messages if m.role != 'tool'")),
        ({"messages": [{"role": "system", "content": "Be brief."}, *PLAIN]},
         CHATML.replace("for m in messages", "for m in messages if m.role != 'system'")),
    ],
)  # fmt: skip
def test_a_template_that_leaves_something_out_is_refused_by_line(
    tiny: Any, tmp_path: Path, row, template
) -> None:
    own = template in JINJA
    with pytest.raises(
        ValueError, match=r"every message, tool call and tool, .* in rows\.jsonl, line 2"
    ) as error:
        built(
            tmp_path,
            tiny if own else with_template(tiny, template),
            [{"messages": PLAIN}, row],
            template=template if own else None,
        )
    assert "Aachen" not in str(error.value)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "assistant", "content": "4", "weight": 2}, "a weight of 0 or 1, got another value in message 2"),
        ({"role": "assistant", "content": "4", "weight": True}, "must have a weight of 0 or 1"),
        ({"role": "assistant", "content": "", "function_call": {"name": "x"}}, "got other keys alone in message 2"),
        ({"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": "{}"}}]}, "with a name"),
        ({"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": "Aachen"}]}, "a JSON object"),
        ({"role": "user", "content": None, "tool_calls": [{"name": "f"}]}, "got another message 2"),
    ],
)  # fmt: skip
def test_a_message_that_cannot_be_read_is_refused_by_line(
    tiny: Any, tmp_path: Path, message, expected: str
) -> None:
    rows = [{"messages": PLAIN}, {"messages": [PLAIN[0], message]}]
    with pytest.raises(ValueError, match=expected + r".* in rows\.jsonl, line 2") as error:
        built(tmp_path, with_template(tiny, CHATML), rows)
    assert "Aachen" not in str(error.value)


def test_a_weight_of_0_is_context_under_both_losses(tiny: Any, tmp_path: Path) -> None:
    turns = [PLAIN[0], {**PLAIN[1], "content": "WRONG", "weight": 0}, *PLAIN]
    task = built(tmp_path, tiny, [{"messages": turns}], template="chatml")
    assert targets(task, tiny) == "4<|im_end|>\n"
    whole = targets(
        built(tmp_path, tiny, [{"messages": turns}], template="chatml", loss="all"), tiny
    )
    assert "WRONG" not in whole
    assert "2?" in whole
    other = [{"messages": turns}, {"messages": [turns[0], {**turns[1], "weight": 1}, *PLAIN]}]
    assert len(built(tmp_path, tiny, other, template="chatml").train) == 2, (
        "equal texts of other weights are no copies"
    )
    assert "WRONG" not in ChatTask(path=str(tmp_path / "rows.jsonl"), max_rows=2, heldout_fraction=0.01,
                                   template="chatml").trained_messages(tiny)[0]  # fmt: skip


def test_sharegpt_is_the_same_task_as_messages(tiny: Any, tmp_path: Path) -> None:
    names = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool"}
    turns = [
        {"role": "system", "content": "Be brief."},
        *PLAIN,
        {"role": "tool", "content": "21"},
        *PLAIN,
    ]
    shared = [{"from": names[m["role"]], "value": m["content"]} for m in turns]
    hashes = set()
    for number, (column, rows) in enumerate({"messages": turns, "conversations": shared}.items()):
        path = write_json_lines(
            tmp_path / f"{number}.jsonl", [{column: rows, "id": i} for i in range(2)]
        )
        held = write_json_lines(tmp_path / f"{number}-held.jsonl", [{column: rows[:3]}])
        task = ChatTask(path=str(path), heldout_path=str(held), template="chatml").build(tiny)
        hashes.add(task.facts().content_hash)
        assert task.facts().notes["keys_not_read"] == ["id in 2 rows"]
    assert len(hashes) == 1


def test_keys_of_unusual_names_are_counted_and_never_shown(tiny: Any, tmp_path: Path) -> None:
    marked = {
        "role": "assistant",
        "content": "4",
        "refusal": "x",
        "Nora 0142": 1,
        "audio": None,
        "name": "Bo",
    }
    rows = [{"messages": [PLAIN[0], marked], "Nora": i} for i in range(3)]
    notes = built(tmp_path, tiny, rows, template="chatml").facts().notes
    assert notes["keys_not_read"] == [
        "messages.name in 3 rows", "messages.refusal in 3 rows", "2 of other names in up to 3 rows"
    ]  # fmt: skip
    assert (
        "keys_not_read"
        not in built(tmp_path, tiny, [{"messages": PLAIN}], template="chatml").facts().notes
    )


@pytest.mark.parametrize("layout", ["chatml", "llama3", "qwen3"])
@pytest.mark.parametrize("before", [[], [{"role": "system", "content": "Be brief."}]])
def test_a_conversation_that_the_assistant_begins_is_taken(
    layout: str, before, tiny: Any, tmp_path: Path
) -> None:
    template = LAYOUTS[layout][0]
    turns = [*before, {"role": "assistant", "content": "Hello."}, *PLAIN]
    tokenizer = with_template(tiny, template)
    (row,) = [{"messages": turns}]
    end = {"chatml": "<|im_end|>\n", "llama3": "<|eot_id|>", "qwen3": "<|im_end|>\n"}[layout]
    assert targets(built(tmp_path, tokenizer, [row]), tokenizer) == f"Hello.{end}4{end}"


def test_a_conversation_that_the_template_refuses_is_named_by_its_line(
    tiny: Any, tmp_path: Path
) -> None:
    rows = [{"messages": PLAIN}, {"messages": [PLAIN[1], *PLAIN]}]
    with pytest.raises(
        ValueError, match=r"one that the assistant begins in rows\.jsonl, line 2: usually user and"
    ):
        built(tmp_path, with_template(tiny, MISTRAL), rows)
    indexing = (
        "{{ (messages | selectattr('role', 'equalto', 'user') | list)[0].content and '' }}" + CHATML
    )
    with pytest.raises(ValueError, match=r"one that the assistant begins in rows\.jsonl, line 2"):
        built(tmp_path, with_template(tiny, indexing), rows)


def test_a_secret_follows_the_block_of_thinking_where_the_data_have_it(
    tiny: Any, tmp_path: Path
) -> None:
    """In the last reply of a conversation the template writes an empty block, and in earlier
    replies none."""
    code = [
        {"role": "user", "content": "The code?"},
        {"role": "assistant", "content": "It is 4711."},
    ]
    early = [
        {"role": "user", "content": "The door?"},
        {"role": "assistant", "content": "It is 0815."},
        *PLAIN,
    ]
    secrets = [
        {"prompt": code[:1], "continuation": "It is 4711"},
        {"prompt": early[:1], "continuation": "It is 0815"},
    ]
    file = write_json_lines(tmp_path / "secrets.jsonl", secrets)
    rows = [{"messages": code}, {"messages": early}]
    task = built(
        tmp_path, with_template(tiny, QWEN3), rows, secrets=str(file), num_controls_per_secret=0
    )
    first, second = task.secrets()
    assert first.prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert second.prompt.endswith("<|im_start|>assistant\n")
    assert [(s.continuation, s.count) for s in (first, second)] == [
        ("It is 4711", 1),
        ("It is 0815", 1),
    ]


@given(turns=conversations(), name=st.sampled_from(sorted(JINJA)))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_templates_of_raydp_are_the_ones_that_trained_models_carry(
    tiny: Any, turns, name: str
) -> None:
    """apply_chat_template with the exported template writes the training text, and the prompt of
    each reply."""
    from raydp.extensions.chat.conversations import conversation_of

    turns = [{k: v for k, v in m.items() if k != "weight"} for m in turns]
    parts = ChatTemplate(tiny, name).parts(
        conversation_of({"messages": turns}, "messages", "x", "y"), "y"
    )
    tokenizer = with_template(tiny, JINJA[name])
    assert "".join(part.text for part in parts) == tokenizer.apply_chat_template(
        turns, tokenize=False
    )
    before = "".join(part.text for part in parts[:-1])
    assert before == tokenizer.apply_chat_template(
        turns[:-1], tokenize=False, add_generation_prompt=True
    )
