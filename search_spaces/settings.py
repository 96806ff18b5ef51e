"""The further fields of a spec that a configuration sets beside (b, T, η).

In tables and in plan.json they are one text: JSON with sorted keys, such as
'{"method.max_grad_norm":0.5}', and the empty text for a configuration that sets none.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property


class Settings(Mapping[str, object]):
    """Further fields of a configuration: dotted path in the spec -> value. They never change.

    Two are equal if and only if their texts are equal, and they are sorted by text.

    Example:
        settings = Settings({"method.max_grad_norm": 0.5})
        settings["method.max_grad_norm"]  # 0.5
        Settings.parse(settings.text) == settings  # True
    """

    def __init__(self, fields: Mapping[str, object] | None = None) -> None:
        self._fields = dict(sorted((fields or {}).items()))

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Return the fields of a text.

        Raises:
            ValueError: the text is not one that `text` gives.
        """
        try:
            fields = json.loads(text) if text else {}
        except ValueError:
            fields = None
        if not isinstance(fields, dict) or (text and not fields):
            raise ValueError(
                "settings must be empty, or JSON of the fields that a configuration sets, got "
                'other text. Write it as {"method.max_grad_norm":0.5}.'
            )
        return cls(fields)

    @cached_property
    def text(self) -> str:
        """Return the one text of these fields: sorted keys, no spaces; empty without fields."""
        if not self._fields:
            return ""
        return json.dumps(self._fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def __getitem__(self, path: str) -> object:
        return self._fields[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        # Values of Python would make 1, 1.0 and true one value.
        return self.text == other.text if isinstance(other, Settings) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __lt__(self, other: Settings) -> bool:
        return self.text < other.text

    def __repr__(self) -> str:
        return self.text or "{}"


NO_SETTINGS = Settings()


def settings_in_words(
    fields: Mapping[str, object], *, equals: str = " = ", between: str = ", "
) -> str:
    """Return fields for people, such as "max_grad_norm = 0.5, r = 16", by their short names."""
    return between.join(
        f"{name}{equals}{value_in_words(fields[path])}"
        for path, name in short_names(fields).items()
    )


def short_names(paths: Mapping[str, object] | list[str]) -> dict[str, str]:
    """Return each path with its shortest end that no other path shares, in the paths' order."""
    parts = {path: path.split(".") for path in paths}
    ends = {p: [".".join(all_[-k:]) for k in range(1, len(all_) + 1)] for p, all_ in parts.items()}
    shared = Counter(end for of_path in ends.values() for end in of_path)
    return {
        path: next(end for end in of_path if shared[end] == 1) for path, of_path in ends.items()
    }


def value_in_words(value: object) -> str:
    """Return a value as a spec writes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        # Six digits, unless they would be another number.
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return json.dumps(value, ensure_ascii=False)
