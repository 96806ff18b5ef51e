"""Reading of untrusted YAML: bounded in size, depth and aliases, and restricted to plain values.

Aliases let a file of a few lines stand for more values than fit into memory ("billion laughs").
PyYAML's constructors of dates, binary values and sets raise errors of all kinds for values that
they cannot read.

Messages give line, column and rule, never the content, because the file may be data that was given
in the wrong place.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_VALUES = 100_000
"""The largest number of values, with every alias written out."""

_YAMLS_OWN = {"timestamp", "binary", "set", "omap", "pairs", "merge", "value"}
_PLAIN = {
    f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map")
}


_QUOTES_SIGNS = re.compile(r"([^'\"]|'(<[a-z ]+>|[^\w\s'])')*")


def read_yaml(path: Path, field: str) -> Any:
    """Read the content of a YAML file.

    Args:
        path: the file.
        field: the name of the field or option that names the file, for messages.

    Raises:
        ValueError: the file is missing, too large, not UTF-8, not YAML, or repeats a key.
    """
    if not path.is_file():
        raise ValueError(
            f"{field} must be an existing YAML file, got {str(path)!r}. Check the path."
        )
    # The size is checked before reading, because it alone may show that the file is wrong.
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ValueError(
            f"{field} must have at most {MAX_BYTES} bytes, got {size} in {str(path)!r}. Shorten it."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{field} must be UTF-8 text, got other bytes in {str(path)!r}. Save it as UTF-8."
        ) from error
    return parse_yaml(text, f"{field} must be valid YAML, got {str(path)!r}")


def parse_yaml(text: str, complaint: str) -> Any:
    """Return the value of a YAML text.

    Args:
        text: the text.
        complaint: the beginning of error messages, up to the reason.

    Raises:
        ValueError: the text is not YAML, repeats a key, or is larger or deeper than allowed.
    """
    # PyYAML's problem quotes the file, so only the part before the quotation is shown.
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        raise ValueError(
            f"{complaint}: {_without_content(error.problem or 'not YAML')}{place}. Correct it."
        ) from error
    except yaml.YAMLError as error:  # about bytes or characters; its text quotes some of them
        raise ValueError(f"{complaint}: characters that YAML does not take. Correct it.") from error


def _without_content(problem: str) -> str:
    """Return PyYAML's reason up to where it quotes the file.

    Its own names of tokens, and single signs, may stay.
    """
    if problem.startswith("found character"):
        return (
            "a tab where YAML takes spaces"
            if "\\t" in problem
            else "a character that cannot begin a value"
        )
    # Single signs reveal nothing; a quoted word may be private.
    return (
        problem if _QUOTES_SIGNS.fullmatch(problem) else re.split("['\"]", problem)[0].rstrip(" ,")
    )


class _Loader(yaml.SafeLoader):
    """Loader of plain values only, which reads 5e-4 as a number; YAML 1.1 reads a text."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node, refusing deep nesting, which would end in a RecursionError."""
        self._depth += 1
        # Count the nesting on the way down, before Python's stack ends.
        if self._depth > MAX_DEPTH:
            where = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # PyYAML's stubs leave it out
            raise ConstructorError(None, None, f"nested more than {MAX_DEPTH} deep", where)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def get_single_node(self) -> yaml.Node | None:
        """Return the document, after checking that it is small."""
        # Aliases make the document a graph: count it before any value is built.
        if (root := super().get_single_node()) is not None:
            _count(root, {})
        return root

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        """Construct a mapping, refusing equal keys, of which PyYAML would take the last one."""
        seen: set[object] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConstructorError(None, None, "a key that is no text", key.start_mark)
            # 1 and 1.0 are equal, although they are written differently.
            name = self.construct_object(key) if key.tag in _PLAIN else key.value
            if name in seen:
                raise ConstructorError(None, None, "a key that is there twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep=deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """Construct one value, refusing types other than plain ones."""
        # Only plain values pass: other tags build objects, or fail in their own ways.
        if node.tag not in _PLAIN:
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            kind = f"of type {kind}" if kind in _YAMLS_OWN else "of a type of its own"
            problem = f"a value {kind}; quote it if it is text"
            raise ConstructorError(None, None, problem, node.start_mark)
        # NUL and lone surrogates cannot be part of a path or of UTF-8.
        if isinstance(node, yaml.ScalarNode) and re.search("[\0\ud800-\udfff]", node.value):
            raise ConstructorError(
                None, None, "characters that no file or name can have", node.start_mark
            )
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            # For example `!!int x`, or a number of 5,000 digits.
            problem = "a value that does not fit its type, or a number of more than 4300 digits"
            raise ConstructorError(None, None, problem, node.start_mark) from error


# YAML 1.1 wants a dot and a sign in a float: without this resolver 5e-4 is a text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def _count(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Return how many values a node of bounded depth stands for, with aliases written out."""
    # A node in progress that comes again contains itself.
    if id(node) in known:
        if (size := known[id(node)]) is None:
            raise ConstructorError(None, None, "an alias of what it is in", node.start_mark)
        return size
    known[id(node)] = None
    # Sizes are kept by node, so that counting takes linear time whatever the aliases.
    children = node.value if isinstance(node, yaml.SequenceNode) else []
    if isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    total = 1 + sum(_count(child, known) for child in children)
    if total > MAX_VALUES:
        raise ConstructorError(None, None, f"more than {MAX_VALUES} values", node.start_mark)
    known[id(node)] = total
    return total


def texts_in(value: object, field: str = "") -> Iterator[tuple[str, str]]:
    """Yield (field, text) of every text inside a value of mappings and lists."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from texts_in(part, f"{field}.{key}" if field else str(key))
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from texts_in(part, f"{field}[{number}]")
