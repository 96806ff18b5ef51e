"""The ways to a clipped sum that step.py compares: model, data and loss of a case, and one function
a way."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from torch.func import functional_call, grad, vmap

from raydp.extensions.frozen_prefix.prefix import with_frozen_prefix
from raydp.models import adapters
from raydp.models import base_models as models
from raydp.models.quantization import quantise
from raydp.spec.sections import AdapterSpec
from raydp.tasks.task import Batch, TaskFacts
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.memory import recompute_layers
from raydp.training.gradients.thresholds import Clipping

TOKENS = 64
"""Tokens of an example, where a case says nothing else."""
MAX_GRAD_NORM = 0.1
CASES: dict[str, dict[str, Any]] = {
    "lora": {"model": "smollm2", "microbatch": 8, "ways": ["plain", "raydp", "opacus"]},
    "prefix": {
        "model": "smollm2",
        "microbatch": 8,
        "layers": range(24, 30),
        "ways": ["uncached", "cached"],
    },
    "recompute": {"model": "smollm2", "microbatch": 32, "ways": ["raydp", "recomputed"]},
    "compile": {
        "model": 256,
        "microbatch": 32,
        "ways": ["plain", "plain_compiled", "raydp", "raydp_compiled"],
    },
    "gpt2-256": {
        "model": 256,
        "microbatch": 32,
        "ways": ["plain", "raydp", "opacus", "opacus_ghost", "torch_func"],
    },
    "gpt2-768": {
        "model": 768,
        "microbatch": 32,
        "ways": ["plain", "raydp", "opacus", "opacus_ghost", "torch_func"],
    },
}
"""The first way of a case is what the others are compared with."""

Step = Callable[[], dict[str, torch.Tensor]]
"""Runs one micro-batch and returns the running sum of gradients."""


class Bench:
    """Model, data and loss of a case, the same for every way."""

    def __init__(self, case: dict[str, Any], dtype: torch.dtype, device: str = "cpu") -> None:
        torch.manual_seed(0)
        config, adapter, tokens = *_shape(case), case.get("tokens", TOKENS)
        with torch.device(device):
            model = (
                transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
                .requires_grad_(False)
                .eval()
            )
        base = models.PretrainedModel(
            name="random",
            model=model,
            tokenizer=None,
            weight_hash="random",
            quantization=case.get("quantization"),
        )
        quantise(base)
        self.model = adapters.attach_adapter(base, adapter, copy=False).to(device)
        self.device = torch.device(device)
        self.autocast = torch.bfloat16 if case.get("autocast") else None
        self.recomputes = False
        self.parameters = adapters.trainable_parameters(self.model, adapter)
        if adapter.type == "lora":
            for (
                name,
                parameter,
            ) in self.parameters.items():  # as if trained: both factors get gradients
                if ".lora_B." in name:
                    nn.init.normal_(parameter, std=0.02)
        rng = np.random.default_rng(0)
        size = case["microbatch"]
        rows = [rng.integers(2, config.vocab_size, tokens).tolist() for _ in range(size)]
        examples = TokenizedExamples.from_lists(rows)
        facts = TaskFacts(
            num_examples=size,
            num_units=size,
            privacy_unit="example",
            content_hash="x",
            num_tokens=size * tokens,
        )
        self.task = LanguageModelingTask(train=examples, heldout=examples, task_facts=facts)
        self.indices = np.arange(size)
        self.total: dict[str, torch.Tensor] = {}

    def sums(self) -> dict[str, torch.Tensor]:
        """Zero sums to add gradients to.

        They take memory from now on, which `plain` does not need.
        """
        return {name: torch.zeros_like(p) for name, p in self.parameters.items()}

    def losses(self, batch: Batch | None = None) -> torch.Tensor:
        """[B] per-example losses."""
        with torch.autocast(
            self.device.type, dtype=self.autocast, enabled=self.autocast is not None
        ):
            return self.task.per_example_loss(
                self.model, batch or self.task.batch(self.indices).to(self.device)
            )


def _shape(case: dict[str, Any]) -> tuple[transformers.PreTrainedConfig, AdapterSpec]:
    """Return the model's configuration and the adapter of a case."""
    if "config" in case:
        return case["config"], case["adapter"]
    if case["model"] == "smollm2":
        config = transformers.LlamaConfig(
            vocab_size=49_152, hidden_size=576, intermediate_size=1_536, num_hidden_layers=30,
            num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
        )  # fmt: skip
        layers = tuple(case["layers"]) if "layers" in case else None
        return config, AdapterSpec(
            r=4, alpha=32, target_modules=("q_proj", "v_proj"), layers_to_transform=layers
        )
    width = case["model"]
    config = transformers.GPT2Config(
        vocab_size=4_096, n_positions=TOKENS, n_embd=width, n_layer=4, n_head=width // 64,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return config, AdapterSpec(type="none")


def plain(bench: Bench) -> Step:
    """torch's own gradient of the summed loss."""
    bench.model.eval()

    def step() -> dict[str, torch.Tensor]:
        bench.losses().sum().backward()
        return {name: p.grad for name, p in bench.parameters.items()}

    return step


def raydp(bench: Bench) -> Step:
    """The engine of dp_sgd and dp_adam."""
    bench.total = bench.sums()
    engine = ClippedGradients(bench.model, bench.parameters, Clipping(MAX_GRAD_NORM))

    def step() -> dict[str, torch.Tensor]:
        engine.accumulate(bench.losses, bench.total)
        return bench.total

    return step


def recomputed(bench: Bench) -> Step:
    """The engine with gradient checkpointing of the decoder layers."""
    _recompute_once(bench)
    return raydp(bench)


def plain_recomputed(bench: Bench) -> Step:
    """torch's own gradient with gradient checkpointing of the decoder layers."""
    _recompute_once(bench)
    return plain(bench)


def _recompute_once(bench: Bench) -> None:
    """Let the model compute its layers again, unless it does already."""
    if not bench.recomputes:
        recompute_layers(bench.model)
    bench.recomputes = True


def compiled(way: Callable[[Bench], Step]) -> Callable[[Bench], Step]:
    """A way whose forward and backward pass torch.compile has made, hooks and all."""

    def build(bench: Bench) -> Step:
        step = way(bench)
        bench.model.forward = torch.compile(bench.model.forward)
        return step

    return build


def cached(bench: Bench) -> Step:
    """The engine on hidden states from the disk."""
    complaints: list[str] = []
    with tempfile.TemporaryDirectory() as folder:  # what is mapped stays readable
        bench.task = with_frozen_prefix(
            bench.task, bench.model, bench.parameters,
            weight_hash="x", folder=Path(folder), max_bytes=1e9, say=complaints.append,
        )  # fmt: skip
    assert not complaints, complaints
    return raydp(bench)


def opacus(bench: Bench) -> Step:
    """Per-example gradients from Opacus' hooks, clipped and summed by its optimizer."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    bench.model.train()  # the hooks sleep in eval mode; there is no dropout
    GradSampleModule(bench.model, loss_reduction="sum", strict=False)
    parameters = list(bench.parameters.values())
    optimizer = DPOptimizer(
        torch.optim.SGD(parameters, lr=0.1), noise_multiplier=1.0, max_grad_norm=MAX_GRAD_NORM,
        expected_batch_size=1, loss_reduction="sum",
    )  # fmt: skip

    def step() -> dict[str, torch.Tensor]:
        bench.losses().sum().backward()
        optimizer.clip_and_accumulate()
        for p in parameters:
            p.grad_sample = p.grad = None
        return {name: p.summed_grad for name, p in bench.parameters.items()}

    return step


def opacus_ghost(bench: Bench) -> Step:
    """Opacus' ghost clipping: a backward pass for the norms, one for the clipped sum."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    bench.model.train()
    bench.total = bench.sums()
    module = GradSampleModuleFastGradientClipping(
        bench.model,
        loss_reduction="sum",
        strict=False,
        max_grad_norm=MAX_GRAD_NORM,
        use_ghost_clipping=True,
    )

    def step() -> dict[str, torch.Tensor]:
        module.enable_hooks()
        losses = bench.losses()
        losses.sum().backward(retain_graph=True)
        for p in bench.parameters.values():
            p.grad = None
        factors = module.get_clipping_coef()
        module.disable_hooks()
        (losses * factors).sum().backward()
        for name, p in bench.parameters.items():
            bench.total[name] += p.grad
            p.grad = None
        return bench.total

    return step


def torch_func(bench: Bench) -> Step:
    """vmap over grad: all per-example gradients, then norms, then the weighted sum."""
    buffers = dict(bench.model.named_buffers())
    batch = bench.task.batch(bench.indices).to(bench.device)

    def loss(
        parameters: dict[str, torch.Tensor], ids: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        positions = torch.arange(ids.shape[0], device=ids.device)[None]
        inputs = {"input_ids": ids[None], "position_ids": positions, "use_cache": False}
        logits = functional_call(
            bench.model, (parameters, buffers), (), inputs, tie_weights=True
        ).logits[0, :-1]
        return nn.functional.cross_entropy(logits, labels[1:])

    bench.total = bench.sums()
    per_example = vmap(grad(loss), in_dims=(None, 0, 0))

    def step() -> dict[str, torch.Tensor]:
        parameters = {name: p.detach() for name, p in bench.parameters.items()}
        gradients = per_example(parameters, batch.input_ids, batch.labels)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
        factors = (MAX_GRAD_NORM / norms).clamp(max=1)
        for name, g in gradients.items():
            bench.total[name] += torch.einsum("i,i...->...", factors, g)
        return bench.total

    return step


WAYS: dict[str, Callable[[Bench], Step]] = {
    "plain": plain, "raydp": raydp, "opacus": opacus, "opacus_ghost": opacus_ghost, "torch_func": torch_func,
    "uncached": raydp, "cached": cached, "recomputed": recomputed,
    "plain_recomputed": plain_recomputed,
    "plain_compiled": compiled(plain), "raydp_compiled": compiled(raydp),
}  # fmt: skip
