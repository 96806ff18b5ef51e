"""PromptPATE's teachers one by one: how right they are, with and without demonstrations, their
votes, the student, and what the cache of the demonstrations' keys and values saves.

    OMP_NUM_THREADS=1 python benchmarks/prompt_pate.py docs/specs/prompt_pate_smollm2.yaml --output
    prompt_pate.json

The classes of the public inputs, which training does not use, are used to count. The first
configuration and the test
key: figures can be had again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe

from raydp.extensions.pate.prompted import Prompting, prompted_logits
from raydp.extensions.pate.teachers import teacher_of
from raydp.models.adapters import attach_adapter, initialise, trainable_parameters, without_adapter
from raydp.models.base_models import load_base
from raydp.spec.reading import load_spec
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import make_plan
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import LocalComm
from raydp.training.noise.stream import TEST_KEY, KeyedStream
from raydp.training.trial import TrainingContext


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spec", type=Path)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    answer = {**describe("torch", "transformers", "peft"), **measure(arguments.spec)}
    text = json.dumps(answer, indent=2)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n")


def measure(path: Path) -> dict[str, Any]:
    """Every figure of one run."""
    spec = load_spec(path)
    task, weight_hash = build_task(spec)
    trial = make_plan(spec, task.facts(), weight_hash).trials[0]
    method = spec.method.params
    model = attach_adapter(load_base(spec.model), spec.model.adapter)
    parameters = trainable_parameters(model, spec.model.adapter)
    initialise(parameters, spec.model.adapter, {}, trial.seed)
    queries = task.public.select(np.arange(method.num_queries))
    labels = torch.from_numpy(queries.labels)
    stream = KeyedStream(key=TEST_KEY, run_id=trial.run_id)
    of_example = teacher_of(task.train, method.num_teachers, stream)
    prompting = Prompting(
        num_teachers=method.num_teachers, num_demonstrations=method.num_demonstrations
    )

    def right(logits: torch.Tensor) -> float:
        return float((logits.argmax(dim=1) == labels).double().mean())

    with torch.inference_mode(), without_adapter(model):
        zero_shot = right(task.outputs(model, queries)[0])
        base_loss = task.utility(model)
        shown = prompting.shown(task.train.select(np.flatnonzero(of_example == 0)), stream)
        cached_seconds, cached = timed(lambda: prompted_logits(model, task, shown, queries))
        ids = task.label_words.demonstrations(shown.inputs, shown.labels)
        before = np.tile(np.array(ids, np.int64), (len(queries), 1))
        whole = np.concatenate([before, task.label_words.following(queries.inputs)], axis=1)
        plain_seconds, plain = timed(lambda: task.outputs(model, replace(queries, inputs=whole))[0])
    context = TrainingContext(model=model, parameters=parameters)
    choices = [
        prompting.choices(
            context, task, np.flatnonzero(of_example == teacher), queries, [0, teacher], stream
        )
        for teacher in range(method.num_teachers)
    ]
    of_teachers = [float((chosen == labels).double().mean()) for chosen in choices]
    votes = sum(np.eye(task.num_classes, dtype=np.int64)[chosen.numpy()] for chosen in choices)
    with tempfile.TemporaryDirectory() as folder:  # the run goes on from these votes
        store = CheckpointStore(folder=Path(folder) / "run", run_id=trial.run_id)
        store.beside("teachers").save(method.num_teachers, {"votes": torch.from_numpy(votes)}, {})
        train_seconds, trained = timed(
            lambda: method.train(trial, context, task, LocalComm(), TEST_KEY, store)
        )
    assert trained.details["votes"] == votes.tolist()
    answers, answered = method.released(trial, votes, TEST_KEY)
    return {
        "num_examples": len(task.train),
        "num_heldout": len(task.heldout),
        "sigma": trained.details["sigma"],
        "zero_shot_accuracy": zero_shot,
        "teacher_accuracy": {
            "mean": np.mean(of_teachers),
            "min": min(of_teachers),
            "max": max(of_teachers),
        },
        "vote_accuracy": float((votes.argmax(axis=1) == queries.labels).mean()),
        "answer_accuracy": float((answers == queries.labels)[answered].mean()),
        "answered": int(answered.sum()),
        "base_error": base_loss,
        "student_error": task.utility(model),
        "seconds_of_a_teacher": {"cached": cached_seconds, "plain": plain_seconds},
        "largest_difference": float((cached - plain).abs().max()),
        "seconds_of_the_student": train_seconds,
    }


def timed(work_fn: Any) -> tuple[float, Any]:
    """Seconds and result."""
    started = time.perf_counter()
    found = work_fn()
    return time.perf_counter() - started, found


if __name__ == "__main__":
    main()
