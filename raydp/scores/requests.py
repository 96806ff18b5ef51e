"""Which scores to measure, as a command or a file says it: `{name: ..., label: ..., **parameters}`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydp.plugins import Plugin, resolve_plugin
from raydp.reading_yaml import parse_yaml, read_yaml

LABEL = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
"""What a label may be: it is a part of column names, of MLflow's metric names and of paths, which have limits."""


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """A score to measure.

    Attributes:
        label: what the measurement is called in tables and metrics: the score's name, or another one for a second
            measurement with other parameters.
        plugin: the score with its parameters.
    """

    label: str
    plugin: Plugin


def requests_from(
    names: str | None, params: Sequence[str] = (), *, label: str | None = None, file: Path | None = None
) -> list[ScoreRequest]:
    """The scores that a command asks for.

    Args:
        names: comma-separated names: "vmr,acr".
        params: "key=value" for one score, "score.key=value" among several; values are read as YAML.
        label: of the one score; its name by default.
        file: a YAML file instead: a list of {name, label (optional), **parameters}.

    Raises:
        ValueError: nothing or a contradiction is asked for, a name is unknown, a parameter is wrong, or a label is
            used twice; names each mistake.
    """
    if (names is None) == (file is None):
        raise ValueError("--score or --scores must be given, got both or none. Name scores, or give one file.")
    if file is not None:
        if params or label is not None:
            raise ValueError("--param and --label must be left out with --scores. Write them into the file.")
        written = _read(file)
    else:
        written = _named([name.strip() for name in str(names).split(",")], params, label)
    problems: list[str] = []
    asked = []
    for position, entry in enumerate(written):
        field = f"scores[{position}]"
        if not isinstance(entry, Mapping):
            problems.append(f"{field} must be a mapping with a name, got {entry!r}. Write `- name: vmr`.")
            continue
        called = entry.get("label", entry.get("name"))
        plugin = resolve_plugin("scores", field, {k: v for k, v in entry.items() if k != "label"}, problems)
        if plugin is None and "label" not in entry:
            continue  # the name itself is the mistake
        if not isinstance(called, str) or not re.fullmatch(LABEL, called):
            problems.append(f"{field}.label must be up to 100 letters, digits, '_' and '-', got {called!r}. Rename it.")
        elif plugin is not None:
            asked.append(ScoreRequest(label=called, plugin=plugin))
    repeated = [called for called, times in Counter(request.label for request in asked).items() if times > 1]
    if repeated:
        problems.append(f"labels must be distinct, got {repeated[0]!r} twice. Give one of them another label.")
    if problems:
        raise ValueError("\n".join(problems))
    return asked


def _read(file: Path) -> list[Any]:
    content = read_yaml(file, "--scores")
    if not isinstance(content, list) or not content:
        raise ValueError(f"--scores must be a list of scores, got {type(content).__name__}. Write `- name: vmr`.")
    return content


def _named(names: list[str], params: Sequence[str], label: str | None) -> list[Any]:
    """What the options say, in the form of a file."""
    if label is not None and len(names) > 1:
        raise ValueError(f"--label must go with one score, got {len(names)}. Use --scores FILE.yaml for several.")
    entries: dict[str, dict[str, Any]] = {name: {"name": name} for name in names}
    if len(entries) < len(names):
        raise ValueError(f"--score must name each score once, got {', '.join(names)}. Use --scores FILE.yaml.")
    if label is not None:
        entries[names[0]]["label"] = label
    for param in params:
        key, equals, value = param.partition("=")
        score, dot, inner = key.partition(".")
        target, key = (score, inner) if dot and score in entries else (names[0], key)
        if not equals or (len(names) > 1 and not (dot and score in entries)):
            form = "score.key=value" if len(names) > 1 else "key=value"
            raise ValueError(f"--param must be {form}, got {param!r}. For example num_samples=100.")
        entries[target][key] = parse_yaml(value, f"--param must have a value that is YAML, got {param!r}")
    return list(entries.values())
