"""What is loaded is what was trained, from any place, and nothing of the machine or the data went
with it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM

from raydp.models.base_models import weight_hash
from raydp.scores.language.decoding import CachedDecoder
from raydp.tracking import load_model, load_tokenizer

from .conftest import FACTS, llama, open_tracker, save_base

TOKENS = torch.arange(12).reshape(2, 6)


def logits(model):
    with torch.inference_mode():
        return model(input_ids=TOKENS).logits


def test_the_loaded_adapter_computes_the_same_logits(tracker, record, adapter, base_folder):
    """Exactly: the same weights go through the same code."""
    uri = tracker.log_trial(record())
    loaded = load_model(uri, tracking_uri=tracker.store.uri, base=str(base_folder))
    assert isinstance(loaded, PeftModel)
    assert not loaded.training
    assert torch.equal(logits(loaded), logits(adapter[0]))
    assert not torch.equal(
        logits(loaded), logits(AutoModelForCausalLM.from_pretrained(base_folder))
    )
    assert loaded.generate(input_ids=TOKENS, max_new_tokens=3, do_sample=False).shape == (2, 9)


@pytest.mark.extensions
@pytest.mark.parametrize("kind", [PromptTuningConfig, PrefixTuningConfig])
def test_loaded_virtual_tokens_compute_the_same_logits_and_generate(
    kind, tracker, record, base_folder, tmp_path
):
    base = AutoModelForCausalLM.from_pretrained(base_folder)
    model = get_peft_model(base, kind(num_virtual_tokens=3, task_type="CAUSAL_LM")).eval()
    model.save_pretrained(tmp_path / "prompt", save_embedding_layers=False)
    uri = tracker.log_trial(record(model_dir=tmp_path / "prompt"))
    loaded = load_model(uri, tracking_uri=tracker.store.uri, base=str(base_folder))
    assert torch.equal(logits(loaded), logits(model))
    with torch.inference_mode():
        decoder = CachedDecoder(loaded, TOKENS.tolist())
        torch.testing.assert_close(
            decoder.read(6), logits(model)[:, -6:], rtol=0, atol=1e-5
        )  # fp32, other sums
        greedy = [decoder.read()[:, -1].argmax(dim=-1)]
        for _ in range(4):
            greedy.append(decoder.step(np.arange(2), greedy[-1].numpy()).argmax(dim=-1))
    generated = loaded.generate(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS), max_new_tokens=5,
                                min_new_tokens=5, do_sample=False, eos_token_id=None)  # fmt: skip
    assert torch.equal(generated[:, 6:], torch.stack(greedy, dim=1)), (
        "transformers' own generation reads it as well"
    )


def test_the_base_is_found_by_its_recorded_name(tracker, record, adapter, base_folder, monkeypatch):
    monkeypatch.chdir(base_folder.parent)
    uri = tracker.log_trial(
        record(base={"name": base_folder.name, "weight_hash": weight_hash(base_folder)})
    )
    assert torch.equal(logits(load_model(uri, tracking_uri=tracker.store.uri)), logits(adapter[0]))
    assert load_tokenizer(uri, tracking_uri=tracker.store.uri)("w3 w5")["input_ids"] == [3, 5]


def test_the_recorded_type_is_used_unless_another_is_asked_for(tracker, record, base_folder):
    base = {**record().base, "dtype": "bfloat16"}
    uri = tracker.log_trial(record(base=base))
    where = {"tracking_uri": tracker.store.uri, "base": str(base_folder)}
    assert load_model(uri, **where).get_base_model().lm_head.weight.dtype == torch.bfloat16
    assert (
        load_model(uri, dtype="float32", **where).get_base_model().lm_head.weight.dtype
        == torch.float32
    )
    with pytest.raises(ValueError, match=r"dtype must be float32 or bfloat16, got 'float8'"):
        load_model(uri, dtype="float8", **where)


def test_a_fully_trained_model_needs_no_base(tracker, record, tmp_path):
    folder = save_base(tmp_path / "full", seed=5)
    uri = tracker.log_trial(record(model_dir=folder))
    loaded = load_model(uri, tracking_uri=tracker.store.uri)
    assert torch.equal(logits(loaded), logits(llama(5)))
    assert load_tokenizer(uri, tracking_uri=tracker.store.uri)("w7")["input_ids"] == [7]


def test_another_base_is_refused(tracker, record, tmp_path):
    other = save_base(tmp_path / "other", seed=1)
    uri = tracker.log_trial(record())
    with pytest.raises(
        ValueError,
        match=r"base must have the weights that the adapter was trained on.*'tiny-llama' as",
    ):
        load_model(uri, tracking_uri=tracker.store.uri, base=str(other))


def test_a_base_that_cannot_be_found_is_a_clear_error(tracker, record, tmp_path):
    uri = tracker.log_trial(record())
    with pytest.raises(ValueError, match=r"base must be loadable here, got .*as base\."):
        load_model(uri, tracking_uri=tracker.store.uri, base=str(tmp_path / "nowhere"))


def test_the_folder_is_peft_s_own(tracker, record, adapter, base_folder):
    """Without raydp, by hand."""
    tracker.log_trial(record())
    (folder,) = artifact_folders(tracker)
    by_hand = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base_folder), folder)
    assert torch.equal(logits(by_hand.eval()), logits(adapter[0]))
    assert (
        json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
        == "tiny-llama"
    )


def test_the_adapter_names_its_base_as_the_spec_does(tracker, record):
    """Not the folder of the hub's cache that it was loaded from."""
    tracker.log_trial(record(base={**record().base, "name": "org/tiny"}))
    (folder,) = artifact_folders(tracker)
    assert (
        json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
        == "org/tiny"
    )


def test_mlflow_reads_the_model(tracker, record):
    from mlflow.models import Model

    tracker.log_trial(record())
    (folder,) = artifact_folders(tracker)
    assert Model.load(str(folder)).flavors["raydp"] == {
        "kind": "adapter",
        "base": "tiny-llama",
        "loader": "raydp.load_model",
    }


def test_a_store_may_be_moved_with_its_artifacts(uri, record, adapter, base_folder, tmp_path):
    model_uri = open_tracker(uri).log_trial(record())
    shutil.move(tmp_path / "store", tmp_path / "elsewhere")
    loaded = load_model(
        model_uri, tracking_uri=f"sqlite:///{tmp_path}/elsewhere/raydp.db", base=str(base_folder)
    )
    assert torch.equal(logits(loaded), logits(adapter[0]))


def test_pickles_are_neither_logged_nor_loaded(tracker, record, adapter, base_folder, tmp_path):
    folder = tmp_path / "pickled"
    folder.mkdir()
    shutil.copy(adapter[1] / "adapter_config.json", folder)
    torch.save({}, folder / "adapter_model.bin")
    with pytest.raises(ValueError, match=r"model_dir must hold adapter_model\.safetensors"):
        tracker.log_trial(record(model_dir=folder))
    uri = tracker.log_trial(record())
    (logged,) = artifact_folders(tracker)
    (logged / "adapter_model.safetensors").unlink()
    shutil.copy(folder / "adapter_model.bin", logged)
    with pytest.raises(ValueError, match=r"MODEL must hold adapter_model\.safetensors"):
        load_model(uri, tracking_uri=tracker.store.uri, base=str(base_folder))


def test_nothing_of_the_machine_or_the_data_is_stored(uri, record, adapter, base_folder, tmp_path):
    """Every file and the database, searched for what was planted; the store's own place is all that
    it may name."""
    secret, user = "the combination is 7-31-9", "s3cr3t"
    folder = tmp_path / "mallory" / "trial"
    shutil.copytree(adapter[1], folder)
    (folder / "README.md").write_text(f"base_model: {base_folder}")
    (folder / "generations.json").write_text(json.dumps([secret]))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "name_or_path": str(base_folder),
                "vocab_file": "/home/mallory/vocab.txt",
                "unk_token": "/unk",
            }
        )
    )
    tracker = open_tracker(uri)
    spec = {
        "task": {"path": "/home/mallory/mails.jsonl", "secrets": "~/mallory/secrets.jsonl"},
        "model": {"name": str(base_folder)},
        "tracking": {"uri": f"https://bob:{user}@mlflow.example.org"},
    }
    tracker.sweep_run(
        "sweep-1", "leaky", spec, {**FACTS, "note": "read from /home/mallory/mails.jsonl, curated"}
    )
    trial = record(
        model_dir=folder,
        params={"cache": Path("/home/mallory/cache"), "store": "sqlite:////home/mallory/x.db"},
    )
    tracker.log_trial(trial)
    tracker.fail_trial("run-9", f"FileNotFoundError: [Errno 2] No such file: '{folder}/model.bin'")
    tracker.finish_sweep({"folder": str(folder), "selected": "models:/demo/1"})

    contents = {p: p.read_bytes() for p in (tmp_path / "store").rglob("*") if p.is_file()}
    assert len(contents) > 8
    for planted in (secret, user, "mallory", str(base_folder), "alices-private-folder"):
        for path, content in contents.items():
            assert planted.encode() not in content, (planted, path)
    (tokenizer,) = (
        json.loads(content)
        for path, content in contents.items()
        if path.name == "tokenizer_config.json"
    )
    assert tokenizer == {
        "name_or_path": "tiny-llama",
        "vocab_file": "vocab.txt",
        "unk_token": "/unk",
    }
    database = (tmp_path / "store" / "raydp.db").read_bytes()
    for kept in (b"mails.jsonl", b"https://mlflow.example.org", b"sqlite:///x.db", b"model.bin"):
        assert kept in database, kept


def artifact_folders(tracker):
    database = Path(tracker.store.uri.removeprefix("sqlite:///"))
    return [path.parent for path in database.parent.rglob("MLmodel")]
