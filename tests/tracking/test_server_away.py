"""A server that goes away while a sweep is written to it: nothing is lost or written twice, and
nobody waits long."""

import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests
import yaml

from raydp.extensions.private_selection import release as selection
from raydp.sweep.api import Sweep
from raydp.sweep.engine import recorder
from raydp.sweep.engine.committer import Committer
from raydp.tracking import NotDeliveredError, find_models
from raydp.tracking.tracker import Pauses
from tests.builders.specs import small_spec
from tests.sweep.without_ray import train_without_ray

from .conftest import inventory, open_tracker

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("real_server")]


class Faulty:
    """Passes requests on to a server; the answer to one of them is lost, after the server did what
    it says."""

    def __init__(self, target: str) -> None:
        self.seen, self.lost = 0, None
        outer, session = self, requests.Session()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                kept = {
                    k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")
                }
                said = session.request(
                    self.command, target + self.path, data=body, headers=kept, timeout=60
                )
                outer.seen += 1
                if outer.seen == outer.lost:
                    self.close_connection = True
                    return
                self.send_response(said.status_code)
                self.send_header("Content-Length", str(len(said.content)))
                self.send_header(
                    "Content-Type", said.headers.get("Content-Type", "application/json")
                )
                self.end_headers()
                self.wfile.write(said.content)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815

            def log_message(self, *args) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.uri = f"http://127.0.0.1:{self.http.server_port}"


def test_an_answer_that_is_lost_does_not_make_anything_twice(real_server, record):
    """Every request of a trial in turn takes effect and its answer is lost; then the trial is
    written again."""
    name = "lost-answers"
    proxy = Faulty(real_server.uri)
    tracker = open_tracker(proxy.uri, name, name)
    before = proxy.seen
    tracker.log_trial(record("run-0"))
    requests_of_a_trial, failed = proxy.seen - before, 0
    assert requests_of_a_trial > 10
    for number in range(1, requests_of_a_trial + 1):
        trial = record(f"run-{number}", num_steps=number)
        proxy.seen, proxy.lost = 0, number
        began = time.monotonic()
        try:
            tracker.log_trial(trial)
        except NotDeliveredError:
            failed += 1
        assert time.monotonic() - began < 30, "an attempt ends soon"
        proxy.lost = None
        tracker.log_trial(trial)
    assert failed > requests_of_a_trial / 2, (
        "MLflow repeats uploads of files by itself, which is harmless"
    )
    count = requests_of_a_trial + 1
    runs, models, versions = inventory(tracker, name)
    proxy.http.shutdown()
    assert (len(runs), len(models), len(versions)) == (count, count, count)
    assert len({run.data.tags["raydp.run_id"] for run in runs}) == count
    assert (
        find_models(real_server.uri, registered_model=name, max_epsilon=8, verify=True).attrs[
            "left_out"
        ]
        == {}
    )


def test_a_dead_server_is_noticed_at_once(real_server, record):
    """Also in mid-trial, and what waits does not ask again before a pause has passed."""
    name = "dead"
    tracker = open_tracker(real_server.uri, name, name)
    real_server.kill_mlflow()
    began = time.monotonic()
    with pytest.raises(NotDeliveredError):
        tracker.log_trial(record())
    with pytest.raises(NotDeliveredError, match="must be the address of a running MLflow server"):
        open_tracker(real_server.uri, name, name)
    assert time.monotonic() - began < 30, "MLflow's own retries take minutes"
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ
    pauses = Pauses()
    assert pauses.over()
    pauses.failed()
    assert not pauses.over()
    pauses.succeeded()
    assert pauses.over()
    real_server.start(workers=1)
    tracker.log_trial(record())
    assert [len(found) for found in inventory(tracker, name)] == [1, 1, 1]


@pytest.fixture(autouse=True)
def _started(real_server):
    real_server.start(workers=1)


@pytest.fixture
def sweep(real_server, tmp_path, monkeypatch):
    """A sweep of four runs that writes to the server, and its spec's file.

    It trains in this process: who trains makes no difference to the tracking.
    """
    train_without_ray(monkeypatch)

    def make(name: str, **changes) -> Sweep:
        tracking = {"uri": real_server.uri, "experiment": name, "registered_model": name}
        spec = small_spec(tmp_path, name=name, tracking=tracking, **{"seeds": [0, 1], **changes})
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
        return Sweep(tmp_path / "spec.yaml")

    return make


def kill_after_the_first(monkeypatch, server, then=lambda: None) -> None:
    """MLflow dies as soon as it has one run."""
    commit, calls = Committer.commit, []

    def killing(self, run_id):
        commit(self, run_id)
        calls.append(run_id)
        if len(calls) == 1:
            server.kill_mlflow()
            then()

    monkeypatch.setattr(Committer, "commit", killing)


def has_four(real_server, name: str) -> None:
    """One run, one model and one version of each, valid, with the aliases where they belong."""
    runs, models, versions = inventory(open_tracker(real_server.uri, name, name), name)
    assert (len(runs), len(models), len(versions)) == (4, 4, 4)
    assert len({run.data.tags["raydp.run_id"] for run in runs}) == 4
    found = find_models(real_server.uri, registered_model=name, max_epsilon=8, verify=True)
    assert (len(found), found.attrs["left_out"]) == (4, {})
    assert sorted(alias for aliases in found.aliases for alias in aliases) == [
        "best-utility",
        "privacy-preferred",
    ]


def test_down_for_good_then_delivered_by_a_resume_that_is_killed(
    real_server, sweep, monkeypatch, tmp_path
):
    name = "down-for-good"
    with monkeypatch.context() as patch:
        kill_after_the_first(patch, real_server)
        patch.setattr(recorder, "PATIENCE_SECONDS", 1.0)
        result = sweep(name).run()
    assert (result.counts.finished, result.selected, result.interrupted) == (4, None, False)
    assert "MLflow has not got 3 of 4 runs" in result.reason
    assert "`raydp sweep SPEC --resume` delivers what is missing" in result.reason
    assert len(list(result.folder.glob("trials/*/result.json"))) == 5  # with the base model's
    assert (result.folder / "points.csv").is_file()

    real_server.start(workers=1)
    command = [sys.executable, "-m", "raydp.cli.main", "sweep", "spec.yaml", "--resume"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)  # fmt: skip
    deadline = time.monotonic() + 200
    while len(list(result.folder.glob("trials/*/tracked.json"))) < 2 and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

    result = sweep(name).run(resume=True)
    assert result.selected is not None
    has_four(real_server, name)
    assert sweep(name).run(resume=True).selected is not None
    has_four(real_server, name)


@pytest.mark.daily("raydp/tracking")
def test_down_for_a_while(real_server, sweep, monkeypatch, caplog):
    """The server is back while the sweep trains or waits at its end; the sweep itself sees it
    through."""
    name = "down-for-a-while"
    started = threading.Timer(6, real_server.start, [1])
    kill_after_the_first(monkeypatch, real_server, started.start)
    result = sweep(name).run()
    started.join()
    assert (result.counts.finished, result.reason) == (4, None)
    assert "MLflow is away, runs wait in" in caplog.text
    has_four(real_server, name)


@pytest.mark.daily("raydp/extensions/private_selection", "raydp/tracking")
def test_a_private_selection_is_released_later(real_server, sweep, monkeypatch):
    """MLflow is opened only at the end of one; where it is away then, the choice stands and a
    resume releases it."""
    name = "private-choice"
    privacy = {"target_epsilon": 8, "accountant": "rdp", "noise_key": "test", "tuning": "private_selection",
               "num_runs": {"mean": 3}}  # fmt: skip
    decide = selection.decide

    def dying(folder):
        real_server.kill_mlflow()
        return decide(folder)

    with monkeypatch.context() as patch:
        patch.setattr(selection, "decide", dying)
        result = sweep(name, privacy=privacy, seeds=[0], select={"score": "vmr_exact"}).run()
    assert result.selected is None
    assert "the choice is made, and was not recorded in MLflow" in result.reason
    chosen = (result.folder / "selected.json").read_text()
    real_server.start(workers=1)
    result = sweep(name, privacy=privacy, seeds=[0], select={"score": "vmr_exact"}).run(resume=True)
    assert result.selected is not None
    assert (result.folder / "selected.json").read_text() == chosen
    assert len(find_models(real_server.uri, registered_model=name, max_epsilon=8, verify=True)) == 1
