"""A service loads and looks up models in many threads, also while a sweep writes into the same
store."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import PreTrainedModel

from raydp.models import base_models
from raydp.spec.sections import ModelSpec
from raydp.tracking import (
    delivering,
    fetch_model,
    find_models,
    load_model,
    load_tokenizer,
)
from tests.builders.models import plain_llama, word_tokenizer

from .conftest import open_tracker
from .test_loading import logits

THREADS = 16


def at_once(*tasks):
    """Start every task at the same moment, each in a thread of its own, and return the results."""
    start = threading.Barrier(len(tasks))

    def run(task):
        start.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [result.result() for result in [pool.submit(run, task) for task in tasks]]


@pytest.fixture
def tied(uri, record, tmp_path):
    """A registered adapter on a base whose output layer is its embedding: transformers ties them
    after reading."""
    from peft import LoraConfig, get_peft_model

    base = plain_llama(seed=0, vocab_size=32, max_position_embeddings=32, tie_word_embeddings=True)
    base.save_pretrained(tmp_path / "base")
    word_tokenizer().save_pretrained(tmp_path / "base")
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    model.save_pretrained(tmp_path / "adapter")
    recorded = {
        "name": str(tmp_path / "base"),
        "weight_hash": base_models.weight_hash(tmp_path / "base"),
    }
    made = record(model_dir=tmp_path / "adapter", base=recorded)
    return open_tracker(uri), made, str(tmp_path / "base"), logits(model.eval())


def test_sixteen_threads_load_and_look_up(tied, tmp_path):
    tracker, made, base, expected = tied
    where = {"tracking_uri": tracker.store.uri, "base": base}
    uri = tracker.log_trial(made)
    spec = ModelSpec.model_validate(
        {"name": base, "adapter": {"type": "lora", "target_modules": ["q_proj"]}}
    )
    kinds = (
        lambda at: logits(load_model(uri, **where)),
        lambda at: logits(load_model(uri, **where)),
        lambda at: load_tokenizer(uri, **where)("w3")["input_ids"] == [3] and expected,
        lambda at: base_models.num_trained(spec) and expected,
        lambda at: (
            fetch_model(uri, tmp_path / f"fetched-{at}", tracking_uri=tracker.store.uri)
            and expected
        ),
        lambda at: len(find_models(tracker.store.uri, verify=True)) == 1 and expected,
    )
    for result in at_once(*(lambda at=at: kinds[at % len(kinds)](at) for at in range(THREADS))):
        assert torch.equal(result, expected)
    assert torch.equal(logits(load_model(uri, **where)), expected), "a later load alone"


def test_one_thread_at_a_time_builds_a_model(tied, monkeypatch):
    """However the threads are timed: two at once leave transformers' replacements of torch's
    functions behind."""
    tracker, made, base, _ = tied
    uri, where = tracker.log_trial(made), {"tracking_uri": tracker.store.uri, "base": base}
    assert most_at_once(monkeypatch, *[lambda: load_model(uri, **where)] * 2) == [1, 1]


def most_at_once(monkeypatch, *tasks):
    """Start the tasks at once; return how many models are being built when each is begun."""
    read, building, counts = PreTrainedModel.from_pretrained.__func__, [], []

    def slowly(cls, *arguments, **options):
        building.append(cls)
        counts.append(len(building))
        time.sleep(0.2)
        model = read(cls, *arguments, **options)
        building.pop()
        return model

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(slowly))
    at_once(*tasks)
    return counts


def test_deliveries_in_threads_leave_the_environment_as_it_was(monkeypatch):
    """Otherwise MLflow would make one attempt only for the rest of the process."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "9")
    first, second = delivering(), delivering()
    with first:
        second.__enter__()
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0", "the second block is still open"
    second.__exit__(None, None, None)
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "9"


@pytest.mark.slow
def test_a_hundred_loads_beside_a_writing_sweep(tied, record):
    tracker, made, base, expected = tied
    uri = tracker.log_trial(made)
    done = threading.Event()

    def write():
        other = open_tracker(tracker.store.uri, sweep="sweep-1")
        count = 0
        while not done.is_set():
            other.log_trial(record(f"run-{count + 1}", seed=count + 1))
            count += 1
        return count

    with ThreadPoolExecutor(5) as pool:
        writing = pool.submit(write)
        try:
            loads = pool.map(
                lambda _: logits(load_model(uri, tracking_uri=tracker.store.uri, base=base)),
                range(100),
            )
            assert all(torch.equal(loaded, expected) for loaded in loads)
        finally:
            done.set()
        count = writing.result()
    assert count > 1
    assert len(find_models(tracker.store.uri)) == count + 1
