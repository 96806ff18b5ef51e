"""Base weights in 4 and 8 bits beside whole ones: memory, time of a step, held-out loss of the
untrained model.

    OMP_NUM_THREADS=1 python benchmarks/few_bits.py docs/specs/enron-smollm2.yaml --output
    few_bits.json

The spec says task, model and adapter. A step is the clipped sum of one micro-batch; its time is
processor time, the median of the rounds, in each of which every precision takes its turn.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe

from raydp.models import adapters
from raydp.models import base_models as models
from raydp.models.quantization import quantise
from raydp.spec.reading import load_spec
from raydp.spec.sections import ModelSpec
from raydp.sweep.planning.inputs import build_task
from raydp.system.yaml import read_yaml
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.thresholds import Clipping

PRECISIONS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "nf4": {"dtype": "bfloat16", "quantization": "nf4"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
}
EXAMPLES = 16


class Subject:
    """A model with its adapter, in one precision."""

    def __init__(self, spec: ModelSpec, task: Any) -> None:
        base = models.load_base(spec)
        quantise(base)
        self.task, self.model = task, adapters.attach_adapter(base, spec.adapter)
        self.parameters = adapters.trainable_parameters(self.model, spec.adapter)
        adapters.initialise(
            self.parameters,
            spec.adapter,
            adapters.starting_values(self.model, spec.adapter),
            seed=0,
        )
        self.gradients = ClippedGradients(self.model, self.parameters, Clipping(0.1))
        self.megabytes = sum(p.nbytes for p in self.model.parameters()) / 1e6

    def step(self) -> float:
        """Return the processor seconds of a clipped sum."""
        batch = self.task.batch(np.arange(EXAMPLES))
        total = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        started = time.process_time()
        self.gradients.accumulate(lambda: self.task.per_example_loss(self.model, batch), total)
        return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spec", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    written = read_yaml(args.spec, "SPEC")
    task, _ = build_task(load_spec(written))
    subjects = {
        name: Subject(ModelSpec.model_validate({**written["model"], **options}), task)
        for name, options in PRECISIONS.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(args.rounds + 1):  # the first warms up
        for name, subject in subjects.items():
            seconds[name].append(subject.step())
    rows = {
        name: {
            "megabytes": round(subject.megabytes, 1),
            "step_seconds": float(np.median(seconds[name][1:])),
            "utility_loss": subject.task.utility(subject.model),
        }
        for name, subject in subjects.items()
    }
    for name, row in rows.items():
        print(name, row)
    if args.output is not None:
        args.output.write_text(
            json.dumps({**describe("torch", "bitsandbytes"), "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
