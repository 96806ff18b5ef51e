"""Ctrl-C ends a command that keeps nothing at once, also while a library computes.

No interruption is lost, and too many steps are refused.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raydp.cli.interrupts import stoppable
from raydp.privacy import PLDAccountant, PoissonGaussian
from raydp.privacy.accounting.pld_step import one_step
from tests.conftest import Answer

SECONDS = 20.0
"""Far below the minutes that the call would take, and far above a second of grace on a busy
machine."""
IN_C = """
import hashlib
from raydp.cli.interrupts import interruptible, stoppable
with interruptible(), stoppable("the test"):
    print("begun", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""


def test_a_long_command_says_what_it_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raydp.cli.interrupts.LONG_SECONDS", 0.05)
    with stoppable("the proposal"):
        time.sleep(0.5)
    said = "Still busy with the proposal after 0.05 s. Ctrl-C stops it.\n"
    assert capsys.readouterr().err == said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_call_that_python_cannot_interrupt(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", IN_C], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.5)
        process.send_signal(number)
        _, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 1
    assert err.strip() == "interrupted"


IN_CALLBACK = """
import os, signal, time, weakref
from raydp.cli.interrupts import interruptible

class Thing: ...

def interrupted(gone):
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):  # the signal's handler raises in here
        pass

signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a command that a shell started in the background
with interruptible():
    thing = Thing()
    ref = weakref.ref(thing, interrupted)
    del thing
    print("went on", flush=True)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_an_interruption_in_a_callback_of_the_garbage_collector_is_raised_again() -> None:
    """Python prints and forgets such an exception.

    A sweep went on after a SIGTERM that came there.
    """
    done = subprocess.run(
        [sys.executable, "-c", IN_CALLBACK], capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.stdout, done.stderr, done.returncode) == ("went on\ninterrupted\n", "", 0)


@pytest.mark.timeout(100)
def test_ten_million_steps_are_composed_in_seconds() -> None:
    """The library would decide on its way by a number of as many digits as there are steps."""
    event = PoissonGaussian(sample_rate=1e-3, noise_multiplier=20.0, num_steps=10_000_000)
    assert PLDAccountant(interval=1e-3).epsilon(event, 1e-5) < 10


@pytest.mark.parametrize("num_steps", [999, 1001, 20_000])
def test_few_losses_of_many_steps_compose_as_the_library_does_it(num_steps: int) -> None:
    event = PoissonGaussian(sample_rate=0.01, noise_multiplier=5.0, num_steps=num_steps)
    step = one_step(event, 1e-3)
    theirs = step.self_compose(num_steps).get_epsilon_for_delta(
        1e-6 - (128 + 4 * num_steps) * 2.0**-53
    )
    # The same sums: numpy's exp and the C library's may differ in the last bit, 2e-16 of a sum.
    assert PLDAccountant(interval=1e-3).epsilon(event, 1e-6) == pytest.approx(theirs, rel=1e-12)


@pytest.mark.extensions
@pytest.mark.parametrize(
    "command",
    [
        [
            "calibrate",
            "--n",
            1000,
            "--batch-size",
            10,
            "--num-steps",
            10**11,
            "--epsilon",
            8,
            "--delta",
            1e-3,
        ],
        [
            "profile",
            "--n",
            1000,
            "--batch-size",
            10,
            "--num-steps",
            10**11,
            "--noise-multiplier",
            1,
        ],
        ["calibrate", "--from", "rows.csv"],
        ["profile", "--from", "rows.csv"],
    ],
    ids=["calibrate", "profile", "calibrate --from", "profile --from"],
)
@pytest.mark.timeout(100)
def test_too_many_steps_are_refused(
    command: list[object], raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text(
        "n,batch_size,num_steps,epsilon,delta\n1000,10,100000000000,8,1e-3\n"
    )
    answer = raydp(*command, *(["--accountant", "pld"] if "--from" not in command else []))
    assert answer.code == 2
    got = (
        "another number" if "--from" in command else "100,000,000,000"
    )  # a message shows no cell of a file
    assert f"must be at most 10,000,000, got {got}." in " ".join(answer.err.split())
