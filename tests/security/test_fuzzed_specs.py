"""Specs that somebody damaged or made to harm: a spec, or a message that says what to change; never
another exception and never a hang."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.system.yaml import read_yaml
from tests.builders.specs import small_spec
from tests.conftest import Answer
from tests.security.fuzzing import FUZZ_SECONDS, ONE_SECONDS, Clock, assert_answers, fuzzed

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{c}: &{c} [{','.join([f'*{p}'] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
)
HARMFUL = {
    "billion laughs": (LAUGHS, "more than 100000 values"),
    "billion laughs in a section": ("task:\n  " + LAUGHS.replace("\n", "\n  "), "more than 100000 values"),
    "laughs by merging": (
        "m0: &m0 {k: 1}\n" + "".join(f"m{i + 1}: &m{i + 1} {{<<: [{','.join([f'*m{i}'] * 9)}]}}\n" for i in range(9)),
        "more than 100000 values",
    ),
    "deep": ("name: " + "[" * 50_000, "nested more than 32 deep"),
    "deep mappings": ("{a: " * 50_000, "nested more than 32 deep"),
    "an alias of itself": ("name: &a [*a]\n", "an alias of what it is in"),
    "a key twice": ("name: a\nname: b\n", "a key that is there twice in line 2, column 1"),
    "code": ("name: !!python/object/apply:os.system ['exit 7']\n", "a value of a type of its own"),
    "an object": ("name: !!python/object:os.environ {}\n", "a value of a type of its own"),
    "a date that is none": ("name: 2020-99-99\n", "a value of type timestamp"),
    "a number of 5000 digits": (f"seeds: [{'9' * 5000}]\n", "4300 digits"),
    "a number of a million bits": (f"task: {{}}\nmodel: {{}}\nseeds: [0x{'f' * 250_000}]\n", "1000000 bits"),
    "an integer of nothing": ("name: !!int ''\n", "does not fit its type"),
    "a truth that is none": ("name: !!bool maybe\n", "does not fit its type"),
    "a list as a key": ("[a]: b\n", "a key that is no text"),
    "a zero byte": ('storage: "a\\0b"\n', "characters that no file or name can have"),
    "half a character": ('storage: "\\ud800"\n', "characters that no file or name can have"),
    "a raw zero byte": ("name: \0\n", "characters that YAML does not take"),
    "a name of a megabyte": (f"task: {{}}\nmodel: {{}}\nname: {'n' * 1_000_000}\n", "at most 200 characters"),
    "two megabytes": (f"name: a # {'n' * 2_000_000}\n", "must have at most 1048576 bytes"),
    "nothing": ("", "SPEC must be a mapping"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HARMFUL)
def test_a_harmful_file_is_refused_at_once(
    kind: str, raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    text, message = HARMFUL[kind]
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    start = time.monotonic()
    answer = raydp("plan", path)
    assert time.monotonic() - start < ONE_SECONDS
    assert_answers(answer.code, answer.out, answer.err, kind)
    assert message in " ".join(answer.err.split())


def test_an_alias_that_is_used_a_few_times_is_fine(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    text = yaml.safe_dump(spec).replace("num_steps:", "num_steps: &steps", 1)
    (tmp_path / "spec.yaml").write_text(text)
    assert isinstance(load_spec(tmp_path / "spec.yaml"), SweepSpec)
    (tmp_path / "merged.yaml").write_text(
        "a: &a {name: vmr}\nb: &b {<<: *a, name: air}\nc: [*b, *b]\n"
    )
    with pytest.raises(ValueError, match=r"'a' is unknown(.|\n)*'c' is unknown"):
        load_spec(read_yaml(tmp_path / "merged.yaml", "SPEC"))


VALUES = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 1e308, -1e308, 1e-320, float("nan"), float("inf"),
    float("-inf"), "", "x", "a" * 10_000, "../../etc/passwd", "é", "\u202e", "\x1b[31m", "\x07", "~",
    "!!int", "*a", "&a", "tiny", "models:/a/1", "s3://u:p@h/b", "http://[", [], {}, [[]], [{}], {"name": "x"},
    {"name": 3}, {"name": "dp_adam", "x": 1}, ["a", 1, None, {}], {"": ""}, {1: 2}, {None: 1}, {"a" * 3000: {}},
    b"\xff", [1] * 2000,
]  # fmt: skip
ANY = (
    st.sampled_from(VALUES)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
        ),
        max_leaves=8,
    )
    | st.integers(5, 200).map(lambda depth: _nested(depth))
)


def _nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"name": value}
    return value


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something can be changed."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path] * bool(path) + [
        place for key, below in inner for place in _places(below, (*path, key))
    ]


@st.composite
def damaged(draw: st.DrawFn, folder: Path) -> dict[str, Any]:
    """The valid spec with values exchanged, removed, moved, or keys added."""
    spec: dict[str, Any] = copy.deepcopy(small_spec(folder))
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(_places(spec)))
        parent: Any = spec
        for key in way:
            parent = parent[key]
        kind = draw(st.sampled_from(["value", "value", "value", "drop", "add", "swap"]))
        if kind == "value":
            parent[last] = copy.deepcopy(
                draw(ANY)
            )  # what is drawn is drawn again, and must not have changed
        elif kind == "drop":
            del parent[last]
        elif kind == "add" and isinstance(parent, dict):
            parent[
                draw(
                    st.text(max_size=10)
                    | st.sampled_from(["nmae", "__class__", "model_config", "0"])
                )
            ] = copy.deepcopy(draw(ANY))
        else:
            parent[last] = copy.deepcopy(spec[draw(st.sampled_from(sorted(spec, key=str)))])
        if not _places(spec):
            break
    return spec


@st.composite
def damaged_bytes(draw: st.DrawFn, folder: Path) -> bytes:
    """The valid file with bytes changed, or any bytes."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=200))
    content = bytearray(yaml.safe_dump(small_spec(folder), sort_keys=False).encode())
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(content) - 1))
        new = draw(
            st.sampled_from(
                [
                    b"",
                    b"\n",
                    b": ",
                    b"- ",
                    b"{",
                    b"[",
                    b"&a ",
                    b"*a",
                    b"!!",
                    b"\t",
                    b"\xff",
                    b"? ",
                    b"|\n",
                    b"%",
                ]
            )
        )
        content[at : at + draw(st.integers(0, 3))] = new + draw(st.binary(max_size=2))
    return bytes(content)


def assert_spec_or_message(source: Any) -> None:
    start = time.monotonic()
    try:
        found: Any = load_spec(source)
    except ValueError as error:
        kind, message = type(error), str(error)
        assert kind is ValueError, message
        assert message
        assert len(message) < 100_000
        assert any(word in message for word in ("must", "unknown", "takes", "not measured")), (
            message
        )
    else:
        assert isinstance(found, SweepSpec)
    assert time.monotonic() - start < ONE_SECONDS


def fuzz(folder: Path, num_examples: int) -> None:
    clock = Clock(FUZZ_SECONDS * max(1, num_examples / 600))
    path = folder / "spec.yaml"

    @fuzzed(num_examples)
    @given(spec=damaged(folder))
    def structure(spec: dict[str, Any]) -> None:
        if clock.over:
            return
        assert_spec_or_message(spec)
        try:
            path.write_text(
                yaml.safe_dump(spec, sort_keys=False, allow_unicode=True), encoding="utf-8"
            )
        except (yaml.YAMLError, UnicodeEncodeError, ValueError):  # no YAML says so
            return
        assert_spec_or_message(path)

    @fuzzed(num_examples)
    @given(content=damaged_bytes(folder))
    def content(content: bytes) -> None:
        if clock.over:
            return
        path.write_bytes(content)
        assert_spec_or_message(path)

    structure()
    content()


def test_a_damaged_spec_is_a_spec_or_a_message(tmp_path: Path) -> None:
    fuzz(tmp_path, 60)


@pytest.mark.slow
def test_a_damaged_spec_is_a_spec_or_a_message_for_long(tmp_path: Path) -> None:
    fuzz(tmp_path, 1200)


@pytest.mark.slow
@pytest.mark.parametrize("command", [["plan"], ["sweep", "--dry-run"]])
def test_the_command_line_names_the_remedy(
    command: list[str], raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    clock = Clock(FUZZ_SECONDS)
    path = tmp_path / "spec.yaml"
    rng = random.Random(7)

    @fuzzed(60)
    @given(spec=damaged(tmp_path), content=damaged_bytes(tmp_path))
    def one(spec: dict[str, Any], content: bytes) -> None:
        if clock.over:
            return
        try:
            written = yaml.safe_dump(spec, sort_keys=False, allow_unicode=True).encode()
        except (yaml.YAMLError, UnicodeEncodeError, ValueError):
            written = content
        path.write_bytes(written if rng.random() < 0.7 else content)
        # a valid one may cost minutes of calibration: what it does is the matter of other tests
        try:
            load_spec(path)
        except ValueError:
            answer = raydp(*command, path)
            assert answer.code == 2
            assert_answers(answer.code, answer.out, answer.err, spec)

    one()
