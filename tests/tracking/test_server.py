"""The same over HTTP: an MLflow server on the loopback, with its own SQLite file and artifact
folder."""

import os
import re
import socket
import subprocess
import sys
import time

import pytest
import torch

from raydp.tracking import find_models, load_model, promote_model, show_model

from .conftest import open_tracker

START_SECONDS = 60


@pytest.fixture(scope="module")
def server(empty_store, tmp_path_factory):
    """The address of a running server; it is ended by its own process."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "mlflow.db").write_bytes(empty_store.read_bytes())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    stores = [
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        str(folder / "artifacts"),
    ]
    environment = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }  # its workers take seconds to end
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *stores], cwd=folder, env=environment, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except ConnectionRefusedError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.mark.slow
def test_a_server_works_like_a_file(server, record, adapter, base_folder, capfd):
    tracker = open_tracker(server)
    uri = tracker.log_trial(record())
    assert open_tracker(server).log_trial(record()) == uri == "models:/demo/1"
    tracker.log_trial(
        record("run-1", metrics={"utility_loss": 2.0, "score.vmr": 0.2}, batch_size=64)
    )
    tracker.fail_trial("run-2", "no memory")
    tracker.finish_sweep({"finished": 2})
    promote_model("models:/demo/1", "privacy-preferred", "lower score", tracking_uri=server)

    assert find_models(server, max_score=0.1).model_uri.tolist() == ["models:/demo/1"]
    assert find_models(server, batch_size=64, max_epsilon=8).run_id.tolist() == ["run-1"]
    assert find_models(server).aliases.tolist() == [("privacy-preferred",), ()]
    shown = show_model("models:/demo@privacy-preferred", tracking_uri=server)
    assert shown["privacy"]["accountant"] == "prv"
    loaded = load_model(
        "models:/demo@privacy-preferred", tracking_uri=server, base=str(base_folder)
    )
    tokens = torch.arange(6)[None]
    with torch.inference_mode():
        assert torch.equal(loaded(input_ids=tokens).logits, adapter[0](input_ids=tokens).logits)
    assert capfd.readouterr().out == "", "stdout is for the JSON of the command line"
    links = tracker.store.client.get_logged_model(shown["model_id"]).tags["mlflow.modelVersions"]
    assert re.sub(r"\s", "", links) == '[{"name":"demo","version":"1"}]'
