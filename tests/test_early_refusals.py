"""A mistake in a spec is told before anything is imported that takes seconds, whatever command it
is given to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydp.plugins import parameters, registries
from raydp.spec.reading import _checked, draft_spec, load_spec
from tests.builders.specs import small_spec

HEAVY = ("torch", "transformers", "ray", "mlflow", "pandas", "scipy", "peft", "opacus")
CODE = f"""
import contextlib, io, json, os, sys
from raydp.cli import main as cli
from raydp.system import waiting
waiting.SILENT_SECONDS = waiting.AGAIN_SECONDS = 1e9  # a busy machine has lines on waits
answers = {{}}
for name, (folder, *arguments) in json.load(sys.stdin).items():
    os.chdir(folder)
    sys.argv = ["raydp", *arguments]
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code
    answers[name] = [code, [name for name in {HEAVY!r} if name in sys.modules], said.getvalue()]
print(json.dumps(answers))
"""
MISTAKES: dict[str, dict[str, Any]] = {
    "a key": {"seedz": [0]},
    "a key of a section": {"privacy": {"target_epsilon": 8, "deltaa": 1e-5}},
    "a value": {"seeds": [2**70]},
    "a plug-in's name": {"task": {"name": "buildin"}},
    "a plug-in's key": {"method": {"name": "dp_adam", "max_grad_nrm": 1}},
    "a plug-in's value": {"method": {"name": "dp_adam", "max_grad_norm": -1}},
    "a score's value": {"scores": [{"name": "vmr", "num_samples": 0}], "select": {"score": "vmr"}},
    "a file": {"task": {"name": "text", "path": "nowhere.jsonl"}},
    "a file of secrets": {
        "task": {"name": "text", "path": "data.jsonl", "secrets": "nowhere.jsonl"}
    },
    "secrets that are no JSON": {
        "task": {"name": "text", "path": "data.jsonl", "column": "body", "secrets": "broken.jsonl"}
    },
    "secrets of another form": {
        "task": {"name": "text", "path": "data.jsonl", "column": "body", "secrets": "data.jsonl"}
    },
    "messages in secrets of texts": {
        "task": {"name": "text", "path": "data.jsonl", "column": "body", "secrets": "asked.jsonl"}
    },
    "secrets of another form in a chat": {
        "task": {
            "name": "planted",
            "of": {"name": "chat", "path": "chat.jsonl", "secrets": "roles.jsonl"},
        }
    },
    "controls of another form": {
        "task": {
            "name": "chat",
            "path": "chat.jsonl",
            "secrets": "asked.jsonl",
            "controls": "data.jsonl",
        }
    },
    "a later row of a file": {"task": {"name": "text", "path": "broken.jsonl", "column": "body"}},
    "a later row's text": {"task": {"name": "text", "path": "number.jsonl", "column": "body"}},
    "a later conversation": {"task": {"name": "chat", "path": "mixed.jsonl"}},
    "a column": {"task": {"name": "text", "path": "data.jsonl", "column": "bdy"}},
    "a column of users": {
        "task": {"name": "text", "path": "data.jsonl", "column": "body", "user_column": "whos"}
    },
    "users that are not named": {
        "task": {"name": "text", "path": "data.jsonl", "column": "body"},
        "privacy": {"target_epsilon": 8, "unit": "user"},
    },
    "an inner task's file": {
        "task": {"name": "planted", "of": {"name": "chat", "path": "nowhere.jsonl"}}
    },
    "an inner task's key": {
        "task": {"name": "planted", "of": {"name": "chat", "path": "data.jsonl", "lngth": 3}}
    },
    "a model's name": {"model": {"name": "tinny"}},
    "a folder without a model": {"model": {"name": "./empty"}},
    "a layer's name": {
        "model": {"name": "tiny", "adapter": {"type": "lora", "target_modules": ["qq"]}}
    },
    "a store": {"tracking": {"uri": "mysqlx://foo"}},
    "a folder": {"storage": "/proc/nope"},
    "steps": {"space": {"batch_size": [32], "num_steps": [10**11], "learning_rate": [0.01]}},
}


FILES = {
    "data.jsonl": '{"body": "a text"}\n',
    "broken.jsonl": '{"body": "a text", "prompt": "a", "continuation": "b"}\n{"body": "a te\n',
    "number.jsonl": '{"body": "a text"}\n{"body": 3}\n',
    "chat.jsonl": '{"prompt": "Q", "completion": "A"}\n',
    "mixed.jsonl": '{"prompt": "Q", "completion": "A"}\n{"prompt": "Q"}\n',
    "asked.jsonl": '{"prompt": [{"role": "user", "content": "Q"}], "continuation": "A"}\n',
    "roles.jsonl": '{"prompt": [{"role": "god", "content": "Q"}], "continuation": "A"}\n',
}
INIT: dict[str, list[str]] = {
    "a file": ["init", "nowhere.jsonl"],
    "a row": ["init", "broken.jsonl"],
    "a column": ["init", "data2.jsonl", "--column", "bdy"],
    "a column of users": ["init", "data2.jsonl", "--user-column", "bdy"],
    "users that are not there": ["init", "chat2.jsonl", "--unit", "user"],
    "a model": ["init", "chat2.jsonl", "--model", "./empty"],
    "a file of secrets": ["init", "data2.jsonl", "--secrets", "nowhere.jsonl"],
    "secrets of another form": ["init", "data2.jsonl", "--secrets", "data.jsonl"],
    "messages in secrets of texts": ["init", "data2.jsonl", "--secrets", "asked.jsonl"],
    "secrets that are no JSON": ["init", "chat2.jsonl", "--secrets", "broken.jsonl"],
    "secrets to filter": [
        "secrets",
        "filter",
        "data.jsonl",
        "-o",
        "out.jsonl",
        "--train",
        "spec.yaml",
    ],
}
COMMANDS = [
    ["sweep", "spec.yaml", "--dry-run"],
    ["selftest", "spec.yaml"],
    ["mia", "spec.yaml"],
    ["audit", "spec.yaml"],
    ["score", ".", "--score", "vmr", "--task", "spec.yaml"],
    ["secrets", "filter", "secrets.jsonl", "-o", "out.jsonl", "--train", "spec.yaml"],
]
"""Every command that takes a spec, beside the plain `plan` and `sweep`."""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, list[str], str]]:
    """What one fresh process answers to every wrong command: the exit code, the heavy modules that
    are imported by then, and the message. A command that imports one fails, and so do those after
    it."""

    def folder(name: str, **changes: Any) -> Path:
        made = tmp_path_factory.mktemp(name.replace(" ", "-").replace("'", ""))
        (made / "spec.yaml").write_text(yaml.safe_dump(small_spec(made, **changes)))
        for file, text in FILES.items():
            (made / file).write_text(text)
        for file in ("data", "chat"):
            (made / f"{file}2.jsonl").write_text(
                FILES[f"{file}.jsonl"].replace("a text", "a text " * 20) * 60
            )
        (made / "secrets.jsonl").write_text('{"prompt": "a", "continuation": "b"}\n')
        return made

    taken = folder("taken")
    (taken / "runs" / "small").mkdir(parents=True)
    (taken / "runs" / "small" / "spec.yaml").write_text("kept")
    wrong = {
        f"{command}: {mistake}": [str(folder(mistake, **changes)), command, "spec.yaml"]
        for mistake, changes in MISTAKES.items()
        for command in ("plan", "sweep")
    }
    wrong |= {f"init: {name}": [str(folder("init")), *command] for name, command in INIT.items()}
    wrong |= {command[0]: [str(folder(command[0], seedz=[0])), *command] for command in COMMANDS}
    wrong["a name that is taken"] = [str(taken), "sweep", "spec.yaml"]
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        input=json.dumps(wrong),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return {name: tuple(answer) for name, answer in json.loads(done.stdout).items()}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("command", ["plan", "sweep"])
def test_a_mistake_is_told_before_heavy_imports(
    command: str, mistake: str, refusals: dict[str, tuple[int, list[str], str]]
) -> None:
    code, heavy, message = refusals[f"{command}: {mistake}"]
    assert (code, heavy) == (2, []), message
    assert len(message.splitlines()) == 1, "one mistake, one line"


@pytest.mark.extensions
@pytest.mark.parametrize("mistake", INIT)
def test_mistakes_in_data_are_told_before_heavy_imports(
    mistake: str, refusals: dict[str, tuple[int, list[str], str]]
) -> None:
    code, heavy, message = refusals[f"init: {mistake}"]
    assert (code, heavy) == (2, []), message
    assert len(message.splitlines()) == 1, "one mistake, one line"
    assert ("--secrets must" in message) is ("--secrets" in INIT[mistake])


@pytest.mark.extensions("mia", "audit", "score", "secrets")
@pytest.mark.parametrize("command", [command[0] for command in COMMANDS])
def test_every_command_that_takes_a_spec_looks_at_it_first(
    command: str, refusals: dict[str, tuple[int, list[str], str]]
) -> None:
    code, heavy, message = refusals[command]
    assert (code, heavy) == (2, []), message
    assert "'seedz' is unknown" in message


def test_a_name_that_is_taken_is_told_before_heavy_imports(
    refusals: dict[str, tuple[int, list[str], str]],
) -> None:
    code, heavy, message = refusals["a name that is taken"]
    assert (code, heavy) == (2, []), message
    assert "name must be new" in message


def test_the_file_of_parameters_is_that_of_the_plug_ins() -> None:
    """Else: `python -m raydp.plugins.parameters` writes it."""
    for path, content in parameters.described().items():
        assert path.read_text(encoding="utf-8") == parameters.as_text(content), path


@pytest.mark.parametrize("kind", parameters.KINDS)
def test_defaults_pass_the_first_check(kind: registries.Kind) -> None:
    for name in registries.own_names(kind):
        path = registries.file_of(kind, name)
        assert path is not None
        fields = json.loads(path.read_text())[kind][name]["fields"] or {}
        if all("default" in said for said in fields.values()):
            plugin = registries.resolve(kind, name)()
            parameters.light_model(kind, name).model_validate(plugin.model_dump(mode="json"))


def test_the_early_check_agrees_with_the_whole_check(tmp_path: Path) -> None:
    for changes in MISTAKES.values():
        spec = small_spec(tmp_path, **changes)
        if {"tracking", "storage", "model"} & set(changes) or changes.get("task", {}).get(
            "name"
        ) in (
            "text",
            "chat",
            "planted",
        ):
            continue  # the file is right; the machine, other files or inner tasks are not
        with pytest.raises(ValueError, match=r"must|unknown") as first:
            draft_spec(spec)
        with pytest.raises(ValueError, match=r"must|unknown") as whole:
            _checked(spec, registries.resolve)
        assert str(whole.value) == str(first.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [2**70]}, f"seeds[0] must be less than {2**63}, got {2**70}. Change it."),
        (
            {"space": {"batch_size": [0], "num_steps": [3], "learning_rate": [0.1]}},
            "space.batch_size[0] must be greater than or equal to 1, got 0. Change it.",
        ),
        (
            {"space": {"points": [[0, 1, 0.1]]}},
            "space.points[0][0] must be greater than or equal to 1, got 0. Change it.",
        ),
        (
            {"cluster": {"workers_per_trial": 0}},
            "cluster.workers_per_trial must be greater than or equal to 1, got 0. Change it.",
        ),
        ({"privacy": None}, "privacy must be a mapping, got null. Change it."),
    ],
)
def test_one_mistake_is_one_line(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must") as error:
        draft_spec(small_spec(tmp_path, **changes))
    assert str(error.value) == message


def test_an_empty_file_is_not_called_by_pythons_word(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("")
    with pytest.raises(ValueError, match="must be a mapping of sections, got nothing"):
        load_spec(tmp_path / "spec.yaml")


def test_a_grid_of_a_million_configurations_is_refused(tmp_path: Path) -> None:
    axis = list(range(1, 101))
    space = {"batch_size": axis, "num_steps": axis, "learning_rate": [k / 100 for k in axis]}
    with pytest.raises(
        ValueError, match="space must have at most 100,000 configurations, got 1,000,000"
    ):
        load_spec(small_spec(tmp_path, space=space))
    ten_million = {"batch_size": [32], "num_steps": [10_000_000], "learning_rate": [0.01]}
    assert load_spec(small_spec(tmp_path, space=ten_million)).space.num_steps == (10_000_000,)
