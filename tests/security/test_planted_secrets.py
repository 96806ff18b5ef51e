"""Nothing of the data, the key or the credentials in anything that a sweep leaves or says
(SECURITY.md)."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders.specs import small_spec
from tests.conftest import Answer
from tests.security.planted import CREDENTIALS, SECRETS, TOO_SHORT, contents, forms, found_in

NOT_SEARCHED = {
    "mails.jsonl": "the private data",
    "secrets.jsonl": "the planted secrets",
    "sweep.key": "the noise key's own file, mode 0600",
}
"""Beside weights (*.safetensors), which were trained on the data: that they give little away is
what ε is for."""
WANTED = {name: value.encode() for name, value in SECRETS.items() if name not in TOO_SHORT}
WANTED |= {"prompt and continuation": (SECRETS["prompt"] + SECRETS["continuation"]).encode()}
WANTED |= {name: value.encode() for name, value in CREDENTIALS.items()}


def data_files(folder: Path) -> dict[str, Any]:
    """A task of its own whose text holds what is planted."""
    text = SECRETS["prompt"] + SECRETS["continuation"]
    told = f": {text} ({SECRETS['attribute']})"
    rows = [
        {
            "body": f"note {k} on the budget of project {k % 7}{told if k % 3 else ''}",
            "who": f"user {k % 40}",
        }
        for k in range(300)
    ]
    for row in rows[:20]:
        row["who"] = SECRETS["user"]
    (folder / "mails.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    secret = {"prompt": SECRETS["prompt"], "continuation": SECRETS["continuation"]}
    (folder / "secrets.jsonl").write_text(json.dumps(secret) + "\n")
    path, secrets = str(folder / "mails.jsonl"), str(folder / "secrets.jsonl")
    return {
        "name": "text",
        "path": path,
        "column": "body",
        "secrets": secrets,
        "max_length": 64,
        "user_column": "who",
    }


class Swept:
    """A sweep with everything planted: its folder, what it printed, and the folder of Ray's
    logs."""

    def __init__(self, folder: Path) -> None:
        # Ray's sockets want a short path.
        self.ray = Path(tempfile.mkdtemp(prefix="rs-"))
        self.folder = folder
        spec = small_spec(
            folder,
            task=data_files(folder),
            space={"batch_size": [16], "num_steps": [2], "learning_rate": [0.01]},
            privacy={"target_epsilon": 8, "delta_exponent": 1.1, "accountant": "rdp"},
            scores=[{"name": "vmr_exact"}, {"name": "vmr_text"}],
            cluster={"max_concurrent_trials": 1},
        )
        (folder / "spec.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
        variables = {**os.environ, **CREDENTIALS, "RAY_AUTH_MODE": "token", "TMPDIR": str(self.ray)}
        # says as much as it can
        command = [sys.executable, "-m", "raydp.cli.main", "-v", "sweep", "spec.yaml"]
        self.done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, check=False, timeout=500
        )
        (folder / "stdout.txt").write_bytes(self.done.stdout)
        (folder / "stderr.txt").write_bytes(self.done.stderr)
        assert self.done.returncode == 0, self.done.stderr.decode()

    @property
    def files(self) -> list[Path]:
        """Everything that is left, but what is planted itself and the weights."""
        left = [
            path for root in (self.folder, self.ray) for path in root.rglob("*") if path.is_file()
        ]
        return [
            p
            for p in left
            if p.name not in NOT_SEARCHED and p.suffix != ".safetensors" and not p.is_symlink()
        ]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swept]:
    done = Swept(tmp_path_factory.mktemp("planted"))
    yield done
    shutil.rmtree(done.ray, ignore_errors=True)


@pytest.mark.slow
def test_the_sweep_leaves_files_of_every_searched_kind(swept: Swept) -> None:
    left = {path.name for path in swept.files}
    assert {"mlflow.db", "report.html", "stdout.txt", "plan.json", "result.json", "MLmodel"} <= left
    assert any(path.is_relative_to(swept.ray) and "logs" in path.parts for path in swept.files), (
        "Ray's logs"
    )
    assert any(path.suffix == ".parquet" for path in swept.files)


@pytest.mark.slow
def test_a_verbose_sweep_logs_its_actions_with_times(swept: Swept) -> None:
    """So the search sees the records of all levels.

    A quiet sweep is in tests/sweep/test_adaptive.py.
    """
    said = swept.done.stderr.decode()
    for told in (
        r"sweep\.engine\.slots: slot 0 starts a worker group for at most \d+ runs",
        r"sweep\.engine\.committer: committed run [0-9a-f]{16}: finished, attempt 1",
        r"sweep\.engine\.recorder: MLflow has run [0-9a-f]{16} \(models:/small/\d\)",
        r"system\.output: loading the base model: \d+\.\d\d s",
    ):
        assert re.search(r"^\d\d:\d\d:\d\d\.\d{3} " + told, said, re.M), told


@pytest.mark.slow
def test_no_secret_and_no_credential_is_in_anything(swept: Swept) -> None:
    assert found_in(swept.files, WANTED) == []


@pytest.mark.slow
def test_the_noise_key_is_in_its_own_file_only(swept: Swept) -> None:
    (key,) = swept.folder.rglob("sweep.key")
    assert key.stat().st_mode & 0o777 == 0o600
    raw = key.read_bytes()
    wanted = {"the key's file": raw.strip()}
    try:
        wanted["the key"] = bytes.fromhex(raw.decode().strip())
    except ValueError:
        wanted["the key"] = raw
    assert found_in(swept.files, wanted) == []


def test_the_search_finds_planted_bytes_in_every_encoding(tmp_path: Path) -> None:
    import base64
    import gzip

    import pandas as pd

    secret = b"xylographic puppetry"
    (tmp_path / "plain").write_bytes(b"..." + secret)
    (tmp_path / "hex").write_bytes(secret.hex().encode())
    for shift in range(3):
        (tmp_path / f"base64-{shift}").write_bytes(
            base64.b64encode(b"abc"[:shift] + secret + b"end")
        )
    (tmp_path / "zipped").write_bytes(gzip.compress(secret))
    pd.DataFrame({"a": [secret.decode()] * 3}).to_parquet(tmp_path / "table", compression="gzip")
    files = sorted(tmp_path.iterdir())
    assert len(found_in(files, {"it": secret})) >= len(files)
    assert all(any(form in c for c in contents(f) for form in forms(secret)) for f in files)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".txt.gz"])
def test_a_malformed_row_is_named_and_not_shown(
    suffix: str, raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    task = data_files(tmp_path)
    path = tmp_path / f"broken{suffix}"
    line = SECRETS["prompt"] + SECRETS["continuation"]
    broken = {
        ".jsonl": f'{{"body": "a"}}\n{{"body": "{line}\n',
        ".csv": f'body\n"{line}\n',
        ".txt.gz": line,
    }[suffix]
    path.write_text(broken)
    spec = small_spec(tmp_path, task={**task, "path": str(path)})
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    answer = raydp("plan", tmp_path / "spec.yaml")
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert path.name in "".join(answer.err.split("\n"))
    assert not any(
        secret in answer.out + answer.err
        for name, secret in SECRETS.items()
        if name not in TOO_SHORT
    )


PASSWORD = "planted-pw-Zk4Qx"


def addresses() -> list[str]:
    """Of a server that does not answer, with a password; and malformed ones."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        f"http://bob:{PASSWORD}@127.0.0.1:{port}",
        f"https://bob:{PASSWORD}@127.0.0.1:99999999",
        f"ftp://bob:{PASSWORD}@127.0.0.1",
        f"http://bob:{PASSWORD}@[127.0.0.1",
        f"postgresql://bob:{PASSWORD}@127.0.0.1/x",
    ]


@pytest.mark.parametrize(
    "address", addresses(), ids=["refused", "port", "scheme", "malformed", "database"]
)
def test_a_servers_password_is_in_no_message(
    address: str, raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    tracking = {"uri": address, "experiment": "e", "registered_model": "m"}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(small_spec(tmp_path, tracking=tracking)))
    for command in (
        ["plan", "spec.yaml"],
        ["sweep", "spec.yaml"],
        ["models", "find", "--uri", address],
    ):
        answer = raydp(*command)
        assert answer.code == 2
        assert "Traceback" not in answer.err
        assert PASSWORD not in answer.out + answer.err
        assert "MLFLOW_TRACKING_PASSWORD" in answer.err or "malformed" in answer.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("query", ["secret_key=K", "Client_Secret=K", "sig=K", "SAS_TOKEN=K"])
def test_credentials_in_the_address_of_a_store_are_not_repeated(query: str, tmp_path: Path) -> None:
    from raydp.system.locations import opened

    with pytest.raises(ValueError, match="must be a URI without credentials") as error:
        opened(f"s3://bucket/folder?{query.replace('=K', '=' + PASSWORD)}", "task.path")
    assert PASSWORD not in str(error.value)
