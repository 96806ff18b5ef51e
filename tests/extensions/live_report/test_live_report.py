"""The page of a running sweep: who gets it, when it changes, and that an open one follows."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raydp.extensions.live_report.server import (
    HOST,
    LivePage,
    SweepWatcher,
    open_server,
)
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.summary import RunCounts
from tests.chromium import OpenPage
from tests.conftest import Answer

PAGE = (
    b'<!doctype html><meta http-equiv="Content-Security-Policy" content="default-src '
    b"'none'; script-src 'unsafe-inline'\"><p>%s</p>"
)


@pytest.fixture
def served() -> Iterator[tuple[LivePage, int]]:
    page = LivePage()
    page.show(PAGE % b"one")
    with open_server(page, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield page, server.server_port
        server.shutdown()


def asked(port: int, path: str, host: str = HOST) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port)
    connection.request("GET", path, headers={"Host": f"{host}:{port}"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_only_who_knows_the_path_gets_the_page(served: tuple[LivePage, int]) -> None:
    page, port = served
    assert asked(port, f"/{page.token}/")[1].startswith(PAGE[:30])
    assert asked(port, f"/{page.token}/version") == (200, b"1")
    for path in ("/", "/version", f"/{page.token}", f"/{page.token}x/", f"/{page.token}/../x"):
        assert asked(port, path)[0] == 404
    assert asked(port, f"/{page.token}/", host="another.site")[0] == 404


def test_a_port_that_is_taken_is_refused(served: tuple[LivePage, int]) -> None:
    with pytest.raises(ValueError, match="--port must be a free port"):
        open_server(LivePage(), served[1])


@pytest.mark.parametrize("port", [-5, 65536, 99999])
def test_a_port_that_no_machine_has_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match=f"--port must be a free port up to 65535, got {port} "):
        open_server(LivePage(), port)


def test_the_report_is_made_again_only_when_a_run_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = [RunCounts(runs=3, finished=0, failed=0, stopped=0, pending=3)]
    monkeypatch.setattr("raydp.extensions.live_report.server.counts", lambda folder: ended[-1])
    made: list[int] = []

    def make(path: Path) -> None:
        if not ended[-1].finished:
            raise ValueError("it needs <2> runs")
        made.append(ended[-1].finished)
        path.write_text(f"{made[-1]} runs")

    watcher = SweepWatcher(folder=SweepFolder(path=tmp_path), make=make)
    waiting = watcher.look()
    assert waiting is not None
    assert b"3 pending. it needs &lt;2&gt; runs" in waiting
    assert watcher.look() is None
    ended.append(RunCounts(runs=3, finished=2, failed=0, stopped=0, pending=1))
    assert watcher.look() == b"2 runs"
    assert watcher.look() is None
    assert made == [2]


@pytest.mark.parametrize("options", [["b"], ["--json"], ["--by", "epsilon"]])
def test_a_watched_report_is_of_one_sweep(raydp: Callable[..., Answer], options: list[str]) -> None:
    answer = raydp("report", "a", "--watch", *options)
    assert answer.code == 2
    assert "--watch must be given with one sweep" in answer.err


@pytest.mark.browser
def test_an_open_page_follows_the_sweep(served: tuple[LivePage, int]) -> None:
    page, port = served
    with OpenPage(f"http://{HOST}:{port}/{page.token}/") as opened:
        assert opened.evaluate("document.querySelector('p').textContent") == "one"
        page.show(PAGE % b"two")
        opened.wait_for("document.querySelector('p')?.textContent === 'two'")
        assert not opened.complaints
