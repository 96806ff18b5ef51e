"""The code blocks of README.md and the pages fit the code: specs load, commands and options exist,
Python runs.

docs/extending.md's blocks are run by test_extending.py, and the notebooks by test_tutorials.py and
test_notebook.py. A block after the comment `<!-- excerpt -->` is left out.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import raydp
from raydp.cli.main import app
from raydp.extensions.study.document import KEY, LIMITS, Study
from raydp.spec.document import SweepSpec
from raydp.spec.reading import DEMO, load_spec
from raydp.tracking import export_model
from tests.builders.specs import small_spec
from tests.sweep.trained import TrainedSpec

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("deploy/**/*.md")),
]
BLOCK = re.compile(r"^(<!-- excerpt -->\n+)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}\S.*\n)+")
MENTIONED = re.compile(r"`raydp ([^`\n]+)`")
SHELL = ("sh", "bash")
ENTERED = re.compile(r"^\s*(?:\$ )?((?:\S*/)?raydp [a-z].*)$", re.MULTILINE)
"""A command that a block of output shows."""
FOLDERS = ("deploy/", "docs/", "tools/", "benchmarks/")


@dataclass(frozen=True)
class Block:
    """A block of code of a page; `form` is the word after the three backticks."""

    page: str
    line: int
    form: str
    text: str


@cache
def blocks() -> list[Block]:
    """Return every fenced or indented block that is not an excerpt."""
    found = []
    for page in PAGES:
        text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
        for match in BLOCK.finditer(text):
            if match[1] is None:
                found.append(
                    Block(name, text.count("\n", 0, match.start()) + 1, match[2], match[3])
                )
        fenceless = BLOCK.sub(lambda match: "\n" * match[0].count("\n"), text)
        for match in INDENTED.finditer(fenceless):
            found.append(
                Block(name, fenceless.count("\n", 0, match.start()) + 1, "indented", match[0])
            )
    return found


def of_form(*forms: str) -> list[Any]:
    return [
        pytest.param(block, id=f"{block.page}:{block.line}")
        for block in blocks()
        if block.form in forms
    ]


def test_every_fence_is_of_a_form_that_is_checked() -> None:
    assert {block.form for block in blocks()} <= {
        "yaml",
        "json",
        "python",
        "ini",
        "",
        "indented",
        *SHELL,
    }
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert len(re.findall(r"^ *(?:```|~~~)", text, re.MULTILINE)) == 2 * len(
            BLOCK.findall(text)
        ), page


@pytest.mark.parametrize("block", of_form("yaml"))
def test_a_spec_loads(block: Block) -> None:
    """A part of a spec replaces these sections of the demo's. Axes make it a study."""
    given = yaml.safe_load(block.text)
    assert set(given) <= {*SweepSpec.model_fields, KEY, LIMITS}
    required = {name for name, field in SweepSpec.model_fields.items() if field.is_required()}
    demo = yaml.safe_load(DEMO.read_text(encoding="utf-8"))
    if "scores" in given:
        demo["select"]["score"] = given["scores"][0]["name"]
    whole = given if required <= set(given) else {**demo, **given}
    Study.read(whole) if KEY in given else load_spec(whole)


@pytest.mark.parametrize("block", of_form("json"))
def test_json_is_json(block: Block) -> None:
    for line in block.text.splitlines() if block.text.count("\n{") else [block.text]:
        json.loads(line)


def simple_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command in the lines of a shell, which may go on after a
    backslash."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word and set(word) <= set("();<>|&"):
                yield words
                words = []
            else:
                words.append(word)


def raydp_commands(text: str) -> Iterator[list[str]]:
    """Yield the words after `raydp` of each command, also of one that another command runs
    elsewhere."""
    for words in simple_commands(text):
        for at, word in enumerate(words):
            before = words[at - 1] if at else "--"
            if " " in word:
                yield from raydp_commands(word)  # a quoted command, such as that of `ray exec`
            elif re.fullmatch(r"(?:\S*/)?raydp", word) and re.fullmatch(
                r"--|\w+=.*|\S+/raydp:\S+", before
            ):
                yield words[at + 1 :]
                break


@cache
def program() -> Any:
    return typer.main.get_command(app)


def parse(words: list[str], *, whole: bool = True) -> None:
    """Parse a command of raydp without running it.

    Args:
        words: the words after `raydp`.
        whole: whether every required argument must be there. If not, a word in place of a number is
            accepted, too.
    """
    command, context, name, left = program(), None, "raydp", list(words)
    try:
        while True:
            context = command.make_context(name, list(left), parent=context)
            if not hasattr(command, "commands"):
                return
            name, command, left = command.resolve_command(
                context, [*context._protected_args, *context.args]
            )
    except typer.Exit:
        return  # --version and --help
    except Exception as error:
        incomplete = type(error).__name__ in (
            "MissingParameter",
            "BadParameter",
        ) or "requires an argument" in str(error)
        if whole or not incomplete:
            raise AssertionError(
                f"raydp {' '.join(words)}: {getattr(error, 'message', error)}"
            ) from error


def first_form(usage: str) -> str:
    """Return a line that says how a command is used, with its optional parts and the first of each
    alternative."""
    return re.sub(r"[\[\]]|\s*\|\s*[\w-]+", "", usage)


@pytest.mark.parametrize("block", of_form(*SHELL, "indented"))
def test_commands_targets_and_files_exist(block: Block) -> None:
    usage = block.form == "indented" and "[" in block.text
    for words in raydp_commands(first_form(block.text) if usage else block.text):
        parse(words, whole=not usage)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in simple_commands(block.text):
        if words and words[0] == "make":
            targets = [word for word in words[1:] if "=" not in word]
            assert all(f"\n{target}:" in makefile for target in targets), words
        assert all(
            (ROOT / word).exists() for word in words if word.startswith(FOLDERS) and "." in word
        ), words


@pytest.mark.parametrize("block", of_form(""))
def test_commands_above_their_output_exist(block: Block) -> None:
    for command in ENTERED.findall(block.text):
        for words in raydp_commands(command):
            parse(words)


def test_commands_of_every_form_are_seen() -> None:
    seen = {
        form: sum(1 for b in blocks() if b.form == form for _ in raydp_commands(b.text))
        for form in ("sh", "indented")
    }
    assert seen["sh"] > 50
    assert seen["indented"] > 0
    quoted = "ray exec --tmux aws.yaml 'raydp sweep /data/sweep.yaml --resume > /data/sweep.log 2>&1'  # raydp no"
    assert list(raydp_commands(quoted)) == [["sweep", "/data/sweep.yaml", "--resume"]]
    for wrong in (
        ["swep"],
        ["sweep", "--resum"],
        ["status"],
        ["models", "fnd"],
        ["points", "demo", "more"],
    ):
        with pytest.raises(AssertionError, match="raydp"):
            parse(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_that_a_sentence_names_exist(page: Path) -> None:
    """They may lack arguments."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for command in MENTIONED.findall(text):
        if "COMMAND" not in command:
            parse(shlex.split(first_form(command)), whole=False)


def python_of(page: str) -> str:
    """The one Python block of a page."""
    (block,) = (block for block in blocks() if (block.page, block.form) == (page, "python"))
    return block.text


def test_every_python_block_is_run() -> None:
    here = {
        "README.md",
        "docs/commands.md",
        "docs/classification.md",
        "docs/registry.md",
        "docs/mechanisms/mf.md",
    }
    assert {block.page for block in blocks() if block.form == "python"} == {
        *here,
        "docs/extending.md",
    }


def test_the_weight_noise_is_as_documented() -> None:
    *before, last = python_of("docs/mechanisms/mf.md").strip().splitlines()
    code, _, comment = last.partition("  # ")
    names: dict[str, Any] = {}
    exec("\n".join(before), names)
    largest, rms = re.findall(r"(?:largest|rms) ([\d.]+)", comment)
    noise = eval(code, names)
    assert (f"{noise.largest:.2f}", f"{noise.rms:.2f}") == (largest, rms)


@pytest.fixture(scope="module")
def mails(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished sweep that the pages talk about."""
    folder = tmp_path_factory.mktemp("mails")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tracking = {
            "uri": "sqlite:///raydp.db",
            "experiment": "support",
            "registered_model": "support-mails",
        }
        scores = [{"name": "logprob"}, {"name": "vmr_exact"}]
        content = small_spec(
            folder, name="support-mails", storage="raydp_runs", tracking=tracking, scores=scores
        )
        Path("sweep.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
        TrainedSpec(load_spec("sweep.yaml"))
        raydp.Sweep("sweep.yaml").run(resume=True)
    return folder


@pytest.mark.daily("docs", "README.md")
class TestPythonRuns:
    @pytest.fixture(autouse=True)
    def _in_its_folder(self, mails: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The sweep has ended, so that running it is resuming it."""
        run = raydp.Sweep.run
        monkeypatch.chdir(mails)
        monkeypatch.setattr(raydp.Sweep, "run", lambda self: run(self, resume=True))

    @pytest.mark.parametrize("page", ["README.md", "docs/commands.md"])
    def test_of_a_sweep(self, page: str, capsys: pytest.CaptureFixture[str]) -> None:
        names: dict[str, Any] = {}
        exec(python_of(page), names)
        assert hasattr(names["model"], "generate")
        assert "(b=32, T=" in capsys.readouterr().out

    def test_of_a_classifier(self) -> None:
        """The embedded model stands in for the page's. It knows letters rather than words."""
        code = python_of("docs/classification.md").replace(
            "models:/letters", "models:/support-mails"
        )
        *before, call = ast.parse(
            code.replace('" complaint"', '"c"').replace('" praise"', '"p"')
        ).body
        assert isinstance(call, ast.Expr)
        names: dict[str, Any] = {}
        exec(ast.unparse(ast.Module(before, [])), names)
        (answer,) = eval(ast.unparse(call), names)
        assert set(answer) == {"complaint", "thanks"}
        assert sum(answer.values()) == pytest.approx(1)

    def test_of_an_export(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        uri = "models:/support-mails@privacy-preferred"
        export_model(uri, tmp_path / "adapter", tracking_uri="sqlite:///raydp.db", with_base=True)
        monkeypatch.chdir(tmp_path / "adapter")
        names: dict[str, Any] = {}
        exec(python_of("docs/registry.md"), names)
        assert names["model"].peft_config
