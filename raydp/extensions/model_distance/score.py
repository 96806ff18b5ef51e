"""Distances between the models of a set (Hu et al. 2025, App. C.2)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from transformers.pytorch_utils import Conv1D

from raydp.models.adapters import MODULES_TO_SAVE, causal_model
from raydp.models.reading import reading
from raydp.scores.language.decoding import evaluating
from raydp.scores.score import Context, Measurement, ModelSet, ScoreSection
from raydp.tasks.task import Batch, batches_by_length
from raydp.tasks.text.token_loss import IGNORE

if TYPE_CHECKING:
    from peft import PeftModel
    from peft.tuners.ia3 import IA3Layer
    from peft.tuners.lora import LoraLayer
    from torch import nn

    from raydp.models.base_models import LoadedModel
    from raydp.tasks.task import Task

HELD_BYTES = 2**32
"""Memory for the weights of several models, or their probabilities at some positions."""

Weights = dict[str, tuple[torch.Tensor, torch.Tensor] | torch.Tensor]
"""Name -> a trained tensor, or the two factors [out, r] (with the scale) and [r, in]."""


class ModelDistance(ScoreSection):
    """A model's mean distance to the other models of its set.

    The distance does not measure leakage. It shows whether models with different scores are simply
    far apart. The details of every measurement hold the mean pairwise distance of the set as
    `mean_pairwise`.

    There is no standard error, because the distances within one set are not independent.

    Source: Hu et al. 2025, App. C.2, Eq. (1).
    """

    no_leak: ClassVar[float | None] = None
    in_words: ClassVar[str | None] = "it differs from the other models by {value}"

    of_a_set: ClassVar[bool] = True

    kind: Literal["parameter", "functional"] = "functional"
    """`parameter`: the l2 distance of all effective weights; for a LoRA adapter the distance of the
    updates scale · B A. `functional`: the mean, over held-out examples and over the target
    positions of each, of the l2 distance of the two softmaxes over the vocabulary (Eq. 1)."""
    max_examples: int | None = Field(256, ge=1)
    """Kind `functional`: number of held-out examples to draw (by the seed); null takes all."""

    def check(self, task: Task) -> None:
        """Raise ValueError if the kind is functional and the examples are no texts of targets."""
        if self.kind == "functional" and not isinstance(task.heldout_batch(np.arange(1)), Batch):
            raise ValueError(
                "score model_distance must be of the kind parameter in a classification task, got "
                "functional. Write kind: parameter."
            )

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Refuse to measure one model: a distance needs several.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "score model_distance must be given a set of models, got one. Run `raydp score SWEEP`."
        )

    def measure_many(
        self, models: ModelSet, task: Task, *, seed: int, context: Context
    ) -> Iterator[tuple[str, Measurement]]:
        """Return every model's mean distance to the others.

        All models are compared before the first value is known.

        Raises:
            ValueError: fewer than two models.
        """
        # Compare all pairs first: no value is known before the last model was read.
        started, number = time.perf_counter(), len(models.names)
        if number < 2:
            raise ValueError(
                f"score model_distance must be given at least two models, got {number}. Finish the "
                "sweep."
            )
        pairwise = (
            parameter_distances(models)
            if self.kind == "parameter"
            else self._functional(models, task, seed)
        )
        # The upper triangle has each pair once, and no distance of a model from itself.
        mean = float(pairwise[np.triu_indices(number, 1)].mean())
        # All models share the cost of the comparison alike.
        seconds = (time.perf_counter() - started) / number
        for finished, (name, row) in enumerate(zip(models.names, pairwise, strict=True), start=1):
            if name not in context.done:
                yield (
                    name,
                    Measurement(
                        value=float(row.sum() / (number - 1)),
                        std_error=None,
                        num_samples=1,
                        details={"mean_pairwise": mean, "models": number},
                        cost={"seconds": seconds},
                        seed=seed,
                    ),
                )
            if context.progress is not None:
                context.progress(finished, number)

    def expected_bounds(self) -> tuple[float, float]:
        """Return the bounds. Two distributions are at most sqrt(2) apart."""
        return 0.0, math.inf if self.kind == "parameter" else math.sqrt(2)

    def _functional(self, models: ModelSet, task: Task, seed: int) -> NDArray[np.float64]:
        available = len(task.heldout_lengths())
        chosen = np.arange(available)
        if self.max_examples is not None and self.max_examples < available:
            # Every pair is compared on the same examples, drawn by the seed.
            chosen = np.random.default_rng(seed).choice(available, self.max_examples, replace=False)
        return functional_distances(models, task, np.sort(chosen))


def parameter_distances(models: ModelSet, *, held_bytes: int = HELD_BYTES) -> NDArray[np.float64]:
    """Return [m, m] l2 distances of the models' effective trained weights.

    Hold as many models in memory as fit in `held_bytes`, and load the others one at a time to
    compare.
    """
    number = len(models.names)
    # Hold blocks of models that fit in memory; each later model is loaded once for each block.
    squares = np.zeros((number, number))
    start = 0
    while start < number:
        held: list[Weights] = []
        for index in range(start, number):
            # Load one model and compare it with all models in memory.
            with models.loaded(index) as loaded:
                weights = effective_weights(loaded)
            for position, other in enumerate(held, start=start):
                square = sum(_square(other[name], weights[name]) for name in other)
                squares[position, index] = squares[index, position] = square
            # Keep the model in memory if it fits and no model before it was left out.
            size = sum(_bytes(entry) for entry in weights.values())
            if len(held) == index - start and (not held or (len(held) + 1) * size <= held_bytes):
                held.append(weights)
        start += len(held)
    return np.sqrt(squares)


def functional_distances(
    models: ModelSet, task: Task, examples: NDArray[np.int64], *, held_bytes: int = HELD_BYTES
) -> NDArray[np.float64]:
    """Return [m, m] mean distances of the models' softmaxes.

    The l2 distance of two softmaxes is averaged over the target positions of an example, then over
    the held-out examples. The probabilities of all models are in memory for one batch at a time. A
    batch has as many positions as fit in `held_bytes`.
    """
    number = len(models.names)
    lengths = task.heldout_lengths()[examples]
    # One position takes the fp32 probabilities of all models.
    with models.loaded(0) as first:
        row_bytes: int = 4 * number * causal_model(first.model).config.vocab_size
    total = np.zeros((number, number))
    # Read every model once for each batch.
    for positions in batches_by_length(lengths, max(1, held_bytes // row_bytes)):
        # Read one batch with every model.
        batch = task.heldout_batch(examples[positions])
        probabilities = []
        for index in range(number):
            with models.loaded(index) as loaded:
                probabilities.append(target_probabilities(loaded, batch))
        # Average over the target positions of each example, and sum over the examples.
        targets = batch.labels[:, 1:] != IGNORE
        owner = targets.nonzero()[:, 0].to(probabilities[0].device)
        # Weights give a mean over each example's target positions: long examples do not dominate.
        weight = 1 / targets.sum(dim=1).double().to(owner.device)[owner]
        for i in range(number):
            for j in range(i + 1, number):
                distance = torch.linalg.vector_norm(
                    probabilities[i] - probabilities[j], dim=1
                ).double()
                total[i, j] += float((distance * weight).sum())
    return (total + total.T) / len(examples)


def target_probabilities(loaded: LoadedModel, batch: Batch) -> torch.Tensor:
    """Return [P, V] fp32 softmax at every target position of a batch, row by row."""
    device = next(loaded.model.parameters()).device
    batch = batch.to(device)
    with evaluating(loaded.model):
        read = reading(loaded.model, batch.input_ids)
        logits = read.model(**read.inputs, use_cache=False).logits[:, read.columns : -1]
        # The softmax is taken in fp32: that of bfloat16 logits has about two digits.
        probabilities: torch.Tensor = (
            logits[batch.labels[:, 1:] != IGNORE].float().softmax(dim=-1).clone()
        )
        return probabilities


def effective_weights(loaded: LoadedModel) -> Weights:
    """Return the trained weights as they act on the model.

    A LoRA layer gives the factors scale · B and A, with DoRA its whole matrix. An IA3 layer gives
    its vector, each number times the norm of the row or column of the base's matrix that it scales,
    so that distances are those of the scaled matrices.
    """
    # Without an adapter, all weights are trained.
    if not hasattr(loaded.model, "peft_config"):
        return {name: p.detach().cpu().clone() for name, p in loaded.model.named_parameters()}
    model = cast("PeftModel", loaded.model)
    # Virtual tokens act as they are.
    if model.active_peft_config.is_prompt_learning:
        return {
            n: p.detach().cpu().clone()
            for n, p in model.named_parameters()
            if "prompt_encoder." in n
        }
    # Some modules are trained whole beside the adapter.
    adapter, weights = model.active_adapter, Weights()
    weights.update(
        (n, p.detach().cpu().clone()) for n, p in model.named_parameters() if MODULES_TO_SAVE in n
    )
    # Read each type of adapted layer: what it multiplies the base's matrix by, or adds to it.
    for name, module in model.named_modules():
        if adapter in getattr(module, "ia3_l", {}):
            weights[name] = _scaled_matrix(cast("IA3Layer", module), adapter)
        if adapter not in getattr(module, "lora_A", {}):
            continue
        layer = cast("LoraLayer", module)
        if adapter in layer.lora_magnitude_vector:
            weights[name] = _rescaled_matrix(layer, adapter)
            continue
        down, up = (
            cast("nn.Linear", factors[adapter]).weight for factors in (layer.lora_A, layer.lora_B)
        )
        assert down.dim() == 2, "the LoRA layers that raydp trains are linear"
        weights[name] = (up.detach().cpu() * layer.scaling[adapter], down.detach().cpu().clone())
    return weights


def _rescaled_matrix(layer: LoraLayer, adapter: str) -> torch.Tensor:
    """Return [out, in] the matrix of a DoRA layer: rows of W + s B A with the learnt norms."""
    # DoRA (Liu et al. 2024, eq. 5): m · (W + s B A) / ‖W + s B A‖ for each row.
    down, up = (
        cast("nn.Linear", factors[adapter]).weight.detach()
        for factors in (layer.lora_A, layer.lora_B)
    )
    weight = cast("torch.Tensor", layer.get_base_layer().weight).detach()
    matrix = weight.to(down.dtype) + layer.scaling[adapter] * (up @ down)
    magnitudes = cast("torch.Tensor", layer.lora_magnitude_vector[adapter].weight).detach()
    rescaled: torch.Tensor = matrix * (magnitudes / matrix.norm(dim=1))[:, None]
    return rescaled.cpu()


def _scaled_matrix(layer: IA3Layer, adapter: str) -> torch.Tensor:
    """Return an IA3 vector, each number times the norm of the row or column that it scales."""
    from peft.utils.integrations import dequantize_module_weight

    base = layer.get_base_layer()
    matrix = cast("torch.Tensor", dequantize_module_weight(base)).detach().float()
    # Conv1D stores its matrix transposed.
    matrix = matrix.T if isinstance(base, Conv1D) else matrix  # [out, in]
    sizes = matrix.norm(dim=0 if layer.is_feedforward else 1)
    # A scaled row scales its bias with it.
    if base.bias is not None and not layer.is_feedforward:
        sizes = torch.hypot(sizes, cast("torch.Tensor", base.bias).detach().float())
    scaled: torch.Tensor = layer.ia3_l[adapter].detach().flatten().float() * sizes
    return scaled.cpu()


def _square(
    one: tuple[torch.Tensor, torch.Tensor] | torch.Tensor,
    other: tuple[torch.Tensor, torch.Tensor] | torch.Tensor,
) -> float:
    """Return the squared Frobenius norm of a difference.

    For updates, B A − D C = (B − D) A + D (A − C) = [B − D, D] [A; A − C]. The norm of this product
    is the norm of the product of the two triangular QR factors. It is exactly 0 for equal updates,
    and no matrix is as large as the layer.
    """
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor)
        return float((one.double() - other.double()).square().sum())
    # float64 makes equal updates come out as exactly 0.
    (up, down), (other_up, other_down) = ((b.double(), a.double()) for b, a in (one, other))
    # Only the triangular factors are needed, which have the size of the rank.
    left = torch.linalg.qr(torch.cat([up - other_up, other_up], dim=1), mode="r").R
    right = torch.linalg.qr(torch.cat([down, down - other_down]).T, mode="r").R
    return float((left @ right.T).square().sum())


def _bytes(entry: tuple[torch.Tensor, torch.Tensor] | torch.Tensor) -> int:
    parts = (entry,) if isinstance(entry, torch.Tensor) else entry
    return sum(part.numel() * part.element_size() for part in parts)
