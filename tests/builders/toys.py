"""A small language model, task and method to train, real in every part."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from raydp.methods.dp import DPAdam
from raydp.models import adapters
from raydp.models import base_models as models
from raydp.spec.sections import AdapterSpec
from raydp.tasks.task import TaskFacts
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask
from raydp.training.comm import Comm, LocalComm
from raydp.training.observers import Observer
from raydp.training.trial import TrainingContext
from raydp.training.trial_plan import TrialPlan
from tests.builders.models import plain_llama
from tests.marks import WHOLE
from tests.processes import forked

ADAPTER = AdapterSpec(r=2, alpha=4, target_modules=("q_proj", "v_proj", "gate_proj", "down_proj"))
METHOD = DPAdam(max_grad_norm=0.1)
METHODS = {
    "flat": METHOD,
    "adaptive": DPAdam(max_grad_norm=0.1, clipping="adaptive"),
    "decay in the loss": DPAdam(max_grad_norm=0.1, weight_decay=0.5, decay="in_loss"),
}
if WHOLE:
    from raydp.extensions.matrix_factorisation.method import DPMF
    from raydp.extensions.reference_data.weighted import WeightedDPAdam

    METHODS["banded"] = DPMF(max_grad_norm=1.0, num_bands=3, momentum=0.5)
    METHODS["reference data"] = WeightedDPAdam(max_grad_norm=0.1, reference_weight=0.2)
KEY = bytes(range(32))
NUM_EXAMPLES = 40
NUM_REFERENCE = 15
PLAN = TrialPlan(
    run_id="toy",
    batch_size=8,
    num_steps=6,
    learning_rate=5e-3,
    seed=0,
    num_examples=NUM_EXAMPLES,
    noise_multiplier=0.5,
)


def task(num_examples: int = NUM_EXAMPLES, num_reference: int = 0) -> LanguageModelingTask:
    """Random sentences of 4 to 16 tokens."""
    rng = np.random.default_rng(0)

    def examples(count: int) -> TokenizedExamples:
        return TokenizedExamples.from_lists(
            [rng.integers(1, 60, rng.integers(4, 17)).tolist() for _ in range(count)]
        )

    train, heldout = examples(num_examples), examples(12)
    facts = TaskFacts(
        num_examples=num_examples,
        num_units=num_examples,
        privacy_unit="example",
        content_hash="toy",
        num_tokens=400,
        num_reference=num_reference,
    )
    return LanguageModelingTask(train=train, heldout=heldout, task_facts=facts)


def task_of(method: DPAdam) -> LanguageModelingTask:
    """The task, of which the last examples are reference data for a method that weighs them."""
    return task(num_reference=NUM_REFERENCE if getattr(method, "reference_weight", None) else 0)


def pretrained() -> models.PretrainedModel:
    """A Llama with random weights; its tokenizer is never used."""
    model = plain_llama(num_hidden_layers=3).requires_grad_(False)
    return models.PretrainedModel(name="toy", model=model, tokenizer=None, weight_hash="toy")


def context(adapter: AdapterSpec = ADAPTER, **options: object) -> TrainingContext:
    """The model with its adapter at its start."""
    base = pretrained()
    model = adapters.attach_adapter(base, adapter)
    parameters = adapters.trainable_parameters(model, adapter)
    adapters.initialise(
        parameters, adapter, {n: p.detach().clone() for n, p in parameters.items()}, seed=0
    )
    return TrainingContext(model=model, parameters=parameters, **options)


class EndsAt(Observer):
    """Asks after some numbers of steps whether the run ends: `asked` keeps the numbers."""

    def __init__(self, steps: set[int], answer_fn: Callable[[int], bool] = lambda done: True):
        self.steps, self.answer_fn, self.asked = steps, answer_fn, list[int]()

    def must_end(self, done: int) -> bool:
        if done not in self.steps:
            return False
        self.asked.append(done)
        return self.answer_fn(done)


def train(
    comm: Comm | None = None, microbatch_size: int | None = None, **options: object
) -> dict[str, torch.Tensor]:
    """Train PLAN and return the trained weights."""
    toy = context(options.get("adapter", ADAPTER), microbatch_size=microbatch_size)
    method = options.get("method", METHOD)
    method.train(PLAN, toy, task_of(method), comm or LocalComm(), KEY, options.get("store"))
    return {name: p.detach().clone() for name, p in toy.parameters.items()}


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Largest difference of a weight."""
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def in_ranks(target: Callable[..., None], world_size: int, *arguments: object) -> None:
    """Call target(rank, world_size, *arguments) in so many processes; none may fail."""
    ranks = [
        forked().Process(target=target, args=(rank, world_size, *arguments))
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
        assert process.exitcode == 0
