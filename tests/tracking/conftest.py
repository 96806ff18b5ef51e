"""Real stores, real models: SQLite files that MLflow made, tiny Llamas with LoRA adapters."""

import logging
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaForCausalLM

from raydp.models.base_models import weight_hash
from raydp.tracking import MLflowTracker, TrialRecord
from raydp.tracking.store import open_store
from tests.builders.models import plain_llama, word_tokenizer

SPEC = {
    "name": "demo",
    "task": {"name": "text"},
    "privacy": {"target_epsilon": 8},
    "seeds": [0, 1],
    "model": {"name": "base-folder"},
}
FACTS = {"num_examples": 100, "content_hash": "c0ffee", "notes": {"skipped": 3}}


@pytest.fixture(scope="session")
def schema(tmp_path_factory):
    """A SQLite file with MLflow's schema and nothing else, and what MLflow logged while it made
    it."""
    database = tmp_path_factory.mktemp("schema") / "mlflow.db"
    said = []
    handler = logging.Handler()
    handler.emit = lambda event: said.append(event.getMessage())
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    for logger in loggers:
        logger.addHandler(handler)
    open_store(f"sqlite:///{database}", create=True)
    for logger in loggers:
        logger.removeHandler(handler)
    return database, said


@pytest.fixture(scope="session")
def empty_store(schema):
    """The file to copy: making one takes seconds."""
    return schema[0]


@pytest.fixture
def uri(empty_store, tmp_path):
    """A fresh store of one's own."""
    database = tmp_path / "store" / "raydp.db"
    database.parent.mkdir()
    shutil.copy(empty_store, database)
    return f"sqlite:///{database}"


@pytest.fixture
def tracker(uri):
    return open_tracker(uri)


def open_tracker(
    uri, name="demo", experiment="experiment", sweep="sweep-0", **options
) -> MLflowTracker:
    """A tracker with its sweep open, as after a driver's start."""
    tracker = MLflowTracker(uri, experiment, name, **options)
    tracker.sweep_run(sweep, name, SPEC, FACTS)
    return tracker


def inventory(tracker, experiment: str = "experiment"):
    """What the store holds: runs below the sweep, logged models, versions."""
    client = tracker.store.client
    ids = [client.get_experiment_by_name(experiment).experiment_id]
    runs = client.search_runs(ids, "tags.`raydp.run_id` LIKE '%'")
    return (
        runs,
        client.search_logged_models(ids),
        client.search_model_versions(f"name = '{tracker.registered_model}'"),
    )


def llama(seed: int) -> LlamaForCausalLM:
    return plain_llama(
        seed=seed, vocab_size=32, intermediate_size=16, num_hidden_layers=1, num_key_value_heads=2,
        max_position_embeddings=32,
    )  # fmt: skip


def save_base(folder: Path, seed: int = 0) -> Path:
    """A base model with a tokenizer, as save_pretrained writes it."""
    llama(seed).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("alices-private-folder") / "tiny-llama")


@pytest.fixture(scope="session")
def adapter(base_folder, tmp_path_factory):
    """A LoRA model in memory and the folder that it was saved in, as peft writes it: with the
    base's absolute path."""
    base = LlamaForCausalLM.from_pretrained(base_folder)
    model = get_peft_model(
        base, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator)
    folder = tmp_path_factory.mktemp("alices-private-folder") / "adapter"
    model.save_pretrained(folder)
    assert str(base_folder) in (folder / "adapter_config.json").read_text(), (
        "peft no longer records the path"
    )
    return model.eval(), folder


@pytest.fixture(scope="session")
def record(adapter, base_folder):
    """Makes trial records: a finished one with whatever is changed."""

    def make(run_id: str = "run-0", **changes) -> TrialRecord:
        values = {
            "run_id": run_id,
            "batch_size": 256,
            "num_steps": 64,
            "learning_rate": 5e-4,
            "seed": 0,
            "params": {
                "method": "dp_adam",
                "task_hash": "c0ffee",
                "max_grad_norm": 0.5,
                "beta2": 0.999,
            },
            "step_metrics": [
                {"step": s, "train_loss": 3.0 - s / 10, "grad_norm": 1.0 + s} for s in range(5)
            ],
            "metrics": {
                "utility_loss": 2.5,
                "utility_gain": 0.5,
                "score.vmr": 0.01,
                "score.vmr.std_error": 0.002,
            },
            "privacy": {
                "epsilon": 7.99,
                "delta": 1e-5,
                "noise_multiplier": 1.25,
                "accountant": "prv",
                "unit": "example",
                "certified": True,
            },
            "base": {"name": str(base_folder), "weight_hash": weight_hash(base_folder)},
            "model_dir": adapter[1],
            "seconds": 12.5,
        }
        return TrialRecord(**{**values, **changes})

    return make
