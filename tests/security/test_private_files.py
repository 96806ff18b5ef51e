"""No message shows what is in a file, whatever file is given where (SECURITY.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.builders.specs import small_spec
from tests.conftest import Answer
from tests.marks import slow_unless
from tests.security.private_files import FORMS, WORDS, commands, specs, write_forms, write_good

Command = Callable[..., Answer]
COMMANDS = tuple(commands(Path("f"), Path("g"), Path("o")))
SPECS = tuple(specs(Path("f"), Path("g")))
READERS = {
    *(
        "plan",
        "score --scores",
        "select",
        "calibrate --from",
        "profile --from",
        "pate",
        "mia",
        "secrets extract",
    ),
    *(
        "data paraphrase",
        "correlations --audit",
        "models find --trusted-key",
        "trends --by",
        "secrets filter",
    ),
}
"""One command of each way to read a file is given every form, any other command a fifth of the
forms."""
OF_A_SPEC = {"notes.yaml", "one.json", "keys.jsonl", "broken.jsonl", "plain.txt", "noise.bin"}
"""Forms for the fields of a spec, each of which takes a plan: one of every way to be read."""
QUICK_COMMANDS = ("plan", "models find --trusted-key")
QUICK_SPECS = ("task text", "model.name")
"""What `make test` gives the files to."""
FORMS_OF_A_SPEC = tuple(
    form for form in FORMS if form in OF_A_SPEC or form.endswith((".csv", ".npz"))
)


@dataclass(frozen=True)
class Places:
    """Where the planted files, the right files and what commands write are."""

    forms: Path
    good: Path
    out: Path


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    found = Places(*(tmp_path_factory.mktemp(name) for name in ("forms", "good", "out")))
    write_forms(found.forms)
    write_good(found.good)
    return found


def assert_nothing_is_shown(answer: Answer, what: object) -> None:
    said = answer.out + answer.err
    assert not [word for word in WORDS if word.casefold() in said.casefold()], (what, said)
    assert "Traceback" not in said, (what, said)
    assert answer.code == 2, (what, said)
    assert len(answer.err) > 30, (what, said)


@pytest.mark.parametrize("name", slow_unless(QUICK_COMMANDS, COMMANDS))
def test_no_command_shows_a_file_that_it_cannot_use(
    name: str, raydp: Command, places: Places
) -> None:
    for form in FORMS if name in READERS else FORMS[COMMANDS.index(name) % 5 :: 5]:
        file = places.forms / form
        before = file.read_bytes()
        assert_nothing_is_shown(raydp(*commands(file, places.good, places.out)[name]), (name, form))
        assert file.read_bytes() == before


@pytest.mark.parametrize("name", slow_unless(QUICK_SPECS, SPECS))
def test_no_field_of_a_spec_shows_a_file_that_it_cannot_use(
    name: str, raydp: Command, places: Places
) -> None:
    for form in FORMS_OF_A_SPEC:
        spec = places.out / "spec.yaml"
        spec.write_text(
            yaml.safe_dump(small_spec(places.out, **specs(places.forms / form, places.good)[name]))
        )
        answer = raydp("plan", spec)
        if answer.code == 0:  # a file that is right for the field
            assert not [word for word in WORDS if word in answer.out + answer.err], (name, form)
        else:
            assert_nothing_is_shown(answer, (name, form))


def test_a_message_still_names_the_remedy(raydp: Command, places: Places) -> None:
    answer = raydp("plan", places.forms / "tab.yaml")
    assert "line 2, column 1" in " ".join(answer.err.split())
    answer = raydp("plan", places.forms / "named.jsonl")
    assert "without method, privacy, space, select, and task, model not as mappings" in " ".join(
        answer.err.split()
    )
    answer = raydp("select", places.forms / "points.csv")
    assert "score must be a number, got text in line 2" in " ".join(answer.err.split())


@pytest.mark.extensions
def test_a_message_of_calibrate_still_names_the_remedy(raydp: Command, places: Places) -> None:
    answer = raydp("calibrate", "--from", places.forms / "cells.csv")
    assert "must have the columns n, batch_size, num_steps, epsilon, delta" in " ".join(
        answer.err.split()
    )


def test_a_spec_shows_the_values_of_its_keys_where_they_are_short(
    raydp: Command, tmp_path: Path
) -> None:
    changes = {
        "privacy": {"target_epsilon": "eight"},
        "select": {"score": "vmr_exact", "rule": "x" * 5000},
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(small_spec(tmp_path, **changes)))
    answer = raydp("plan", "spec.yaml")
    assert "privacy.target_epsilon must be a valid number, got 'eight'" in answer.err
