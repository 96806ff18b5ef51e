"""YAML that somebody else may have written: bounded in size, depth and aliases, and made of plain values only.

Aliases let a file of a few lines stand for more values than fit into memory ("billion laughs"), and PyYAML's
constructors of dates, binary values and sets raise errors of all kinds for what they cannot read.

Messages give line, column and rule, never the content: the file may be data that was given in the wrong place.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_VALUES = 100_000
"""With every alias written out."""

_YAMLS_OWN = {"timestamp", "binary", "set", "omap", "pairs", "merge", "value"}
_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map")}


_QUOTES_SIGNS = re.compile(r"([^'\"]|'(<[a-z ]+>|[^\w\s'])')*")


def read_yaml(path: Path, field: str) -> Any:
    """The content of a file.

    Args:
        field: what the file was given as, for messages.

    Raises:
        ValueError: it is no file, too large, not UTF-8, no YAML, or repeats a key.
    """
    if not path.is_file():
        raise ValueError(f"{field} must be an existing YAML file, got {str(path)!r}. Check the path.")
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ValueError(f"{field} must have at most {MAX_BYTES} bytes, got {size} in {str(path)!r}. Shorten it.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{field} must be UTF-8 text, got other bytes in {str(path)!r}. Save it as UTF-8.") from error
    return parse_yaml(text, f"{field} must be valid YAML, got {str(path)!r}")


def parse_yaml(text: str, complaint: str) -> Any:
    """The value of a text.

    Args:
        complaint: the message up to the reason, for what is wrong.

    Raises:
        ValueError: it is no YAML, repeats a key, or is larger or deeper than allowed.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        raise ValueError(f"{complaint}: {_without_content(error.problem or 'not YAML')}{place}. Correct it.") from error
    except yaml.YAMLError as error:  # of bytes or characters; its text gives an offset and shows some of them
        raise ValueError(f"{complaint}: characters that YAML does not take. Correct it.") from error


def _without_content(problem: str) -> str:
    """PyYAML's reason up to where it quotes the file; its own names of tokens and single signs may stay."""
    return problem if _QUOTES_SIGNS.fullmatch(problem) else re.split("['\"]", problem)[0].rstrip(" ,")


class _Loader(yaml.SafeLoader):
    """Plain values only. YAML 1.1 reads 5e-4 as text; here it is a number."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Its recursion would end in a RecursionError."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            where = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # PyYAML's stubs leave it out
            raise ConstructorError(None, None, f"nested more than {MAX_DEPTH} deep", where)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def get_single_node(self) -> yaml.Node | None:
        """The document, once it is known to be small."""
        if (root := super().get_single_node()) is not None:
            _count(root, {})
        return root

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """One value."""
        if node.tag not in _PLAIN:
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            kind = f"of type {kind}" if kind in _YAMLS_OWN else "of a type of its own"
            problem = f"a value {kind}; quote it if it is text"
            raise ConstructorError(None, None, problem, node.start_mark)
        if isinstance(node, yaml.ScalarNode) and re.search("[\0\ud800-\udfff]", node.value):
            raise ConstructorError(None, None, "characters that no file or name can have", node.start_mark)
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:  # `!!int x`, 5000 digits
            problem = "a value that does not fit its type, or a number of more than 4300 digits"
            raise ConstructorError(None, None, problem, node.start_mark) from error


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def _count(node: yaml.Node, known: dict[int, int | None]) -> int:
    """How many values a node stands for, with every alias written out; its depth is bounded."""
    if id(node) in known:
        if (size := known[id(node)]) is None:
            raise ConstructorError(None, None, "an alias of what it is in", node.start_mark)
        return size
    known[id(node)] = None
    children = node.value if isinstance(node, yaml.SequenceNode) else []
    if isinstance(node, yaml.MappingNode):
        _refuse_repeated(node)
        children = [child for pair in node.value for child in pair]
    total = 1 + sum(_count(child, known) for child in children)
    if total > MAX_VALUES:
        raise ConstructorError(None, None, f"more than {MAX_VALUES} values", node.start_mark)
    known[id(node)] = total
    return total


def _refuse_repeated(node: yaml.MappingNode) -> None:
    """PyYAML takes the last of equal keys and says nothing."""
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ConstructorError(None, None, "a key that is no text", key.start_mark)
        if key.value in seen:
            raise ConstructorError(None, None, "a key that is there twice", key.start_mark)
        seen.add(key.value)
