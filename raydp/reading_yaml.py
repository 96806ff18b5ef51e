"""YAML that somebody else may have written: bounded in size, depth and aliases, and made of plain values only.

Aliases let a file of a few lines stand for more values than fit into memory ("billion laughs"), and PyYAML's
constructors of dates, binary values and sets raise errors of all kinds for what they cannot read.
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

_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map")}


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
    except yaml.YAMLError as error:
        raise ValueError(f"{complaint}: {error}. Correct it.") from error


class _Loader(yaml.SafeLoader):
    """Plain values only. YAML 1.1 reads 5e-4 as text; here it is a number."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Its recursion would end in a RecursionError."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ConstructorError(None, None, f"nested more than {MAX_DEPTH} deep", self.peek_event().start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def get_single_node(self) -> Any:
        """The document, once it is known to be small."""
        if (root := super().get_single_node()) is not None:
            _count(root, {})
        return root

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """One value."""
        if node.tag not in _PLAIN:
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            raise ConstructorError(None, None, f"a value of type {kind!r}; quote it if it is text", node.start_mark)
        if isinstance(node, yaml.ScalarNode) and re.search("[\0\ud800-\udfff]", node.value):
            raise ConstructorError(None, None, "characters that no file or name can have", node.start_mark)
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:  # `!!int x`, 5000 digits
            raise ConstructorError(None, None, f"{type(error).__name__}: {error}", node.start_mark) from error


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def _count(node: Any, known: dict[int, int | None]) -> int:
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
            raise ConstructorError(None, None, f"the key {key.value[:100]!r} twice", key.start_mark)
        seen.add(key.value)
