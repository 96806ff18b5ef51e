"""A path that cannot be used is named by its option, its argument or its field of the spec, with
the value."""

from __future__ import annotations

import builtins
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raydp.sweep.planning.path_fields import field_of
from tests.conftest import Answer

Command = Callable[..., Answer]


@pytest.mark.extensions("--output", "DATA")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("models", "keygen", "-o", "nowhere/key"), "--output must exist, got 'nowhere/key'"),
        (
            ("models", "keygen", "-o", "a-file/key"),
            "--output must lead through folders only, got 'a-file/key'",
        ),
        (
            ("secrets", "extract", "closed.jsonl", "-o", "x"),
            "DATA must be accessible to you, got 'closed.jsonl'",
        ),
        (("select", "closed.csv"), "POINTS|SWEEP must be accessible to you, got 'closed.csv'"),
        (("plan", "spec.yaml"), "task.of.path must be accessible to you, got 'closed.jsonl'"),
    ],
)
def test_the_field_of_a_path_is_named(
    raydp: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    """A file of mode 000 is open to root, so opening one is refused here."""
    (tmp_path / "a-file").write_text("")
    for name in ("closed.jsonl", "closed.csv"):
        (tmp_path / name).write_text('{"text": "a"}\n')
    spec = {
        "task": {"name": "planted", "of": {"name": "text", "path": "closed.jsonl"}},
        "model": {"name": "tiny"},
    }
    (tmp_path / "spec.yaml").write_text(str(spec))
    opened = io.open

    def refused(file: Any, *args: Any, **options: Any) -> Any:
        if Path(str(file)).stem == "closed":
            raise PermissionError(13, "Permission denied", str(file))
        return opened(file, *args, **options)

    for module in (io, builtins):
        monkeypatch.setattr(module, "open", refused)
    if (
        arguments[0] == "plan"
    ):  # the spec is complete enough to name its field, and nothing heavy is loaded
        monkeypatch.setattr(
            "raydp.cli.commands.plan.draft_spec", lambda spec: Path("closed.jsonl").read_text()
        )
    answer = raydp(*arguments)
    assert answer.code == 2, answer.err
    assert f"error: {message}" in answer.err


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("data/mails.jsonl", "task.of.path"),
        ("held.jsonl", "task.of.heldout_path"),
        ("weights/config.json", "model.name"),
        ("spec.yaml", "SPEC"),
        ("out/x.csv", "--output"),
        ("elsewhere", None),
    ],
)
def test_the_longest_path_that_fits_names_the_field(
    path: str, field: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    of = {"name": "text", "path": "data/mails.jsonl", "heldout_path": str(tmp_path / "held.jsonl")}
    content = {"task": {"of": of}, "model": {"name": "weights"}, "cluster": {"working_dir": "."}}
    Path("spec.yaml").write_text(str(content))
    given = {"spec": Path("spec.yaml"), "output": Path("out/x.csv"), "json": True}
    assert field_of(path, given, {"spec": "SPEC", "output": "--output"}) == field
