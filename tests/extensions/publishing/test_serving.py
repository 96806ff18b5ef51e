"""What was registered works elsewhere: transformers, peft, merged weights, MLflow's scoring server,
vLLM's layout."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
import torch
from peft import (
    AutoPeftModelForCausalLM,
    PeftModel,
    PrefixTuningConfig,
    PromptTuningConfig,
    get_peft_model,
)
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from raydp.tracking import export_model, load_model, new_key
from raydp.tracking.sealing.folders import folder_problem
from raydp.tracking.sealing.seal import Seal
from raydp.tracking.serving import _load_pyfunc
from tests.tracking.conftest import llama, open_tracker, save_base

pytestmark = pytest.mark.xdist_group("real_server")

TOKENS = torch.arange(12).reshape(2, 6)


def logits(model):
    with torch.inference_mode():
        return model.eval()(input_ids=TOKENS).logits


@pytest.fixture
def registered(tracker, record, base_folder, monkeypatch):
    """A LoRA model whose base is found by its recorded name from where the test runs."""
    monkeypatch.chdir(base_folder.parent)
    base = {**record().base, "name": base_folder.name}
    return tracker.log_trial(record(base=base)), tracker.store.uri


def test_an_adapter_loads_with_peft_alone(registered, adapter, tmp_path):
    folder = export_model(registered[0], tmp_path / "out", tracking_uri=registered[1])
    assert torch.equal(logits(AutoPeftModelForCausalLM.from_pretrained(folder)), logits(adapter[0]))
    plain = AutoModelForCausalLM.from_pretrained("tiny-llama")
    assert torch.equal(logits(PeftModel.from_pretrained(plain, folder)), logits(adapter[0]))


def test_merged_weights_load_with_transformers_alone(registered, adapter, tmp_path):
    folder = export_model(registered[0], tmp_path / "out", tracking_uri=registered[1], merge=True)
    merged = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)
    torch.testing.assert_close(
        logits(merged), logits(adapter[0]), rtol=0, atol=1e-4
    )  # fp32, other products
    assert not torch.allclose(
        logits(merged), logits(AutoModelForCausalLM.from_pretrained("tiny-llama")), atol=1e-2
    )
    assert AutoTokenizer.from_pretrained(folder)("w3 w5")["input_ids"] == [3, 5]
    assert {"privacy.json", "base.json", "seal.json", "MLmodel"} <= {
        p.name for p in folder.iterdir()
    }


def test_merged_weights_are_sealed_and_may_be_signed(registered, tmp_path):
    public = new_key(tmp_path / "key")
    folder = export_model(
        registered[0],
        tmp_path / "out",
        tracking_uri=registered[1],
        merge=True,
        signing_key=tmp_path / "key",
    )
    own = Seal.read((folder / "seal.json").read_text())
    assert folder_problem(folder, own, frozenset({public})) is None
    (folder / "config.json").write_text("{}")
    assert "config.json" in folder_problem(folder, own, frozenset({public}))


def test_an_export_names_no_path_and_holds_no_pickle(registered, base_folder, tmp_path):
    for merge in (False, True):
        folder = export_model(
            registered[0], tmp_path / f"out-{merge}", tracking_uri=registered[1], merge=merge
        )
        for path in (path for path in folder.rglob("*") if path.is_file()):
            assert str(base_folder.parent).encode() not in path.read_bytes(), path
            assert (
                path.suffix in ("", ".json", ".md", ".safetensors", ".jinja")
                or path.parent.name == "code"
            )
        key = "_name_or_path" if merge else "base_model_name_or_path"
        file = "config.json" if merge else "adapter_config.json"
        assert json.loads((folder / file).read_text()).get(key) in ("tiny-llama", None)


def test_a_full_model_is_exported_as_it_is(tracker, record, tmp_path):
    uri = tracker.log_trial(record(model_dir=save_base(tmp_path / "full", seed=5)))
    for merge in (False, True):
        folder = export_model(
            uri, tmp_path / f"out-{merge}", tracking_uri=tracker.store.uri, merge=merge
        )
        assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(folder)), logits(llama(5)))


def test_models_that_cannot_be_exported_are_refused_with_a_reason(
    registered, tracker, record, base_folder, tmp_path
):
    uri, store = registered
    base = {**record().base, "name": base_folder.name}
    for kind in (PromptTuningConfig, PrefixTuningConfig):
        config = kind(num_virtual_tokens=3, task_type="CAUSAL_LM")
        virtual = get_peft_model(AutoModelForCausalLM.from_pretrained(base_folder), config)
        virtual.save_pretrained(tmp_path / kind.__name__, save_embedding_layers=False)
        held = tracker.log_trial(
            record(kind.__name__, base=base, model_dir=tmp_path / kind.__name__)
        )
        with pytest.raises(
            ValueError,
            match=f"--merge must be for a LoRA or IA3 adapter, got .* {config.peft_type.value}",
        ):
            export_model(held, tmp_path / "out", tracking_uri=store, merge=True)
    with pytest.raises(ValueError, match="--output must be a new or empty folder"):
        export_model(uri, tmp_path, tracking_uri=store)
    with pytest.raises(ValueError, match="must go with --merge"):
        export_model(uri, tmp_path / "out", tracking_uri=store, dtype="float32")
    assert not (tmp_path / "out").exists()


def test_vllm_s_layout_of_a_lora_adapter(registered, tmp_path):
    """Contract only: vLLM itself is not installed here.

    What its loader (vllm/lora/peft_helper.py, lora_model.py) reads and refuses, on the exported
    folder.
    """
    folder = export_model(registered[0], tmp_path / "out", tracking_uri=registered[1])
    config = json.loads((folder / "adapter_config.json").read_text())
    assert isinstance(config["r"], int)
    assert config["r"] > 0
    assert isinstance(config["lora_alpha"], int | float)
    assert isinstance(config["target_modules"], list)
    assert (config["peft_type"], config["bias"]) == ("LORA", "none")
    assert not config.get("modules_to_save")
    assert not config.get("use_dora")
    assert not config.get("rank_pattern")
    with safe_open(folder / "adapter_model.safetensors", "pt") as weights:
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
    form = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<part>[AB])\.weight")
    parts = {}
    for name, shape in shapes.items():
        match = form.fullmatch(name)
        assert match, name
        assert match["module"].rsplit(".", 1)[1] in config["target_modules"]
        assert shape[0 if match["part"] == "A" else 1] == config["r"]
        parts.setdefault(match["module"], set()).add(match["part"])
    assert parts
    assert set(map(frozenset, parts.values())) == {frozenset("AB")}


def test_the_loader_of_the_scoring_server(registered, tmp_path):
    import pandas as pd

    uri, store = registered
    folder = export_model(uri, tmp_path / "out", tracking_uri=store)
    served, frame = _load_pyfunc(str(folder)), pd.DataFrame({"prompt": ["w3 w5", "w7"]})
    assert served.predict(frame, {"max_new_tokens": 4}) == [
        greedy(uri, store, prompt) for prompt in frame["prompt"]
    ]
    assert len(served.predict(frame, {"max_new_tokens": 2, "temperature": 1.5})) == 2
    with pytest.raises(
        ValueError, match="model_config must hold base, dtype, trusted_keys only, got pickle"
    ):
        _load_pyfunc(str(folder), {"pickle": "yes"})
    with pytest.raises(
        ValueError, match=r"MODEL must hold what its privacy card was made for, .*: not signed"
    ):
        _load_pyfunc(str(folder), {"trusted_keys": [new_key(tmp_path / "key")]})
    (folder / "privacy.json").write_text("{}")
    with pytest.raises(ValueError, match=r"files differ from the card's: privacy\.json"):
        _load_pyfunc(str(folder))


def greedy(uri, store, prompt, count=4):
    model, words = load_model(uri, tracking_uri=store), AutoTokenizer.from_pretrained("tiny-llama")
    tokens = torch.tensor([words(prompt)["input_ids"]])
    said = model.generate(
        input_ids=tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=count,
        do_sample=False,
    )
    return words.decode(said[0, tokens.shape[1] :], skip_special_tokens=True)


def serve(model: str, folder, environment):
    """MLflow's scoring server, until it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", model, "--env-manager", "local", "--host",
               "127.0.0.1", "--port", str(port)]  # fmt: skip
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    deadline = time.monotonic() + 200
    while True:
        try:
            requests.get(f"http://127.0.0.1:{port}/ping", timeout=5).raise_for_status()
            return process, f"http://127.0.0.1:{port}/invocations"
        except requests.RequestException:
            said = (folder / "serve.log").read_text()
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.5)


@pytest.mark.daily
@pytest.mark.daily("raydp/extensions/publishing")
@pytest.mark.cluster
@pytest.mark.parametrize("what", ["registered", "merged"])
def test_mlflow_serves_it(real_server, record, base_folder, tmp_path, monkeypatch, what):
    """Straight from the registry with its adapter, and from an exported folder with merged
    weights."""
    name = f"served-{what}"
    monkeypatch.chdir(base_folder.parent)
    base = {**record().base, "name": base_folder.name}
    uri = open_tracker(real_server.uri, name, name).log_trial(record(base=base))
    source = uri if what == "registered" else str(
        export_model(uri, tmp_path / "out", tracking_uri=real_server.uri, merge=True)
    )  # fmt: skip
    # Exactly as a user would: no pickle may be read.
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": real_server.uri,
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    }
    environment["PATH"] = (
        f"{Path(sys.executable).parent}:{environment['PATH']}"  # it calls uvicorn by its name
    )
    process, address = serve(source, tmp_path, environment)
    try:
        question = {
            "dataframe_split": {"columns": ["prompt"], "data": [["w3 w5"], ["w7"]]},
            "params": {"max_new_tokens": 4},
        }
        said = requests.post(address, json=question, timeout=60)
        assert said.status_code == 200, said.text
        assert said.json()["predictions"] == [
            greedy(uri, real_server.uri, prompt) for prompt in ("w3 w5", "w7")
        ]
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)
