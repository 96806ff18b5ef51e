"""MLflow before PostgreSQL and an S3 server, over real connections: it works like a file, and many
write at once."""

import multiprocessing
from contextlib import suppress
from pathlib import Path

import boto3
import pytest
import torch
from botocore.config import Config
from botocore.exceptions import ClientError
from mlflow import MlflowClient

from raydp.tracking import find_models, load_model, promote_model, set_alias, show_model
from raydp.tracking.runs import MLflowTracker

from .conftest import inventory, open_tracker
from .real_server import RealServer

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("real_server")]

WRITERS = 16
TRIALS = 3
STARTERS = 6
ROUNDS = 8


def test_it_works_like_a_file(real_server, record, adapter, base_folder, tmp_path):
    tracker = open_tracker(real_server.uri, "like-a-file", "like-a-file")
    uri = tracker.log_trial(record())
    assert open_tracker(real_server.uri, "like-a-file", "like-a-file").log_trial(record()) == uri
    tracker.log_trial(
        record("run-1", metrics={"utility_loss": 2.0, "score.vmr": 0.2}, batch_size=64)
    )
    tracker.fail_trial("run-2", "no memory")
    tracker.finish_sweep({"finished": 2})
    promote_model(uri, "privacy-preferred", "lower score", tracking_uri=real_server.uri)
    mine = {"registered_model": "like-a-file"}
    assert find_models(real_server.uri, where=["score.vmr < 0.1"], **mine).model_uri.tolist() == [
        uri
    ]
    assert find_models(real_server.uri, alias="privacy-preferred", **mine).model_uri.tolist() == [
        uri
    ]
    loaded = load_model(uri, tracking_uri=real_server.uri, base=str(base_folder))
    tokens = torch.arange(6)[None]
    with torch.inference_mode():
        assert torch.equal(loaded(input_ids=tokens).logits, adapter[0](input_ids=tokens).logits)
    model_id = show_model(uri, tracking_uri=real_server.uri, verify=True)["model_id"]
    stored = [
        p.relative_to(real_server.objects()).as_posix()
        for p in real_server.objects().rglob("*")
        if p.is_file()
    ]
    assert any(
        model_id in name and name.endswith("adapter_model.safetensors") for name in stored
    ), "not in the S3 server"


def s3(server, key=None, word=None):
    """A client of the S3 server, with its own key or another."""
    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{server.ports[2]}",
        aws_access_key_id=key or server.secret("s3_key_id"),
        aws_secret_access_key=word or server.secret("s3_secret_key"),
        region_name="us-east-1",
        config=Config(retries={"max_attempts": 1}),
    )


def test_the_s3_server_takes_signed_requests_only(real_server):
    known, secret = real_server.secret("s3_key_id"), real_server.secret("s3_secret_key")
    for key, word, refused in [
        (known, secret, None),
        (known, "wrong", "SignatureDoesNotMatch"),
        ("wrong", secret, "InvalidAccessKeyId"),
    ]:
        client = s3(real_server, key, word)
        if refused is None:
            assert client.list_objects_v2(Bucket="mlflow")["IsTruncated"] is False
        else:
            with pytest.raises(ClientError) as error:
                client.list_objects_v2(Bucket="mlflow")
            assert error.value.response["Error"]["Code"] == refused


def test_no_password_is_in_a_log_or_an_argument(real_server):
    words = [
        p.read_text()
        for p in (real_server.folder / "secrets").iterdir()
        if p.name.startswith(("postgres_", "s3_"))
    ]
    assert len(words) == 4
    texts = [p.read_text(errors="replace") for p in (real_server.folder / "log").iterdir()]
    texts += _command_lines()
    assert any("rclone" in text for text in texts)
    for word in words:
        assert not any(word in text for text in texts)


def _command_lines() -> list[str]:
    """The command line of every process.

    A process may end between the listing and the reading of its file.
    """
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):
            lines.append(path.read_bytes().decode(errors="replace"))
    return lines


def test_the_script_names_the_mistake(tmp_path):
    server = RealServer(tmp_path / "none", (1, 2, 3))
    assert server.run("status").returncode == 1
    stopped = server.run("stop")
    assert (stopped.returncode, "FOLDER must be one that start made" in stopped.stderr) == (2, True)
    option = server.run("start", "--colour", "red")
    assert (option.returncode, "option must be --host" in option.stderr) == (2, True)


def _write(server: str, name: str, writer: int, trials) -> list[str]:
    tracker = open_tracker(server, name, name, f"sweep-{writer}")
    return [tracker.log_trial(trial) for trial in trials]


def test_sixteen_writers_lose_nothing(real_server, record):
    """Drivers that start at the same moment, with a new experiment and a new registered model."""
    name = "written-by-many"
    made = [
        [record(f"run-{w}-{t}", seed=w, num_steps=8 + t) for t in range(TRIALS)]
        for w in range(WRITERS)
    ]
    with multiprocessing.get_context("fork").Pool(WRITERS) as pool:
        calls = [(real_server.uri, name, writer, trials) for writer, trials in enumerate(made)]
        uris = [uri for written in pool.starmap(_write, calls, chunksize=1) for uri in written]
    count = WRITERS * TRIALS
    assert sorted(int(uri.rpartition("/")[2]) for uri in uris) == list(range(1, count + 1))
    found = find_models(real_server.uri, registered_model=name, max_epsilon=8)
    assert sorted(found.run_id) == sorted(trial.run_id for trials in made for trial in trials)
    assert found.attrs["left_out"] == {}
    runs, models, versions = inventory(open_tracker(real_server.uri, name, name), name)
    assert (len(runs), len(models), len(versions)) == (count, count, count)
    assert {run.info.status for run in runs} == {"FINISHED"}


def _start(server: str, name: str, writer: int, barrier) -> list[str]:
    tracker = MLflowTracker(server, name, name)
    runs = []
    for data in range(ROUNDS):
        barrier.wait(60)
        runs.append(
            tracker.sweep_run(
                f"{writer}-{data}", "mine", {"task": {"name": "text"}}, {"content_hash": data}
            )
        )
    return runs


def test_sweeps_on_the_same_data_start_at_the_same_moment(real_server):
    """MLflow looks for a data set and then makes it: the slower of two sweeps is refused, and asks
    again."""
    name = "same-data"
    with (
        multiprocessing.Manager() as manager,
        multiprocessing.get_context("fork").Pool(STARTERS) as pool,
    ):
        barrier = manager.Barrier(STARTERS)
        calls = [(real_server.uri, name, writer, barrier) for writer in range(STARTERS)]
        started = pool.starmap(_start, calls, chunksize=1)
    client = MlflowClient(real_server.uri)
    digests = [
        [d.dataset.digest for d in client.get_run(run).inputs.dataset_inputs]
        for runs in started
        for run in runs
    ]
    assert digests == [[str(data)] for _ in range(STARTERS) for data in range(ROUNDS)]


def test_data_outlive_a_restart(real_server, record, adapter, base_folder):
    uri = open_tracker(real_server.uri, "outlives", "outlives").log_trial(record())
    set_alias("outlives", "best-utility", 1, tracking_uri=real_server.uri)
    real_server.stop()
    assert real_server.run("status").returncode == 1
    real_server.start(workers=1)
    assert find_models(
        real_server.uri, alias="best-utility", registered_model="outlives"
    ).model_uri.tolist() == [uri]
    load_model(uri, tracking_uri=real_server.uri, base=str(base_folder))


def test_a_model_whose_files_are_gone_has_no_card(real_server, record):
    name = "without-files"
    uri = open_tracker(real_server.uri, name, name).log_trial(record())
    model_id = show_model(uri, tracking_uri=real_server.uri)["model_id"]
    client = s3(real_server)
    keys = [
        entry["Key"]
        for entry in client.list_objects_v2(Bucket="mlflow")["Contents"]
        if model_id in entry["Key"]
    ]
    assert len(keys) > 4
    for (
        key
    ) in keys:  # by the protocol: the server does not look for what is deleted behind its back
        client.delete_object(Bucket="mlflow", Key=key)
    shown = show_model(uri, tracking_uri=real_server.uri)
    assert (shown["card"]["problem"], "privacy" in shown) == (
        "files differ from the card's: privacy.json",
        True,
    )
    found = find_models(real_server.uri, registered_model=name, max_epsilon=8, verify=True)
    assert (len(found), found.attrs["left_out"]) == (0, {"its files are gone": 1})
    with pytest.raises(ValueError, match="its files are gone from"):
        load_model(uri, tracking_uri=real_server.uri)
