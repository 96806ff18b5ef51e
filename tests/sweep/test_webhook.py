"""The request at a sweep's end: what it tells, and that its failure changes nothing."""

from __future__ import annotations

import http.server
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydp import Sweep
from raydp.extensions.run_logs.webhook import address_of, announce
from raydp.search_spaces import Configuration
from raydp.sweep.ending.result import SweepResult
from raydp.sweep.store.disclosure import Disclosure
from raydp.sweep.store.summary import RunCounts, RunFailure
from tests.builders.specs import small_spec
from tests.conftest import Answer
from tests.sweep.without_ray import train_without_ray

SECRET_REASON = "ValueError: could not read 'Alice, 41'"
CONFIGURATION = Configuration(batch_size=8, num_steps=4, learning_rate=0.1)
COUNTS = RunCounts(
    runs=3,
    finished=1,
    failed=1,
    stopped=0,
    pending=1,
    failures=(
        RunFailure(configuration=CONFIGURATION, seed=0, run_id="ab12", reason=SECRET_REASON),
    ),
)
RESULT = SweepResult(
    folder=Path("runs/s"), counts=COUNTS, selected=None, best_utility=None, reason="none",
    report=None, interrupted=False,
)  # fmt: skip


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What a server at the address in $RAYDP_TEST_HOOK is told."""
    documents: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            documents.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("RAYDP_TEST_HOOK", f"http://127.0.0.1:{server.server_port}/hook")
        yield documents
        server.shutdown()


def test_an_end_is_told_without_reasons_of_failures(posted: list[dict[str, Any]]) -> None:
    announce("$RAYDP_TEST_HOOK", "s", Disclosure(), RESULT)
    announce("$RAYDP_TEST_HOOK", "s", Disclosure(), replace(RESULT, interrupted=True))
    announce("$RAYDP_TEST_HOOK", "s", Disclosure(), None)
    assert [document["state"] for document in posted] == ["finished", "interrupted", "failed"]
    assert posted[0]["text"] == (
        "raydp: the sweep s has finished; 3 runs, 1 finished, 1 failed, 0 stopped, 1 pending"
    )
    assert (posted[0]["runs"], posted[0]["selected"]) == (3, None)
    assert "Alice" not in json.dumps(posted)


def test_runs_that_may_not_be_shown_are_not_counted(posted: list[dict[str, Any]]) -> None:
    announce("$RAYDP_TEST_HOOK", "s", Disclosure(shows_runs=False), RESULT)
    assert posted == [
        {
            "text": "raydp: the sweep s has finished",
            "sweep": "s",
            "state": "finished",
            "selected": None,
        }
    ]


def test_a_server_that_is_away_is_a_warning_without_the_address(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RAYDP_TEST_HOOK", "http://127.0.0.1:9/token-of-a-channel")
    announce("$RAYDP_TEST_HOOK", "s", Disclosure(), RESULT)
    assert "the webhook did not take the end of the sweep: URLError" in caplog.text
    assert "token-of-a-channel" not in caplog.text


@pytest.fixture
def speaking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Iterable[bytes]], None]]:
    """Let a server at $RAYDP_TEST_HOOK send these bytes, whatever it is told."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak(parts: Iterable[bytes]) -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(65536)
                for part in parts:
                    connection.sendall(part)

        def start(parts: Iterable[bytes]) -> None:
            threading.Thread(target=speak, args=(parts,), daemon=True).start()

        port = server.getsockname()[1]
        monkeypatch.setenv("RAYDP_TEST_HOOK", f"http://127.0.0.1:{port}/token-of-a-channel")
        yield start


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "BadStatusLine"),
        # The system decides which of the two an answer of nothing is.
        (b"", "(RemoteDisconnected|ConnectionResetError)"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\n\r\n", "HTTPError 302"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "HTTPError 404"),
    ],
)
def test_a_server_that_takes_nothing_is_a_warning_without_the_address(
    speaking: Callable[[Iterable[bytes]], None],
    caplog: pytest.LogCaptureFixture,
    answer: bytes,
    reason: str,
) -> None:
    speaking([answer])
    announce("$RAYDP_TEST_HOOK", "s", Disclosure(), RESULT)
    assert re.search(f"the webhook did not take the end of the sweep: {reason}", caplog.text)
    assert "token-of-a-channel" not in caplog.text


def test_a_server_that_sends_a_byte_now_and_then_is_not_waited_for(
    speaking: Callable[[Iterable[bytes]], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("raydp.extensions.run_logs.webhook._SECONDS", 0.5)
    speaking(b"H" for _ in range(20) if not time.sleep(0.2))
    begun = time.monotonic()
    announce("$RAYDP_TEST_HOOK", "s", Disclosure(), RESULT)
    assert time.monotonic() - begun < 2
    assert "no answer within 0.5 s" in caplog.text


@pytest.mark.parametrize(
    "address",
    [
        "https://h/T000/SECRET x", "https://h/SECRET\x07", "https://h/SECRET\n", "https://h:abc/SECRET",
        "https://h:99999/SECRET", "https://h:0/SECRET", "https://[::1/SECRET", "https:///SECRET",
        "https://u:p@h/SECRET", "https://h/SECRET\u00fc", "https://h x/SECRET", "", "file:///SECRET",
    ],
)  # fmt: skip
def test_an_impossible_address_is_refused_without_being_repeated(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("RAYDP_TEST_HOOK", address)
    for webhook in ("$RAYDP_TEST_HOOK", address):
        with pytest.raises(ValueError, match=r"tracking\.webhook must be") as refused:
            address_of(webhook)
        assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize("address", ["https://h", "http://h:80/a@b?c=%20", "https://[::1]:5/x#y"])
def test_a_possible_address_is_taken(address: str) -> None:
    assert address_of(address) == address


@pytest.mark.parametrize("webhook", ["$RAYDP_NOT_SET", "ftp://a/b", "https://u:p@a/b", "file:///x"])
def test_an_address_that_cannot_be_told_is_refused_before_training(
    raydp: Callable[..., Answer], write_spec: Callable[..., Path], webhook: str
) -> None:
    answer = raydp("plan", write_spec(tracking={"webhook": webhook}))
    assert answer.code == 2
    assert "tracking.webhook must" in answer.err


@pytest.mark.slow
def test_a_sweep_tells_its_end_once(
    posted: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_without_ray(monkeypatch)
    spec = small_spec(tmp_path)
    spec["tracking"] |= {"webhook": "$RAYDP_TEST_HOOK"}
    result = Sweep(spec).run()
    assert [(d["sweep"], d["state"], d["finished"]) for d in posted] == [
        ("small", "finished", result.counts.finished)
    ]
