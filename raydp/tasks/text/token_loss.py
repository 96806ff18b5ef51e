"""Negative log-likelihood of every target token.

It takes most of the time of a small model with a large vocabulary.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from raydp.models.adapters import calling, causal_model, skipping_layers
from raydp.models.reading import Reading, reading
from raydp.tasks.task import Batch

IGNORE = -100
CHUNK_TOKENS = {"cpu": 128, "cuda": 2048}
"""Number of tokens whose logits exist at a time.

It is small enough for a CPU's caches and large enough for the matrix product. A GPU reads the whole
output layer for each chunk, so its chunks are larger.
"""
PLAIN_HEADS = {"gpt2", "llama", "mistral", "qwen2", "qwen3"}
"""Architectures that compute logits from the last hidden state by the output layer alone."""


def chunk_tokens(device: torch.device) -> int:
    """Return how many tokens' logits exist at a time on a device."""
    return CHUNK_TOKENS.get(device.type, CHUNK_TOKENS["cpu"])


def token_nll(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return [B, L - 1] the negative log-likelihood (nats, fp32) of each next token.

    It is 0 for a token that is no target.

    A frozen, plain output layer is fused with the loss. If the output layer is trained, or the
    architecture is not in PLAIN_HEADS, the model's own forward pass is used. Virtual tokens stand
    before the text and have no loss themselves.
    """
    read, labels, causal = _reading(model, batch), batch.labels[:, 1:], causal_model(model)
    with _from_hidden(model, batch):
        # In general, the model computes all logits. float(), because the softmax needs fp32.
        if not _has_plain_frozen_head(causal):
            logits: torch.Tensor = read.model(**read.inputs).logits[:, read.columns : -1]
            flat = F.cross_entropy(
                logits.reshape(-1, logits.shape[-1]).float(),
                labels.reshape(-1),
                ignore_index=IGNORE,
                reduction="none",
            )
            return flat.view(labels.shape)
        # The fast path runs inside the model's own call, so that hooks and FSDP see a forward pass.
        with calling(model, lambda ids: _fused_nll(causal, read, labels)):
            # FSDP2 on GPUs fails for a call without arguments.
            nll: torch.Tensor = model(batch.input_ids)
            return nll


def token_logits(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return [B, L - 1, V] logits of each next token, in the model's dtype."""
    read = _reading(model, batch)
    with _from_hidden(model, batch):
        logits: torch.Tensor = read.model(**read.inputs).logits
        return logits[:, read.columns : -1]


def _reading(model: nn.Module, batch: Batch) -> Reading:
    """Return the model's inputs for a batch: its token ids, or its hidden states if it has them."""
    read = reading(model, batch.input_ids)
    if batch.hidden is not None:
        # With inputs_embeds the ids must go: transformers refuses both.
        del read.inputs["input_ids"]
        read.inputs["inputs_embeds"] = batch.hidden
    read.inputs["use_cache"] = False
    return read


def _from_hidden(model: nn.Module, batch: Batch) -> AbstractContextManager[None]:
    """Skip the first layers for the block if the batch carries hidden states."""
    return nullcontext() if batch.hidden is None else skipping_layers(model, batch.first_layer)


def _fused_nll(causal: PreTrainedModel, read: Reading, labels: torch.Tensor) -> torch.Tensor:
    """Return [B, L - 1] the negative log-likelihood of targets through a frozen output layer."""
    hidden = getattr(causal, causal.base_model_prefix)(**read.inputs).last_hidden_state[
        :, read.columns : -1
    ]
    # Only targets go through the output layer, which costs most in a small model.
    wanted = labels != IGNORE
    weight = causal.get_output_embeddings().weight
    # autocast leaves GPT-2's last norm in fp32
    inputs = (hidden[wanted].to(weight.dtype), weight, labels[wanted])
    nll: torch.Tensor = FrozenHeadLoss.apply(*inputs)  # type: ignore[no-untyped-call]  # torch's own has no types
    return torch.zeros(labels.shape, device=nll.device).masked_scatter(wanted, nll)


def _has_plain_frozen_head(causal: PreTrainedModel) -> bool:
    """Return whether the output layer is one plain product, without gradient and DP hooks."""
    head = causal.get_output_embeddings()
    # FrozenHeadLoss relies on every condition: softcapping, a bias or a trained head would give
    # another loss.
    return (
        causal.config.model_type in PLAIN_HEADS
        and type(head) is nn.Linear
        and head.bias is None
        and not head.weight.requires_grad
        and not head._forward_hooks
    )


class FrozenHeadLoss(torch.autograd.Function):
    """Cross-entropy of a frozen output layer, in chunks of tokens.

    The gradient of token i's loss by its hidden state, Σ_v softmax(W h_i)_v W_v - W_{y_i}, needs
    only a factor from the backward pass. So the forward pass computes it while the logits exist,
    and the logits are never stored.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """Return [N] losses (fp32, nats) for hidden [N, H], weight [V, H] and targets [N].

        hidden and weight have one dtype.
        """
        size = chunk_tokens(hidden.device)
        if hidden.device.type == "cuda":  # on a CPU a new shape would make another kernel
            size = max(1, min(size, len(targets)))
        # Allocate every buffer once.
        nll = torch.empty(len(targets), device=hidden.device)
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        logits = torch.empty(size, len(weight), dtype=weight.dtype, device=hidden.device)
        scores = torch.empty(size, len(weight), device=hidden.device)
        part = torch.zeros(size, hidden.shape[1], dtype=hidden.dtype, device=hidden.device)
        # Every chunk has the same shape (the last one with unused rows), and every buffer is
        # reused. A new shape would generate and keep another kernel, and new memory would cause
        # page faults.
        for start in range(0, len(targets), size):
            target = targets[start : start + size, None]
            used = len(target)
            part[:used] = hidden[start : start + used]
            scores.copy_(torch.mm(part, weight.T, out=logits))
            # Subtract the largest logit before the exponential (log-sum-exp), in fp32.
            largest = scores.amax(dim=1, keepdim=True)
            target_score = (scores[:used].gather(1, target) - largest[:used])[:, 0]
            total = scores.sub_(largest).exp_().sum(dim=1, keepdim=True)
            nll[start : start + used] = total[:used, 0].log() - target_score
            # Compute Σ_v softmax(W h)_v W_v - W_y while the logits exist; backward only scales it.
            if gradient is not None:
                expected = torch.mm(logits.copy_(scores), weight).float() / total
                gradient[start : start + used] = expected[:used] - weight[target[:, 0]]
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return nll

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0][:, None].to(gradient.dtype), None, None
