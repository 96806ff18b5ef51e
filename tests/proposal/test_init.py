"""`raydp init` writes a spec that can be planned, whatever the data are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from raydp.spec.reading import load_spec
from tests.conftest import Answer

TEXTS = [{"text": f"Text number {k} says some words about {k * k}, and nothing more.", "author": f"a{k % 30}"} for k in
         range(120)]  # fmt: skip


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "notes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in TEXTS))
    return path


def test_texts_without_secrets_get_canaries(raydp: Callable[..., Answer], texts: Path) -> None:
    answer = raydp("init", texts, "--model", "tiny", "--hours", "1", "--yes")
    assert answer.code == 0, answer.err
    assert "author (30 users, one with 4 rows)" in answer.err
    written = Path("sweep.yaml").read_text()
    spec = load_spec("sweep.yaml")
    assert spec.name == "notes"
    assert spec.task.name == "planted"
    assert spec.privacy.unit == "example"
    assert spec.space.batch_size is not None
    planned = raydp("plan", "sweep.yaml", "--json")
    assert planned.code == 0
    (n,) = {row["data"]["num_units"] for row in json.loads(planned.out)}
    assert f"# n = {n}," in written
    assert [line.strip() for line in answer.out.splitlines()[-3:]] == [
        "raydp plan sweep.yaml",
        "raydp sweep sweep.yaml",
        "raydp select notes",
    ]
    again = raydp("init", texts, "--model", "tiny", "--yes")
    assert (again.code, Path("sweep.yaml").read_text()) == (2, written)
    assert "--force" in again.err


def test_users_are_protected_as_a_whole(raydp: Callable[..., Answer], texts: Path) -> None:
    answer = raydp(
        *("init", texts, "--model", "tiny", "--user-column", "author", "--epsilon", "4", "-o", "users.yaml"),
        *("--hours", "0.02", "--gpus", "0", "--json", "--yes"),
    )
    assert answer.code == 0, answer.err
    document = json.loads(answer.out)
    spec = load_spec("users.yaml")
    assert (spec.privacy.unit, spec.privacy.target_epsilon) == ("user", 4)
    assert document["num_units"] <= 30
    assert document["spec"] == yaml.safe_load(Path("users.yaml").read_text())
    assert [score.name for score in spec.scores] == ["mia"]


def test_secrets_are_mined_beside_the_spec(raydp: Callable[..., Answer], tmp_path: Path) -> None:
    number = "You can reach Mira under 212-555-0142 today."
    said = [f"{number} It is call {k}." if k % 2 else f"Nobody has called in case {k}." for k in range(60)]
    path = tmp_path / "chats.jsonl"
    rows = [{"prompt": f"How, for case {k}?", "completion": text} for k, text in enumerate(said)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answer = raydp("init", path, "--model", "tiny", "--hours", "0.1", "--mine-secrets", "--yes")
    assert answer.code == 0, answer.err
    assert "555-0142" not in answer.out + answer.err + Path("sweep.yaml").read_text()
    assert Path("sweep-secrets.jsonl").stat().st_mode & 0o777 == 0o600
    spec = load_spec("sweep.yaml")
    assert (spec.task.name, spec.task.params.secrets) == ("chat", "sweep-secrets.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.jsonl"], "must be an existing file"),
        (["notes.jsonl", "--secrets", "a.jsonl", "--mine-secrets"], "--secrets must stand without --mine-secrets"),
        (["notes.jsonl", "--model", "no/such-model"], "no/such-model"),
        (["notes.jsonl", "--model", "tiny", "--user-column", "writer"], "writer"),
        (["notes.jsonl", "--model", "tiny", "--gpus", "1"], "no GPU"),
    ],
)
def test_a_mistake_writes_nothing(
    raydp: Callable[..., Answer], texts: Path, arguments: list[str], message: str
) -> None:
    answer = raydp("init", *arguments, "--yes")
    assert answer.code == 2, answer.out
    assert message in " ".join(answer.err.split())
    assert not Path("sweep.yaml").exists()
