"""`raydp models push`: to a server that speaks the hub's protocol, and back by plain transformers
and peft."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from huggingface_hub import constants

from raydp.extensions.publishing.hub import push_model
from raydp.tracking import export_model, new_key
from raydp.tracking.sealing.folders import folder_problem
from raydp.tracking.sealing.seal import Seal
from raydp.tracking.sealing.trust import ALARM_TAG

from .hub_server import TOKEN, running_hub

CHECK = """
import sys
from huggingface_hub import snapshot_download
from transformers import AutoModelForCausalLM, AutoTokenizer
from peft import PeftModel

folder = snapshot_download("acme/mails")
base = AutoModelForCausalLM.from_pretrained(folder + "/base")
PeftModel.from_pretrained(base, folder)
AutoTokenizer.from_pretrained("acme/mails")
whole = AutoModelForCausalLM.from_pretrained("acme/merged")
print(type(whole).__name__)
"""


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub, and the environment in which processes use it."""
    with running_hub() as server:
        environment = {
            **os.environ, "HF_ENDPOINT": server.address, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
        }  # fmt: skip
        environment.pop("HF_HUB_OFFLINE", None)
        environment.pop("TRANSFORMERS_OFFLINE", None)
        yield server, environment


@pytest.fixture
def registered(tracker, record, base_folder, monkeypatch):
    monkeypatch.chdir(base_folder.parent)
    base = {**record().base, "name": base_folder.name}
    return tracker.log_trial(record(base=base)), tracker.store.uri


def push(model, store, *options, environment):
    command = [sys.executable, "-m", "raydp", "models", "push", model, "--uri", store, *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)


@pytest.mark.daily
def test_a_model_reaches_the_hub_and_comes_back(hub, registered, monkeypatch):
    server, environment = hub
    uri, store = registered
    done = push(uri, store, "--to", "hub:acme/mails", "--with-base", "--license", "apache-2.0", "--json",
                environment=environment)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["address"] == f"{server.address}/acme/mails/commit/{'c' * 40}"
    assert server.messages == ["demo/1 from raydp's registry"]
    mails = server.repositories["acme/mails"]
    assert mails["private"], "what a user did not ask to publish is private"
    assert {
        "README.md",
        "privacy.json",
        "seal.json",
        "adapter_model.safetensors",
        "base/model.safetensors",
    } <= set(mails["files"])
    _, head, text = mails["files"]["README.md"].decode().split("---\n", 2)
    assert yaml.safe_load(head) == {
        "library_name": "peft", "license": "apache-2.0", "pipeline_tag": "text-generation",
        "tags": ["differential-privacy", "raydp"],
        "differential_privacy": {
            "epsilon": 7.99, "delta": 1e-5, "unit": "example", "accountant": "prv", "certified": True,
        },
    }  # fmt: skip
    assert "score.vmr" not in text, "figures of private data leave only if they are asked for"
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    push_model(uri, "acme/merged", tracking_uri=store, merge=True, public=True, with_figures=True)
    assert not server.repositories["acme/merged"]["private"]
    readme = server.repositories["acme/merged"]["files"]["README.md"].decode()
    assert "| score.vmr | 0.01 | 0.002 |" in readme
    results = yaml.safe_load(readme.split("---\n")[1])["model-index"][0]["results"][0]
    assert {metric["type"]: metric["value"] for metric in results["metrics"]}["utility_loss"] == 2.5
    done = subprocess.run(
        [sys.executable, "-c", CHECK], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "LlamaForCausalLM\n"


def test_models_that_must_not_be_sent_are_refused(
    hub, registered, tracker, record, base_folder, monkeypatch
):
    server, _ = hub
    uri, store = registered
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(
        ValueError, match=r"--to must be hub:OWNER/NAME, got 'hub:mails'\. Name the owner too"
    ):
        push_model(uri, "mails", tracking_uri=store)
    server.repositories["acme/open"] = {"private": False, "files": {}}
    with pytest.raises(
        ValueError, match="--to must be a private repository, got 'acme/open', which is public"
    ):
        push_model(uri, "acme/open", tracking_uri=store)
    assert server.repositories["acme/open"]["files"] == {}
    base = {**record().base, "name": base_folder.name}
    reasons = {
        "epsilon": "inf",
        "certified": False,
        "not_certified_because": ["epsilon is infinite"],
    }
    open_model = tracker.log_trial(
        record("other", base=base, privacy={**record().privacy, **reasons})
    )
    with pytest.raises(
        ValueError,
        match=r"MODEL must have a certified guarantee to be sent, .*: epsilon is infinite",
    ):
        push_model(open_model, "acme/none", tracking_uri=store)
    tracker.store.client.set_model_version_tag("demo", "1", ALARM_TAG, "its audit found 9.2.")
    with pytest.raises(
        ValueError, match=r"MODEL must have a guarantee that holds .*: its audit found 9\.2"
    ):
        push_model(uri, "acme/none", tracking_uri=store)
    tracker.store.client.delete_model_version_tag("demo", "1", ALARM_TAG)
    assert "acme/none" not in server.repositories
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ValueError, match="Log in by `hf auth login`"):
        push_model(uri, "acme/mails", tracking_uri=store)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ValueError, match="Check the connection and HF_ENDPOINT"):
        push_model(uri, "acme/mails", tracking_uri=store)


def test_figures_are_written_only_on_demand(registered, tmp_path):
    uri, store = registered
    quiet = export_model(uri, tmp_path / "quiet", tracking_uri=store)
    assert "utility_loss" not in (quiet / "README.md").read_text()
    assert "license: unknown" in (quiet / "README.md").read_text()
    told = export_model(uri, tmp_path / "told", tracking_uri=store, with_figures=True)
    assert "| utility_loss | 2.5 |" in (told / "README.md").read_text()


@pytest.mark.slow
def test_an_export_is_signed_for_openssf(registered, tmp_path):
    """Verified by the command of the package model-signing, offline."""
    uri, store = registered
    key, public = tmp_path / "key.pem", tmp_path / "key.pub"
    private = ec.generate_private_key(ec.SECP256R1())
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(
        private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    options = {"tracking_uri": store, "openssf_key": key}
    key.chmod(0o644)
    with pytest.raises(ValueError, match="--openssf-key must be readable by its owner alone"):
        export_model(uri, tmp_path / "out", **options)
    key.chmod(0o600)
    new_key(tmp_path / "seals")
    with pytest.raises(ValueError, match="--openssf-key must hold a key on an elliptic curve"):
        export_model(uri, tmp_path / "out", tracking_uri=store, openssf_key=tmp_path / "seals")
    assert not (tmp_path / "out").exists()
    for merge in (False, True):
        folder = export_model(uri, tmp_path / f"out-{merge}", merge=merge, **options)
        own = Seal.read((folder / "seal.json").read_text())
        assert folder_problem(folder, own, None, exported=True) is None
        command = [sys.executable, "-m", "model_signing", "verify", "key", str(folder), "--public_key", str(public),
                   "--signature", str(folder / "model.sig")]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stdout) == (0, "Verification succeeded\n"), done.stderr
    (folder / "README.md").write_text("no guarantee at all")
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert "README.md" in done.stderr
