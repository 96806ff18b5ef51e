"""What is told on stderr: records of the logger `raydp`, as many as the user wants.

Documents on stdout stay clean.

A whole verbose sweep is in tests/security/test_planted_secrets.py.
"""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from raydp.system.console_log import LOGGER, shown_records
from raydp.system.output import stderr
from tests.conftest import Answer
from tests.marks import slow_after

Command = Callable[..., Answer]
WriteSpec = Callable[..., Path]
RUN = ["--n", 3600, "--batch-size", 256, "--num-steps", 16]
CALIBRATE = [*RUN, "--epsilon", 8, "--delta", 1e-4, "--accountant", "rdp"]
TIME = r"^\d\d:\d\d:\d\d\.\d{3} "


@pytest.mark.slow
def test_the_library_configures_no_logger() -> None:
    code = """
import logging, raydp, raydp.sweep.api, raydp.sweep.driver, raydp.cli.main
ours = [logging.root, *(logging.getLogger(name) for name in logging.root.manager.loggerDict if name[:5] == "raydp")]
print([(each.name, each.handlers) for each in ours if each.handlers], logging.getLogger("raydp").level)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] 0\n"


def test_a_warning_is_told_as_one_and_debugging_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    before = list(logging.root.handlers)
    with shown_records():
        logging.getLogger("raydp.training").warning("sums [of %s] take longer", "gradients")
        logging.getLogger("raydp.sweep").info("MLflow answers again")
        logging.getLogger("raydp.system").debug("hidden")
        assert logging.root.handlers == before
    assert (
        capsys.readouterr().err
        == "warning: sums [of gradients] take longer\nMLflow answers again\n"
    )
    assert (LOGGER.handlers, LOGGER.level, stderr.quiet) == ([], logging.NOTSET, False)


@pytest.mark.extensions
@pytest.mark.parametrize("verbose", ["-v", "--verbose"])
@pytest.mark.parametrize("before", slow_after(1, [False, True]))
def test_verbose_names_actions_with_times(
    raydp: Command, verbose: str, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = [verbose, "calibrate"] if before else ["calibrate", verbose]
    answer = raydp(*words, *CALIBRATE, "--json")
    assert answer.json()["accountant"] == "rdp"
    (line,) = [line for line in answer.err.splitlines() if "calibrated" in line]
    assert re.match(
        TIME + r"privacy\.accounting\.calibration: σ = 0\.\d+ for q = 0\.07111, T = 16: ε = 7\.9",
        line,
    )
    assert raydp("calibrate", *CALIBRATE, "--json").err == ""


def test_verbose_names_entries_from_the_cache(
    raydp: Command, write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = write_spec()
    assert len(re.findall(r"T = \d: .*, calibrated", raydp("plan", spec, "-v").err)) == 2
    answer = raydp("plan", "-v", spec, "--json")
    assert len(answer.json()) == 2
    assert len(re.findall(TIME + r".*T = \d: .*, from the cache", answer.err, re.M)) == 2
    assert re.search(
        TIME + r"system\.output: reading data and checking the model: \d+\.\d\d s", answer.err, re.M
    )


@pytest.mark.parametrize(
    "words",
    [["-q", "models", "find"], ["models", "--quiet", "find"], ["models", "find", "-q"]],
    ids=" ".join,
)
def test_every_command_and_group_can_be_quiet(raydp: Command, words: list[str]) -> None:
    answer = raydp(*words, "--uri", "sqlite:///absent.db")
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert len(answer.err.splitlines()) == 1


def test_quiet_prints_results_and_errors_only(raydp: Command, write_spec: WriteSpec) -> None:
    spec = write_spec()
    loud, quiet = raydp("plan", spec), raydp("plan", spec, "-q")
    warnings = [line for line in loud.out.splitlines() if line.startswith("warning: ")]
    assert warnings
    assert quiet.out.splitlines() == [
        line for line in loud.out.splitlines() if line not in warnings
    ]
    assert quiet.err == ""
    wrong = raydp("plan", write_spec(seeds=[0, 0]), "-q")
    assert (wrong.code, wrong.out) == (2, "")
    assert "error: " in wrong.err
    assert "seeds must be distinct" in wrong.err


def test_quiet_and_verbose_exclude_each_other(raydp: Command, write_spec: WriteSpec) -> None:
    spec = write_spec()
    for words in (["-q", "plan", "-v"], ["plan", "-v", "-q"]):
        answer = raydp(*words, spec)
        assert (answer.code, answer.out) == (2, "")
        assert "error: --verbose must not go with --quiet, got both. Remove one." in answer.err
    assert raydp("plan", "-v", spec).code == 0, "nothing stays from the command before"
