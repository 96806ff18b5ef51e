"""An exported folder opens by the code of its README.md, with plain transformers, peft and torch
and no network."""

import json
import os
import re
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from raydp.models.adapters import attach_adapter, initialise, save_trained, trainable_parameters
from raydp.models.base_models import load_base, load_tokenizer
from raydp.spec.sections import ModelSpec
from raydp.tracking import export_model, load_model
from raydp.tracking.serving import _load_pyfunc

TOKENS = np.arange(12).reshape(2, 6)
PROMPTS = pd.DataFrame({"prompt": ["please call me", "the meeting"]})
NETWORK = "cnn:1x8x8:10"
KINDS = ("lora", "soft_prompt", "prefix", "none")
READER = """
import os, re, sys, warnings
import numpy as np

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("raydp", "analysis", "search_spaces"):
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

sys.meta_path.insert(0, Blocker())
import torch

tokens, images = torch.tensor(np.load(sys.argv[1])), torch.ones(2, 1, 8, 8)
results = {}
for folder in sys.argv[3:]:
    os.chdir(folder)
    names = {}
    (code,) = re.findall("```python\\n(.*?)```", open("README.md", encoding="utf-8").read(), flags=re.DOTALL)
    exec(code, names)
    with torch.inference_mode():
        model = names["model"]
        logits = model(input_ids=tokens).logits if "tokenizer" in names else model(images)
        results[os.path.basename(folder)] = logits.numpy()
        if "tokenizer" in names:
            assert len(names["tokenizer"]("please call")["input_ids"]) > 0
assert not any(name.split(".")[0] == "raydp" for name in sys.modules)
np.savez(sys.argv[2], **results)
"""


MLFLOW_READER = """
import json, os, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("raydp", "analysis", "search_spaces"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
import mlflow, pandas, torch

prompts, tokens, results = json.loads(sys.argv[1]), torch.tensor(json.loads(sys.argv[2])), {}
for folder in sys.argv[4:]:
    served = mlflow.pyfunc.load_model(folder)
    texts = served.predict(pandas.DataFrame({"prompt": prompts}), params={"max_new_tokens": 5})
    parts = mlflow.transformers.load_model(folder, return_type="components")
    pipeline = mlflow.transformers.load_model(folder)
    said = pipeline(prompts[0], max_new_tokens=5, do_sample=False)
    with torch.inference_mode():
        logits = parts["model"].eval()(input_ids=tokens).logits.tolist()
    assert len(parts["tokenizer"](prompts[0])["input_ids"]) > 0
    results[os.path.basename(folder)] = {
        "texts": texts, "logits": logits, "pipeline": [one["generated_text"] for one in said]
    }
assert not any(name.split(".")[0] == "raydp" for name in sys.modules)
with open(sys.argv[3], "w") as stream:
    json.dump(results, stream)
"""


def mlflow_without_raydp(folders, tmp_path, **environment):
    """What MLflow's own loaders make of each folder, by the folder's name, from a process that has
    no raydp."""
    (tmp_path / "mlflow_reader.py").write_text(MLFLOW_READER)
    prompts, tokens = json.dumps(list(PROMPTS["prompt"])), json.dumps(TOKENS.tolist())
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "mlflow_reader.py"), prompts, tokens, str(tmp_path / "said.json")]
        + [str(folder) for folder in folders],
        cwd=tmp_path, env={**clean, "HF_HUB_OFFLINE": "1", **environment}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads((tmp_path / "said.json").read_text())


def read_without_raydp(folders, tmp_path, **environment):
    """The logits of each folder's model, by the folder's name, from a process that has no raydp."""
    np.save(tmp_path / "tokens.npy", TOKENS)
    (tmp_path / "reader.py").write_text(READER)
    command = [
        sys.executable,
        str(tmp_path / "reader.py"),
        str(tmp_path / "tokens.npy"),
        str(tmp_path / "logits.npz"),
    ]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**clean, "HF_HUB_OFFLINE": "1", **environment}
    done = subprocess.run(
        [*command, *map(str, folders)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return np.load(tmp_path / "logits.npz"), done.stdout


def logits(uri, store, **options):
    model = load_model(uri, tracking_uri=store, **options)
    with torch.inference_mode():
        if hasattr(model, "layers"):
            return model(torch.ones(2, 1, 8, 8)).numpy()
        return model(input_ids=torch.tensor(TOKENS)).logits.numpy()


def trained(folder, spec):
    """What a sweep would save of a model, with other weights than it started from."""
    base = load_base(spec)
    model = attach_adapter(base, spec.adapter)
    parameters = trainable_parameters(model, spec.adapter)
    start = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    initialise(parameters, spec.adapter, start, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    save_trained(model, base.tokenizer, folder)
    return {"name": spec.name, "weight_hash": base.weight_hash, "dtype": spec.weight_dtype}


@pytest.fixture
def registered(tracker, record, tmp_path):
    """Registers a model by a spec's section; its uri."""

    def register(run_id, **section):
        base = trained(tmp_path / "trained" / run_id, ModelSpec.model_validate(section))
        return tracker.log_trial(record(run_id, base=base, model_dir=tmp_path / "trained" / run_id))

    return register


@pytest.mark.daily
@pytest.mark.daily("raydp/extensions/publishing")
def test_every_kind_of_model_opens_without_raydp(registered, tracker, tmp_path):
    models = {kind: {"name": "tiny", "adapter": {"type": kind}} for kind in KINDS}
    models["network"] = {"name": NETWORK, "adapter": {"type": "none"}}
    uris = {kind: registered(kind, **section) for kind, section in models.items()}
    store = tracker.store.uri
    folders = {
        kind: export_model(uri, tmp_path / "out" / kind, tracking_uri=store)
        for kind, uri in uris.items()
    }
    folders["merged"] = export_model(
        uris["lora"], tmp_path / "out" / "merged", tracking_uri=store, merge=True
    )
    opened_by_mlflow = mlflow_without_raydp(
        [folders[kind] for kind in (*KINDS, "merged")], tmp_path
    )
    for kind in (*KINDS, "merged"):
        uri = uris["lora" if kind == "merged" else kind]
        np.testing.assert_allclose(
            opened_by_mlflow[kind]["logits"], logits(uri, store), rtol=0, atol=1e-4, err_msg=kind
        )
        expected = _load_pyfunc(str(folders[kind])).predict(PROMPTS, {"max_new_tokens": 5})
        assert opened_by_mlflow[kind]["texts"] == expected
        assert opened_by_mlflow[kind]["pipeline"][0].endswith(expected[0])
    found, said = read_without_raydp(folders.values(), tmp_path)
    assert said.count("\n") >= len(KINDS), "the README's example generates text"
    for kind, uri in uris.items():
        np.testing.assert_array_equal(found[kind], logits(uri, store), err_msg=kind)
    np.testing.assert_allclose(
        found["merged"], logits(uris["lora"], store), rtol=0, atol=1e-4
    )  # fp32, other products
    with torch.inference_mode():
        base = (
            load_base(ModelSpec(name="tiny")).model(input_ids=torch.tensor(TOKENS)).logits.numpy()
        )
    assert not np.allclose(found["lora"], base, atol=1e-2), "what was trained makes a difference"


@pytest.mark.daily("raydp/extensions/publishing")
def test_a_hub_id_stays_a_hub_id(tracker, record, adapter, base_folder, tmp_path):
    """Found in the hub's cache, as after a download; the adapter also opens by peft's own
    AutoPeftModel."""
    snapshot = tmp_path / "hf" / "hub" / "models--acme--tiny-llama" / "snapshots" / ("0" * 40)
    shutil.copytree(base_folder, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    base, store = (
        {**record().base, "name": "acme/tiny-llama", "revision": "0" * 40},
        tracker.store.uri,
    )
    uri = tracker.log_trial(record(base=base))
    folder = export_model(uri, tmp_path / "out", tracking_uri=store, base=str(base_folder))
    assert (
        json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
        == "acme/tiny-llama"
    )
    assert not (folder / "base").exists()
    text = (folder / "README.md").read_text()
    head = yaml.safe_load(text.split("---\n")[1])
    assert (head["base_model"], head["base_model_relation"]) == ("acme/tiny-llama", "adapter")
    assert str(tmp_path) not in text
    code = 'from peft import AutoPeftModelForCausalLM\nmodel = AutoPeftModelForCausalLM.from_pretrained(".")\n'
    (tmp_path / "auto").mkdir()
    shutil.copytree(folder, tmp_path / "auto", dirs_exist_ok=True)
    (tmp_path / "auto" / "README.md").write_text(
        f"```python\n{code}tokenizer = lambda text: {{'input_ids': [1]}}\n```"
    )
    found, _ = read_without_raydp(
        [folder, tmp_path / "auto"], tmp_path, HF_HOME=str(tmp_path / "hf")
    )
    expected = logits(uri, store, base=str(base_folder))
    opened_by_mlflow = mlflow_without_raydp([folder], tmp_path, HF_HOME=str(tmp_path / "hf"))
    np.testing.assert_allclose(opened_by_mlflow["out"]["logits"], expected, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(found["out"], expected)
    np.testing.assert_array_equal(found["auto"], expected)


@pytest.mark.daily("raydp/extensions/publishing")
def test_another_base_is_exported_where_it_is_asked_for(tracker, record, base_folder, tmp_path):
    uri, store = tracker.log_trial(record()), tracker.store.uri
    plain = export_model(uri, tmp_path / "plain", tracking_uri=store)
    assert "Export again with `--with-base`" in (plain / "README.md").read_text()
    with pytest.raises(ValueError, match="--base must be loadable here, got 'tiny-llama'"):
        export_model(uri, tmp_path / "none", tracking_uri=store, with_base=True)
    with pytest.raises(
        ValueError, match="--base must have the weights that the adapter was trained on"
    ):
        export_model(uri, tmp_path / "other", tracking_uri=store, with_base=True, base="tiny")
    with pytest.raises(ValueError, match="--with-base must go without --merge"):
        export_model(uri, tmp_path / "both", tracking_uri=store, with_base=True, merge=True)
    folder = export_model(
        uri, tmp_path / "out", tracking_uri=store, with_base=True, base=str(base_folder)
    )
    found, _ = read_without_raydp([folder], tmp_path)
    np.testing.assert_array_equal(found["out"], logits(uri, store, base=str(base_folder)))


def test_the_readme_names_the_model_and_its_guarantee(registered, tracker, tmp_path):
    uri = registered("lora", name="tiny")
    folder = export_model(uri, tmp_path / "out", tracking_uri=tracker.store.uri)
    text = (folder / "README.md").read_text()
    assert re.match(
        r"---\nlibrary_name: peft\nlicense: unknown\npipeline_tag: text-generation\ntags:\n", text
    )
    assert "  epsilon: 7.99\n" in text.split("---\n")[1]
    assert "A LoRA adapter on the base model `tiny`." in text
    assert "batch_size 256" in text
    assert (
        "(7.99, 1e-05)-differentially private for one example added or removed. This guarantee is "
        "certified." in text
    )
    assert {p.name for p in (folder / "base").iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert (
        load_tokenizer("tiny")("please").input_ids
        == load_tokenizer(str(folder / "base"))("please").input_ids
    )


@pytest.mark.slow
def test_loading_an_adapter_warns_of_nothing(registered, tracker):
    uris = [registered(kind, name="tiny", adapter={"type": kind}) for kind in KINDS]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        for uri in uris:
            load_model(uri, tracking_uri=tracker.store.uri)
