"""Checks, before training, that the examples of a model and a task do not depend on each other.

The guarantee of DP-SGD assumes that an example's loss depends on that example alone. Rows of a
batch are padded on the right without a mask, so the assumption needs causal attention. A few short
examples show whether it holds.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from raydp.models import adapters
from raydp.models.families import family_of_type
from raydp.models.pretrained import PretrainedModel
from raydp.spec.sections.model import AdapterSpec
from raydp.tasks.task import Batch, Examples, Task
from raydp.tasks.text.token_loss import IGNORE, token_logits, token_nll
from raydp.training.batch_sum import losses_of
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.thresholds import Clipping
from raydp.training.trial import TrainingContext

LENGTHS = (12, 9, 5)
"""Largest number of tokens of each example that is tried."""
MORE_PADDING = 3
"""Columns of padding beyond the longest example, in one of the two batches that are compared."""
MOST_COPIES = 12
"""Number of times that each example is in the larger batch."""
LARGER_TOKENS = 512
"""Number of padded tokens that the larger batch has at most, unless it is no larger."""
DRAWN = 64
"""Number of examples that the task is asked for in one batch."""
LONG_TOKENS = 256
"""Smallest number of tokens of the long rows together."""
MOST_COPIED = 8 << 30
"""Largest size in bytes of a copy of the weights in 32 bits, which tells rounding from a fault."""
INT8_ROUNDING = 2.0**-7
"""Distance between two neighbouring numbers in 8 bits, as a share of the largest."""


class DependentExamples(ValueError):  # noqa: N818 - named after what is wrong
    """Examples depend on each other, or are not trained as the model reads them."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured difference, which is 0 but for rounding.

    Attributes:
        name: what is compared.
        difference: the difference, relative to the size of what is compared.
        rounding: the largest difference that rounding explains: half of the digits of the type of
            the products.
        refusal: a sentence with the places {model}, {difference} and {rounding}, for a difference
            above the rounding.
    """

    name: str
    difference: float
    rounding: float
    refusal: str

    @property
    def holds(self) -> bool:
        """Return whether rounding explains the difference, if it is a number at all."""
        return self.difference <= self.rounding


_LATER_TOKENS = (
    "model.name must predict each token from the tokens before it, got {model!r}: a later token "
    "changes the logits of earlier positions by {difference:.2g} of their size (rounding: "
    "{rounding:.1g}). Rows are padded without a mask, so examples would change each other's "
    "gradients and no ε would hold. Use a model with causal attention, such as Llama, Qwen or "
    "GPT-2."
)
_PLAIN_CALL = (
    "model.name must give in training the logits that it gives alone, got {model!r}: they differ "
    "by {difference:.2g} of their size from a call with input_ids and attention_mask (rounding: "
    "{rounding:.1g}). It counts positions in its own way, or rows of a batch change each other. "
    "Use a model such as Llama, Qwen or GPT-2."
)
_WIDTH = (
    "model.name must give a row losses that do not depend on the width of its batch, got "
    "{model!r}: the losses of a row's tokens differ by {difference:.2g} between the row alone and "
    "the row in a wider batch (rounding: {rounding:.1g}). A longer example would change the "
    "gradients of others, and no ε would hold. Shorten the examples (task.max_length), or use a "
    "model such as Llama, Qwen or GPT-2."
)
_DRAWN = (
    "task must give an example the same tokens and targets alone and in a batch, got others for "
    "{difference:.0%} of some examples. They would depend on the other examples, and no ε would "
    "hold. Let the task's batch treat each example by itself."
)
_COMPANY = (
    "task and model.name must give each example a loss that depends on it alone, got {model!r}: "
    "the loss or the gradient of an example differs by {difference:.2g} between the example alone "
    "and in a batch (rounding: {rounding:.1g}). No ε would hold. Let the model and the task's "
    "per_example_loss treat each example by itself."
)
_ROUNDING = (
    "model.dtype must be float32 on this machine, which rounds products in 16 bits too far for "
    "{model!r}: what the check {what!r} compares differs by {difference:.2g} of its size (at most "
    "{rounding:.1g}), and in float32 it agrees. An example would change the gradients of others. "
    "Write dtype: float32."
)
_CLIPPED_SUM = (
    "model.adapter must train weights whose per-example gradients are known, got {model!r}: the "
    "gradients that are clipped differ by {difference:.2g} from those of autograd (rounding: "
    "{rounding:.1g}). No ε would hold. Use `type: lora`, or another model."
)


def check(
    context: TrainingContext,
    task: Task,
    *,
    model: str,
    clipped: bool,
    sharded: bool = False,
    most_tokens: int | None = None,
) -> None:
    """Check a model that is about to be trained; see `figures`.

    Args:
        model: its name in the spec.
        sharded: whether its weights are spread over workers. Its gradients are then not checked.
        most_tokens: largest width of the long rows; None for the length of the task's longest
            example.
    """
    measured = partial(figures, task=task, clipped=clipped, most_tokens=most_tokens)
    for figure in measured(context, sharded=sharded):
        if figure.holds:
            continue
        # A machine without products in 16 bits may round far more than half of the digits.
        exact = None if sharded else _in_float32(context)
        only_rounds = exact is not None and all(own.holds for own in measured(exact))
        values = {"difference": figure.difference, "rounding": figure.rounding}
        refusal = _ROUNDING if only_rounds else figure.refusal
        raise DependentExamples(refusal.format(model=model, what=figure.name, **values))


def _in_float32(context: TrainingContext) -> TrainingContext | None:
    """Return a context that computes in 32 bits.

    None if this one does, if the weights are no floating-point numbers, or if their copy would be
    too large.
    """
    if context.autocast is not None:
        return replace(context, autocast=None)
    weights = list(context.model.parameters())
    is_float = all(p.is_floating_point() for p in weights)
    size = 4 * sum(p.numel() for p in weights)
    if not is_float or size > MOST_COPIED or all(p.dtype == torch.float32 for p in weights):
        return None
    copies: dict[int, nn.Parameter] = {}
    model = copy.deepcopy(context.model, cast("dict[int, object]", copies)).float()
    own = {name: copies[id(parameter)] for name, parameter in context.parameters.items()}
    return replace(context, model=model, parameters=own)


def figures(
    context: TrainingContext,
    task: Task,
    *,
    clipped: bool,
    sharded: bool = False,
    most_tokens: int | None = None,
) -> Iterator[Figure]:
    """Yield the differences that are 0 for a sound model and task, but for rounding.

    A language model must not change the logits of a position if a later token changes. It must give
    the same logits in a row of a batch as in a plain call with `input_ids` and `attention_mask`. A
    row as long as the task's longest example must have the same losses in a narrower batch. For any
    task, an example must have the same loss and gradient alone and in a batch. With clipping, the
    gradients must be those of autograd.
    """
    figure = partial(Figure, rounding=_largest_rounding(context))
    # Checks of language models alone, on made-up tokens.
    if family_of_type(getattr(context.model.config, "model_type", None)) is None:
        rows = _made_up_tokens(context.model)
        later = _later_tokens(context, rows[0])
        yield figure(name="later tokens", difference=later, refusal=_LATER_TOKENS)
        yield figure(name="plain call", difference=_plain_call(context, rows), refusal=_PLAIN_CALL)
        longest = int(task.lengths().max())
        width = longest if most_tokens is None else min(longest, most_tokens)
        yield figure(name="long rows", difference=_long_rows(context, width), refusal=_WIDTH)
    # Checks of any model, on a few examples of its task.
    few = _Few.of(task, context)
    yield figure(name="rows of a batch", difference=_rows_apart(task), refusal=_DRAWN)
    yield figure(name="losses in a batch", difference=_losses_apart(context, few), refusal=_COMPANY)
    # A sharded model has no whole gradients to compare.
    if not sharded:
        in_batch, clipping = _gradients_apart(context, few, clipped=clipped)
        yield figure(name="gradients in a batch", difference=in_batch, refusal=_COMPANY)
        if clipped:
            yield figure(name="clipped gradients", difference=clipping, refusal=_CLIPPED_SUM)


@dataclass(frozen=True, kw_only=True)
class _Few:
    """A few examples of a task.

    Attributes:
        indices: their positions in the training data.
        rows: each example as a batch of one, cut to a few tokens; None if the form of the task's
            batches is not known.
    """

    task: Task
    device: torch.device
    indices: NDArray[np.int64]
    rows: list[Batch] | None

    @classmethod
    def of(cls, task: Task, context: TrainingContext) -> _Few:
        """Return short examples, of different lengths where there are some."""
        lengths = task.lengths()
        # The shortest lengths that the task has, one example each, filled up with others.
        _, of_each_length = np.unique(lengths, return_index=True)
        others = np.setdiff1d(np.arange(min(len(lengths), len(LENGTHS))), of_each_length)
        indices = np.concatenate([of_each_length[::-1][-len(LENGTHS) :], others])[: len(LENGTHS)]
        batches = [task.batch(indices[i : i + 1]) for i in range(len(indices))]
        rows = None
        if all(type(batch) is Batch for batch in batches):
            # An architecture check has a small vocabulary, into which other tokens are mapped.
            cut = partial(_cut, vocabulary=_vocabulary(context.model))
            rows = list(map(cut, cast("list[Batch]", batches), LENGTHS))
        return cls(task=task, device=_device(context), indices=indices, rows=rows)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def copies(self) -> int:
        """Return how often each example is in the larger batch."""
        longest = int(self.task.lengths()[self.indices].max())
        width = LENGTHS[0] if self.rows is not None else longest
        return min(MOST_COPIES, max(1, LARGER_TOKENS // (width * len(self))))

    def batch(self, order: Sequence[int], padding: int = 0) -> Examples:
        """Return the examples in an order.

        If the form of the batches is known, there are `padding` further columns of padding.
        """
        if self.rows is None:
            examples: Examples = self.task.batch(self.indices[list(order)])
            return examples.to(self.device)
        ids = _padded([self.rows[i].input_ids[0] for i in order], 0, padding)
        labels = _padded([self.rows[i].labels[0] for i in order], IGNORE, padding)
        return Batch(input_ids=ids, labels=labels).to(self.device)


def _padded(rows: list[torch.Tensor], value: int, padding: int) -> torch.Tensor:
    """Return rows of the longest one's width and `padding` further columns."""
    together = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)
    return F.pad(together, (0, padding), value=value)


def _cut(batch: Batch, length: int, vocabulary: int) -> Batch:
    """Return the last tokens of an example up to its last target, as ids that a vocabulary has."""
    end = int((batch.labels[0] != IGNORE).nonzero().max()) + 1
    cut = slice(max(0, end - length), end)
    ids, labels = batch.input_ids[:, cut], batch.labels[:, cut]
    # Ids 0 and 1 are left out: they often pad or begin a text.
    if int(ids.max()) >= vocabulary:
        ids = 2 + ids % (vocabulary - 2)
        labels = torch.where(labels == IGNORE, IGNORE, ids)
    return Batch(input_ids=ids, labels=labels)


def _made_up_tokens(model: nn.Module, lengths: Sequence[int] = LENGTHS) -> list[torch.Tensor]:
    """Return rows of token ids of the model's vocabulary. Ordinary tokens are in its middle."""
    # Ids near 0 are often special tokens, which a model may treat differently.
    generator, half = torch.Generator().manual_seed(0), _vocabulary(model) // 2
    return [
        half + torch.randint(max(1, half - 1), (length,), generator=generator) for length in lengths
    ]


def _vocabulary(model: nn.Module) -> int:
    """Return the number of tokens that a model predicts; some read more."""
    causal = adapters.causal_model(model)
    rows = int(cast(nn.Embedding, causal.get_input_embeddings()).weight.shape[0])
    return min(rows, getattr(causal.get_output_embeddings(), "out_features", rows))


def _device(context: TrainingContext) -> torch.device:
    return next(iter(context.parameters.values())).device


def _largest_rounding(context: TrainingContext) -> float:
    """Return half of the digits of the model's numbers, as a relative difference."""
    types = {context.autocast or p.dtype for p in context.model.parameters()}
    eps = [torch.finfo(dtype).eps for dtype in types if dtype.is_floating_point]
    # Half of the digits: the square root of the dtype's epsilon.
    return float(max([*eps, *([INT8_ROUNDING] if torch.int8 in types else [])]) ** 0.5)


def _autocast(context: TrainingContext) -> torch.autocast:
    dtype = context.autocast
    return torch.autocast(_device(context).type, dtype=dtype, enabled=dtype is not None)


def _logits(context: TrainingContext, rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return [B, L - 1, V] the logits of rows of tokens in one batch, as training computes them."""
    ids = nn.utils.rnn.pad_sequence(list(rows), batch_first=True).to(_device(context))
    with torch.no_grad(), _autocast(context):
        return token_logits(context.model, Batch(input_ids=ids, labels=ids)).float()


def _later_tokens(context: TrainingContext, row: torch.Tensor) -> float:
    """Return how far logits change if later tokens change."""
    kept = len(row) // 2
    # Other tokens after the kept ones, made by turning the kept ones around.
    changed = torch.cat([row[:kept], row[:kept].flip(0), row[2 * kept :]])
    first, second = (_logits(context, [ids])[0, :kept] for ids in (row, changed))
    return _difference(second, first)


def _plain_call(context: TrainingContext, rows: Sequence[torch.Tensor]) -> float:
    """Return how far the logits of rows in a batch are from those of plain calls for each row."""
    together, largest = _logits(context, rows), 0.0
    for row, own in zip(rows, together, strict=True):
        ids = row[None].to(_device(context))
        # A mask of ones and no cache: the model's own way of counting positions.
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with torch.no_grad(), _autocast(context):
            outputs = context.model(**inputs, use_cache=False)
        plain = outputs.logits[0, -len(row) : -1].float()
        largest = _larger(largest, _difference(own[: len(row) - 1], plain))
    return largest


def _long_rows(context: TrainingContext, width: int) -> float:
    """Return how far a row's token losses differ between the row alone and a wider batch.

    In the wide batch, other tokens follow the row. Rows of several lengths are tried. Some models
    depend on the width of a batch only beyond some position, and there only for some tokens.
    """
    wide = torch.stack(_made_up_tokens(context.model, [width] * max(1, LONG_TOKENS // width)))
    in_wide, largest = _token_losses(context, wide), 0.0
    # The size is of all tokens: the losses of a few happen to be close to each other.
    spread = in_wide.double().std().clamp(min=1e-30)
    # Lengths near both ends and in the middle: some models change their attention at a certain
    # width.
    for length in {LENGTHS[-1], width // 2, width * 3 // 4, width - MORE_PADDING}:
        if 2 < length < width:
            alone = _token_losses(context, wide[:, :length])
            apart = (in_wide[:, : length - 1] - alone).double().abs() / spread
            # One token may be far off among hundreds that are not. Of so many rounded values, one
            # is up to about three standard deviations off.
            largest = _larger(largest, float(apart.square().mean().sqrt()))
            largest = _larger(largest, float(apart.max()) / 3)
    return largest


def _token_losses(context: TrainingContext, ids: torch.Tensor) -> torch.Tensor:
    """Return [B, L - 1] the losses of tokens, as training computes them."""
    ids = ids.to(_device(context))
    with torch.no_grad(), _autocast(context):
        return token_nll(context.model, Batch(input_ids=ids, labels=ids))


def _rows_apart(task: Task) -> float:
    """Return the share of examples whose tokens or targets change in a batch.

    It is 0 if the form of the task's batches is not known.

    Tokens after the last target count for nothing.
    """
    num_examples = len(task.lengths())
    indices = np.unique(np.linspace(0, num_examples - 1, DRAWN).astype(np.int64))
    alone = [task.batch(indices[i : i + 1]) for i in range(len(indices))]
    together = task.batch(indices)
    if not all(type(batch) is Batch for batch in (*alone, together)):
        return 0.0
    return 1 - sum(_same_row(batch, together, row) for row, batch in enumerate(alone)) / len(alone)


def _same_row(alone: Batch, together: Batch, row: int) -> bool:
    """Return whether a row of a batch has the tokens and targets of an example alone."""
    end = int((alone.labels[0] != IGNORE).nonzero().max()) + 1
    ids, labels = together.input_ids[row], together.labels[row]
    targets = torch.equal(labels[:end], alone.labels[0, :end]) and bool(
        (labels[end:] == IGNORE).all()
    )
    return targets and torch.equal(ids[:end], alone.input_ids[0, :end])


def _losses_apart(context: TrainingContext, few: _Few) -> float:
    """Return the largest difference between an example's loss alone and in three other batches."""
    order = list(range(len(few)))
    with torch.no_grad():
        # Each example alone, then in a batch, in a batch in another order with padding, and in a
        # larger batch.
        alone = torch.cat([losses_of(context, few.task, few.batch([i])) for i in order])
        together = losses_of(context, few.task, few.batch(order))
        turned = losses_of(context, few.task, few.batch(order[::-1], MORE_PADDING)).flip(0)
        larger = losses_of(context, few.task, few.batch(order * few.copies))
    apart = _larger(_difference(together, alone), _difference(turned, alone))
    return _larger(apart, _difference(larger, alone.repeat(few.copies)))


def losses_of_a_few(context: TrainingContext, task: Task) -> torch.Tensor:
    """Return the losses of a few short examples of a task in one batch."""
    few = _Few.of(task, context)
    with torch.no_grad():
        return losses_of(context, task, few.batch(range(len(few))))


def _gradients_apart(context: TrainingContext, few: _Few, *, clipped: bool) -> tuple[float, float]:
    """Return how far an example's gradients are apart in two comparisons.

    The first is between the example alone and a batch, the second between clipping and autograd; it
    is 0 without clipping.
    """
    order = list(range(len(few)))
    total = {n: torch.zeros_like(p, dtype=torch.float32) for n, p in context.parameters.items()}
    norms = torch.zeros(len(few))
    if clipped:
        # A threshold that clips nothing: the sum is then that of the plain gradients.
        unscaled = ClippedGradients(context.model, context.parameters, Clipping(1e30))
        losses_fn = partial(losses_of, context, few.task, few.batch(order))
        norms = unscaled.accumulate(losses_fn, total)[1].cpu()
    # One row at a time, against autograd on the example alone.
    together = losses_of(context, few.task, few.batch(order))
    in_batch, of_norms, squares = 0.0, 0.0, 0.0
    for row in order:
        alone = _gradient(context, losses_of(context, few.task, few.batch([row]))[0])
        own = _gradient(context, together[row])
        size = _norm(alone)
        apart = _norm([a - b for a, b in zip(own, alone, strict=True)])
        in_batch = _larger(in_batch, apart / max(size, 1e-30))
        of_norms = _larger(of_norms, abs(float(norms[row]) - size) / max(size, 1e-30))
        squares += size**2
        # What is left of the clipped sum is its difference from autograd's.
        for sums, gradient in zip(total.values(), alone, strict=True):
            sums -= gradient
    if not clipped:
        return in_batch, 0.0
    return in_batch, _larger(of_norms, _norm(list(total.values())) / max(squares**0.5, 1e-30))


def _gradient(context: TrainingContext, loss: torch.Tensor) -> list[torch.Tensor]:
    parameters = list(context.parameters.values())
    return list(torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True))


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    norms = [torch.linalg.vector_norm(t.detach().double()) for t in tensors]
    return float(torch.stack(norms).norm())


def _difference(values: torch.Tensor, expected: torch.Tensor) -> float:
    """Return ‖values - expected‖ / ‖expected‖; logits count without their mean over tokens."""
    # Softmax ignores a constant added to all logits, so the mean would hide a real difference.
    expected, difference = expected.double(), (values - expected).double()
    if expected.dim() > 1:
        expected = expected - expected.mean(dim=-1, keepdim=True)
    return float(difference.norm() / expected.norm().clamp(min=1e-30))


def _larger(first: float, second: float) -> float:
    """Return the larger number, or one that is not a number."""
    # NaN must win, because it shows that something is wrong. max() would drop it.
    return first if first != first else max(second, first)


def start_training_context(
    base: PretrainedModel, adapter: AdapterSpec, microbatch_size: int | None = None
) -> TrainingContext:
    """Return the model with its adapter, LoRA's B not 0, where A would have no gradient."""
    model = adapters.attach_adapter(base, adapter)
    parameters = adapters.trainable_parameters(model, adapter)
    start = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    adapters.initialise(parameters, adapter, start, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in parameters.items():
            if ".lora_B." in name:
                parameter.normal_(std=0.1, generator=generator)
    return TrainingContext(model=model, parameters=parameters, microbatch_size=microbatch_size)
