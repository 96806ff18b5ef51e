"""Score requests of a command or a file: `{name: ..., label: ..., **parameters}`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from pydantic import BaseModel

from raydp.plugins import files, registries
from raydp.plugins.described import Plugin, resolve_plugin
from raydp.search_spaces.names import kind_of
from raydp.system.yaml import parse_yaml, read_yaml

LABEL = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
"""Pattern of a label, which is part of column names, MLflow's metric names and paths."""


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """A score to measure.

    Attributes:
        label: name of the measurement in tables and metrics. It is the score's name, or another one
            for a second measurement with other parameters.
        plugin: the score with its parameters.
    """

    label: str
    plugin: Plugin


def requests_from(
    names: str | None,
    params: Sequence[str] = (),
    *,
    label: str | None = None,
    file: Path | None = None,
) -> list[ScoreRequest]:
    """Return the scores that a command asks for.

    Args:
        names: comma-separated names: "vmr,acr".
        params: "key=value" for one score, "score.key=value" among several; values are read as YAML.
        label: label of a single score; its name by default.
        file: a YAML file instead of names: a list of {name, label (optional), **parameters}.

    Raises:
        ValueError: no score or a contradiction is asked for, a name is unknown, a parameter is
            wrong, or a label is used twice. The message names each mistake.
    """
    # Exactly one of the two sources must be given.
    if (names is None) == (file is None):
        raise ValueError(
            "--score or --scores must be given, got both or none. Name scores, or give one file."
        )
    # Both sources are read into entries of one form.
    written: Sequence[object]
    if file is not None:
        if params or label is not None:
            raise ValueError(
                "--param and --label must be left out with --scores. Write them into the file."
            )
        written = _read(file)
    else:
        written = _named([name.strip() for name in str(names).split(",")], params, label)
    files.trust(written)
    return requests_of(written, of_a_file=file is not None)


def requests_of(written: Sequence[object], *, of_a_file: bool = False) -> list[ScoreRequest]:
    """Return the scores of a list of {name, label (optional), **parameters} and of scores.

    Args:
        of_a_file: the list is from a file. Names that do not resemble a score are then not shown,
            because the file may be a wrong one with private content.

    Raises:
        ValueError: a name is unknown, a parameter is wrong, or a label is used twice. The message
            names each mistake.
    """
    # Collect every mistake: a user corrects a file once.
    problems: list[str] = []
    asked = []
    for position, entry in enumerate(written):
        field = f"scores[{position}]"
        if isinstance(entry, BaseModel):
            if (plugin := resolve_plugin("scores", field, entry, problems)) is not None:
                asked.append(ScoreRequest(label=plugin.name, plugin=plugin))
            continue
        if not isinstance(entry, Mapping):
            problems.append(
                f"{field} must be a mapping with a name, got {kind_of(entry)}. Write `- name: vmr`."
            )
            continue
        # A file that is no list of scores may be private data, so no unknown name is shown.
        if of_a_file and not _names_a_score(entry.get("name")):
            known = ", ".join(registries.names("scores"))
            problems.append(
                f"{field}.name must be the name of a score, got an unknown name. Known: {known}."
            )
            continue
        plugin = resolve_plugin(
            "scores", field, {k: v for k, v in entry.items() if k != "label"}, problems
        )
        if plugin is None and "label" not in entry:
            continue  # the name itself is wrong, and is reported
        # A label names the measurement; without one the score's name does.
        called = entry.get("label", plugin and plugin.name)
        # Check the label also if the plug-in is wrong, so that both mistakes are told at once.
        if not isinstance(called, str) or not re.fullmatch(LABEL, called):
            problems.append(
                f"{field}.label must be up to 100 letters, digits, '_' and '-', got {called!r}. "
                "Rename it."
            )
        elif plugin is not None:
            asked.append(ScoreRequest(label=called, plugin=plugin))
    # Two measurements under one label would overwrite each other.
    repeated = [
        called for called, times in Counter(request.label for request in asked).items() if times > 1
    ]
    if repeated:
        problems.append(
            f"labels must be distinct, got {repeated[0]!r} twice. Give one of them another label."
        )
    if problems:
        raise ValueError("\n".join(problems))
    return asked


def _names_a_score(name: object) -> bool:
    """Return whether a file's entry names a score, perhaps misspelt. Other names are not shown."""
    known = registries.names("scores")
    if files.place_of(name) is not None:
        return True
    return isinstance(name, str) and (
        # A cutoff of 0.5 accepts a misspelt name, and hardly an arbitrary word.
        name in known or bool(get_close_matches(name, known, n=1, cutoff=0.5))
    )


def _read(file: Path) -> list[object]:
    content: object = read_yaml(file, "--scores")
    if not isinstance(content, list) or not content:
        raise ValueError(
            f"--scores must be a list of scores, got {kind_of(content)}. Write `- name: vmr`."
        )
    return content


def _named(names: list[str], params: Sequence[str], label: str | None) -> list[dict[str, object]]:
    """Return the options as entries in the form of a file."""
    if label is not None and len(names) > 1:
        raise ValueError(
            f"--label must go with one score, got {len(names)}. Use --scores FILE.yaml for several."
        )
    # A dict lets parameters be assigned by score.
    entries: dict[str, dict[str, object]] = {name: {"name": name} for name in names}
    if len(entries) < len(names):
        raise ValueError(
            f"--score must name each score once, got {', '.join(names)}. Use --scores FILE.yaml."
        )
    if label is not None:
        entries[names[0]]["label"] = label
    for param in params:
        # A value may hold "=", so only the first one divides.
        key, equals, value = param.partition("=")
        score, dot, inner = key.partition(".")
        # Without "score." the parameter belongs to the only score.
        target, key = (score, inner) if dot and score in entries else (names[0], key)
        if not equals or (len(names) > 1 and not (dot and score in entries)):
            form = "score.key=value" if len(names) > 1 else "key=value"
            raise ValueError(f"--param must be {form}, got {param!r}. For example num_samples=100.")
        entries[target][key] = parse_yaml(
            value, f"--param must have a value that is YAML, got {param!r}"
        )
    return list(entries.values())
