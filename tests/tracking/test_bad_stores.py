"""A store that cannot be used is one sentence, and one bad value in a registry stops no look-up."""

import http.server
import sqlite3
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from raydp.search_spaces import Configuration
from raydp.sweep.engine import recorder
from raydp.tracking import (
    MLflowTracker,
    NotDeliveredError,
    UnreachableError,
    address,
    check_store,
    find_models,
    set_alarms,
    show_model,
)
from raydp.tracking.delivery import delivering

from .conftest import open_tracker


@contextmanager
def answering(status: int, body: bytes):
    """Run a server that gives one answer to every request, and return its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *parts):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, b"hello"), (200, b"[1]"), (200, b""), (404, b"<html>"), (405, b""), (501, b"")],
)
def test_a_server_that_is_no_mlflow(status, body):
    with answering(status, body) as uri:
        for use in (check_store, find_models, lambda at: MLflowTracker(at, "e", "m")):
            with pytest.raises(
                ValueError,
                match=r"tracking.uri must be the address of an MLflow server, got 127\.0",
            ):
                use(uri)


@pytest.mark.parametrize(
    ("status", "body"), [(401, b""), (302, b""), (200, b'{"experiments": []}'), (503, b"")]
)
def test_a_server_that_may_be_one_passes_the_first_check(status, body):
    with answering(status, body) as uri:
        check_store(uri)


def cut(database: Path) -> None:
    database.write_bytes(database.read_bytes()[:3000])


def overwrite(database: Path) -> None:
    content = bytearray(database.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    database.write_bytes(content)


def of_another_program(database: Path) -> None:
    database.unlink()
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE notes (text)")


@pytest.mark.parametrize("damage", [cut, overwrite, of_another_program], ids=lambda f: f.__name__)
def test_a_damaged_or_foreign_file(uri, damage):
    database = Path(uri.removeprefix("sqlite:///"))
    damage(database)
    before = database.read_bytes()
    for use in (
        find_models,
        lambda at: MLflowTracker(at, "e", "m"),
        lambda at: show_model("models:/m/1", tracking_uri=at),
    ):
        with pytest.raises(ValueError, match=r"^tracking\.uri must be .*, got .*\. \w.*\.$"):
            use(uri)
    assert database.read_bytes() == before, "nothing is written into it"


def garbage(database: Path) -> None:
    with database.open("r+b") as file:
        file.write(bytes(range(256)) * 400)


@pytest.mark.parametrize("damage", [cut, overwrite, garbage], ids=lambda f: f.__name__)
def test_a_store_that_is_damaged_while_runs_train_gets_them_once_it_is_restored(
    uri, record, damage
):
    tracker = open_tracker(uri)
    tracker.log_trial(record("run-0"))
    database = Path(uri.removeprefix("sqlite:///"))
    copy = database.read_bytes()
    damage(database)
    with pytest.raises(NotDeliveredError), delivering():
        tracker.log_trial(record("run-1"))
    restored = database.with_name(
        "restored.db"
    )  # a new file, as for a new process: SQLite keeps pages of the old one
    restored.write_bytes(copy)
    uri = f"sqlite:///{restored}"
    assert open_tracker(uri).log_trial(record("run-1")) == "models:/demo/2"
    assert sorted(find_models(uri, verify=True)["model_uri"]) == [
        "models:/demo/1",
        "models:/demo/2",
    ]


def test_a_locked_file(uri, monkeypatch):
    monkeypatch.setattr(address, "CONNECT_SECONDS", 0.1)
    with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(
            UnreachableError, match=r"tracking.uri must be a store that can be read, .*is locked"
        ):
            find_models(uri)
        with pytest.raises(NotDeliveredError, match="is locked"):
            MLflowTracker(uri, "e", "m")
    assert len(find_models(uri)) == 0


BAD = {
    "seed": ["1e30", "nan", "x", "9223372036854775808", ""],
    "batch_size": ["inf", "1.5"],
    "learning_rate": ["many"],
    "settings": ["{bad", "[]", "{}"],
    "max_grad_norm": ["0,5"],
}


def test_bad_values_are_null_and_counted(two_models):
    uri, params = two_models.store.uri, "logged_model_params"
    bad = two_models.store.client.get_model_version("demo", "1").tags["model_id"]
    for name, value in [(name, value) for name, values in BAD.items() for value in values]:
        with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS kept AS SELECT * FROM {params}")
            connection.execute(f"DELETE FROM {params}")
            connection.execute(f"INSERT INTO {params} SELECT * FROM kept")
            connection.execute(
                f"DELETE FROM {params} WHERE model_id = ? AND param_key = ?", (bad, name)
            )
            added = f"INSERT INTO {params} SELECT model_id, experiment_id, ?, ? FROM logged_models WHERE model_id = ?"
            connection.execute(added, (name, value, bad))
            connection.commit()
        table = find_models(uri)
        assert table.version.tolist() == [1, 2]
        assert table.attrs["unreadable"] == {name: 1}, value
        assert table[name].isna().tolist() == [True, name == "settings"]
    assert "max_grad_norm" not in show_model("models:/demo/1", tracking_uri=uri)


@pytest.fixture
def two_models(uri, record):
    tracker = open_tracker(uri)
    for number in range(2):
        tracker.log_trial(record(f"run-{number}", seed=number))
    return tracker


@pytest.mark.parametrize("kind", ["metric", "tag"])
def test_bad_metrics_and_tags(two_models, kind):
    tracker, client = two_models, two_models.store.client
    entry = client.get_model_version("demo", "1")
    if kind == "metric":
        for name in ("seed", "version", "certified", "aliases"):
            client.log_metric(entry.run_id, name, 1e30, model_id=entry.tags["model_id"])
    else:
        client.set_logged_model_tags(entry.tags["model_id"], {"epsilon": "{", "certified": "?"})
        client.set_model_version_tag("demo", "1", "promotion.20260101", "{bad")
        client.set_model_version_tag("demo", "1", "promotion.20260102", '{"alias": 1}')
    table = find_models(tracker.store.uri)
    assert table.seed.tolist() == [0, 1]
    assert table.attrs["unreadable"] == ({} if kind == "metric" else {"epsilon": 1})
    assert show_model("models:/demo/1", tracking_uri=tracker.store.uri)["promotions"] == []


@pytest.mark.parametrize("value", ["x", "1e3", ""])
def test_a_version_with_damaged_tags_stops_no_alarm(two_models, record, value):
    client, made = two_models.store.client, record()
    client.set_model_version_tag("demo", "1", "batch_size", value)
    configuration = Configuration(
        batch_size=made.batch_size, num_steps=made.num_steps, learning_rate=made.learning_rate
    )
    set_alarms("demo", "demo", {configuration: "refuted"}, tracking_uri=two_models.store.uri)
    assert "audit_alarm" in client.get_model_version("demo", "2").tags


def test_the_end_of_a_sweep_is_patient(monkeypatch):
    """As docs/registry.md says: it waits for a restart, and gives up after that."""
    now, calls = [0.0], []
    monkeypatch.setattr(recorder.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        recorder.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds)
    )

    def action():
        calls.append(now[0])
        if now[0] < back:
            raise ConnectionError("away")
        return "done"

    back = 80.0
    assert recorder.patiently(action) == "done"
    back, now[0] = 1e9, 0.0
    calls.clear()
    with pytest.raises(NotDeliveredError, match="away"):
        recorder.patiently(action)
    assert 85.0 <= calls[-1] <= 90.0
