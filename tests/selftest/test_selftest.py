"""The whole self-test passes, and the command says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raydp.selftest.check_result import check
from raydp.selftest.checks.independence import DETAILS
from raydp.selftest.run import run_selftest
from raydp.spec.reading import load_spec
from tests.conftest import Answer

Command = Callable[..., Answer]


@pytest.mark.slow
def test_the_command_passes_and_answers_with_every_check(
    raydp: Command, as_read: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = run_selftest(None)
    monkeypatch.setattr("raydp.cli.show.selftest.run_selftest", lambda spec, progress: checks)
    answer = raydp("selftest")
    assert answer.code == 0
    as_read("selftest", answer.out)
    document = raydp("selftest", "--json").json()
    assert document["passed"] is True
    assert {"name", "passed", "figure", "bound", "detail"} == set(document["checks"][0])
    names = " ".join(c["name"] for c in document["checks"])
    subjects = ("LoRA", "soft prompt", "prefix", "without a rule", "GPT-2", "2 workers")
    for subject in ("clipped sum", "one record", "alone", "noise", "sampling", "audit", *subjects):
        assert subject in names


SCHEDULED = {
    "name": "dp_adam",
    "max_grad_norm": 0.1,
    "learning_rate_schedule": "cosine",
    "warmup_ratio": 0.2,
}
QUANTISED = {"name": "tiny", "quantization": "nf4", "adapter": {"r": 2, "lora_dropout": 0.1}}


@pytest.mark.slow
@pytest.mark.extensions
@pytest.mark.parametrize(
    "changes",
    [{}, {"method": SCHEDULED, "model": QUANTISED}],
    ids=["plain", "a schedule, dropout and four bits"],
)
def test_a_specs_own_task_model_and_method_are_checked(
    write_spec: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """The toys and the audit are those of the test above."""
    monkeypatch.setattr("raydp.selftest.run.toy_subjects", list)
    monkeypatch.setattr(
        "raydp.extensions.auditing.white_box.audit_check",
        lambda **_: check("audit", 3.0, 2.4, 4.0, "not run"),
    )
    said: list[str] = []
    checks = run_selftest(load_spec(write_spec(**changes)), said.append)
    own = [c for c in checks if "small: tiny" in c.name]
    own_four = "clipped sum, one record, alone as in company, one unit by itself"
    assert len(own) == 4 + len(DETAILS), f"{own_four}; the figures of the probe"
    assert all(c.passed for c in own)
    assert all(c.passed for c in checks), "also the noise of a method that steps with Adam"
    assert "sensitivity: small: tiny" in said


def test_the_checks_run_on_one_thread_and_say_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads that wait for products of a few numbers took three times as long as the checks."""
    threads, said = list[int](), list[str]()
    own = torch.get_num_threads()
    monkeypatch.setattr("raydp.selftest.run.toy_subjects", list)
    for name in (
        "adaptive",
        "cut",
        "draw",
        "noise",
        "sampling",
        "sweep",
        "accounting",
    ):
        monkeypatch.setattr(
            f"raydp.selftest.run.{name}_checks",
            lambda *_: threads.append(torch.get_num_threads()) or [],
        )
    further = SimpleNamespace(
        title="an audit",
        measure=lambda own: False,
        checks=lambda own, progress: progress(0.25) or [],
    )
    monkeypatch.setattr("raydp.selftest.run.names", lambda kind: ["further"])
    monkeypatch.setattr("raydp.selftest.run.resolve", lambda kind, name: further)
    monkeypatch.setattr("raydp.selftest.run.division_checks", lambda *_: [])
    torch.set_num_threads(2)
    try:
        assert run_selftest(None, said.append) == []
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(own)
    assert set(threads) == {1}
    assert said[-2:] == ["an audit", "an audit, 25%"]


def test_a_method_without_a_guarantee_is_bad_input(
    write_spec: Callable[..., Path], raydp: Command
) -> None:
    answer = raydp("selftest", write_spec(method={"name": "nonprivate"}))
    assert answer.code == 2
    assert "method.name must be a private method" in answer.err


def test_a_fault_fails_the_command_and_is_named(
    raydp: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = [
        check("noise", 1.0, 0.9, 1.1, "as it should be"),
        check("audit", 5.0, 2.4, 4.0, "too much"),
    ]
    monkeypatch.setattr("raydp.cli.show.selftest.run_selftest", lambda spec, progress: checks)
    answer = raydp("selftest")
    assert answer.code == 1
    assert answer.out.splitlines()[0].startswith(
        "1 of 2 checks failed: do not rely on an ε of this installation, "
    )
    assert answer.out.splitlines()[1] == "failed: audit: 5, must be 2.4 to 4 (too much)"


@pytest.mark.parametrize("verbose", [False, True])
def test_the_verdict_comes_first_then_the_rows_of_the_spec(
    raydp: Command, write_spec: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, verbose: bool
) -> None:
    names = [f"check {number}" for number in range(190)] + [
        "clipped sum (small: tiny)",
        "one record (small: tiny)",
    ]
    checks = [check(name, 1.0, 0.9, 1.1, "as it should be") for name in names]
    monkeypatch.setattr("raydp.cli.show.selftest.run_selftest", lambda spec, progress: checks)
    answer = raydp("selftest", write_spec(), *(["-v"] if verbose else []))
    lines = answer.out.splitlines()
    assert answer.code == 0
    assert lines[0].startswith("all 192 checks passed, ")
    assert sum("(small: tiny)" in line for line in lines[:6]) == 2
    assert len(lines) == 5 + (193 + 1 if verbose else 1) - 0
    assert ("check 7 " in answer.out) is verbose


def test_a_value_that_is_not_a_number_does_not_pass() -> None:
    assert not check("x", math.nan, 0, 1, "").passed
    assert check("x", 1, 0, 1, "").passed
