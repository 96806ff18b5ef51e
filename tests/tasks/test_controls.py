from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydp.tasks.task import Secret
from raydp.tasks.text.controls import generate_controls, read_controls

SECRETS = [
    Secret(
        prompt="Mira St. Halborn\nRM 4821\n555",
        continuation="-853-3989 (Fax)\nmira.halborn@nordvik.com",
    ),
    Secret(prompt=" Forwarded by Otto B", continuation=" Fenwick/OSL/NRD"),
    Secret(prompt=" Forwarded by Ada", continuation=" J Thornow/Nordvik/NRD"),
    Secret(prompt="Lea Marwick/Nordvik, 853", continuation=" Tom Belgate/Nordvik"),
    Secret(prompt="555-853-5620 (phone)\n555-646", continuation="-3490 (fax)"),
]
TEXTS = [s.prompt + s.continuation for s in SECRETS]


def shape(text):
    """What a reader would call the format: letters and digits by kind, lengths of words aside."""
    return re.sub(r"\d", "0", re.sub(r"[a-z]+", "a", re.sub(r"[A-Z][a-z]+", "A", text)))


def test_controls_have_the_format_and_are_absent():
    controls = generate_controls(SECRETS, 4, TEXTS)
    assert len({c.id for c in controls}) == len(controls) == 4 * len(SECRETS)
    for i, control in enumerate(controls):
        secret = SECRETS[i // 4]
        assert shape(control.prompt) == shape(secret.prompt)
        assert shape(control.continuation) == shape(secret.continuation)
        assert control.continuation != secret.continuation
        assert control.prompt != secret.prompt
        assert control.count == 0
        assert not any(control.continuation.strip() in text for text in TEXTS)


def test_names_change_everywhere_alike_and_format_stays():
    for control in generate_controls(SECRETS[:1], 4, TEXTS):
        first, last = re.match(r"(\w+) St\. (\w+)\n", control.prompt).groups()
        assert {first, last}.isdisjoint({"Mira", "Halborn"})
        assert first != last
        assert f"{first.lower()}.{last.lower()}@nordvik.com" in control.continuation
        assert "(Fax)" in control.continuation
        assert "RM" in control.prompt


def test_a_text_that_three_secrets_share_is_format():
    controls = generate_controls(SECRETS, 4, TEXTS)
    assert all(c.continuation.startswith("-853-") for c in controls[:4])
    assert all(c.continuation.endswith("/Nordvik") for c in controls[12:16])
    alone = generate_controls(SECRETS[:1], 4, TEXTS)
    assert not any(c.continuation.startswith("-853-") for c in alone)


def test_each_digit_of_a_continuation_is_another():
    for control in generate_controls(SECRETS[4:], 4, TEXTS):
        pairs = zip(control.continuation[1:5], "3490", strict=True)
        assert all(new != old for new, old in pairs)


def test_a_continuation_of_shared_words_still_changes():
    secrets = [
        Secret(prompt=f"{name} at", continuation=" Nordvik") for name in ("Mira", "Otto", "Lea")
    ]
    controls = generate_controls(secrets, 2, [])
    assert len(controls) == 6
    assert not any("Nordvik" in c.continuation for c in controls)


def test_a_secret_that_cannot_change_has_no_control():
    assert generate_controls([Secret(prompt="Mira", continuation=" ---")], 4, []) == []
    attribute = Secret(prompt="Her genre?", continuation="Comedy", kind="attribute")
    assert generate_controls([attribute], 4, []) == []
    assert generate_controls(SECRETS, 0, TEXTS) == []


def test_controls_depend_on_the_secret_alone_and_not_on_its_place():
    assert set(generate_controls(SECRETS, 3, TEXTS)) == set(
        generate_controls(SECRETS[::-1], 3, TEXTS)
    )


@given(planted=st.sets(st.integers(0, 3), max_size=4))
def test_a_control_that_occurs_is_replaced_by_another(planted):
    first = generate_controls(SECRETS[1:2], 4, [])
    texts = [first[i].prompt + first[i].continuation for i in planted]
    controls = generate_controls(SECRETS[1:2], 4, texts)
    assert len(controls) == 4
    assert not any(c.continuation.strip() in text for c in controls for text in texts)


def test_a_file_of_controls_must_not_hold_training_text(write_jsonl):
    rows = [
        {"prompt": "Call Mira", "continuation": " 0142"},
        {"prompt": "Call Otto", "continuation": " 7733"},
    ]
    path = write_jsonl("controls.jsonl", rows)
    assert [c.prompt for c in read_controls(path, "task.controls", ["Call Mira 01"])] == [
        "Call Mira",
        "Call Otto",
    ]
    with pytest.raises(
        ValueError, match=r"task\.controls must not occur .* got 1 that do, with the ids"
    ) as caught:
        read_controls(path, "task.controls", ["x Call Otto 7733 y"])
    assert "Otto" not in str(caught.value)
