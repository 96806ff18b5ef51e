"""The fused loss of a frozen output layer equals the plain one, value and gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from raydp.models import adapters
from raydp.models import base_models as models
from raydp.spec.sections import AdapterSpec, ModelSpec
from raydp.tasks.task import Batch
from raydp.tasks.text.token_loss import IGNORE, FrozenHeadLoss, chunk_tokens, token_nll
from tests.builders.models import plain_gpt2

pytestmark = pytest.mark.extensions("soft_prompt", "prefix")

CHUNK = chunk_tokens(torch.device("cpu"))


@pytest.mark.parametrize("count", [1, CHUNK, CHUNK + 1, 3 * CHUNK - 5])
def test_equals_cross_entropy(count: int) -> None:
    """In fp32; the two sum over the vocabulary in other orders: 1e-5 relative."""
    generator = torch.Generator().manual_seed(count)
    hidden = torch.randn(count, 16, generator=generator, requires_grad=True)
    weight = torch.randn(97, 16, generator=generator) * 3
    targets = torch.randint(0, 97, (count,), generator=generator)
    factors = torch.rand(count, generator=generator)
    fused = FrozenHeadLoss.apply(hidden, weight, targets)
    plain = F.cross_entropy(hidden @ weight.T, targets, reduction="none")
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-6)
    ours, theirs = (
        torch.autograd.grad((loss * factors).sum(), hidden)[0] for loss in (fused, plain)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_hidden_states_of_another_dtype_than_the_output_layers() -> None:
    """Under autocast on a GPU the last norm of GPT-2 is fp32 beside an output layer in bf16."""
    model = plain_gpt2().requires_grad_(False)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.bfloat16(), requires_grad=False)
    ids = torch.tensor([[5, 6, 7, 8]])
    nll = token_nll(model, Batch(input_ids=ids, labels=ids))
    assert torch.isfinite(nll).all()


def test_certain_and_hopeless_targets_stay_finite() -> None:
    hidden = torch.tensor([[100.0], [100.0]])
    weight = torch.tensor([[1.0], [-1.0]])
    loss = FrozenHeadLoss.apply(hidden, weight, torch.tensor([0, 1]))
    assert loss.tolist() == [0.0, 200.0]


def test_bf16_agrees_within_its_rounding() -> None:
    """Logits are rounded to bf16 in both, 8 bits of mantissa: 2^-8 relative of logits of size
    10."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(64, 32, generator=generator).bfloat16()
    weight = torch.randn(200, 32, generator=generator).bfloat16()
    targets = torch.randint(0, 200, (64,), generator=generator)
    fused = FrozenHeadLoss.apply(hidden, weight, targets)
    plain = F.cross_entropy((hidden @ weight.T).float(), targets, reduction="none")
    torch.testing.assert_close(fused, plain, rtol=0, atol=10 * 2**-8)


def test_the_two_ways_through_a_model_agree_and_only_targets_count() -> None:
    base = models.load_base(ModelSpec(name="tiny"))
    ids = torch.randint(3, 768, (3, 9), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[0, :4] = IGNORE
    labels[2, 6:] = IGNORE
    batch = Batch(input_ids=ids, labels=labels)
    fused = token_nll(base.model, batch).detach()
    handle = base.model.get_output_embeddings().register_forward_hook(
        lambda *_: None
    )  # as the DP step does
    plain = token_nll(base.model, batch).detach()
    handle.remove()
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
    assert (fused[0, :3] == 0).all()
    assert (fused[2, 5:] == 0).all()
    assert (fused != 0).sum() == (labels[:, 1:] != IGNORE).sum()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["soft_prompt", "prefix"])
def test_virtual_tokens_stand_before_the_text_and_have_no_loss(kind: str, dtype: str) -> None:
    """As in peft's own forward pass, by both ways through the model, and in fp32 before a bf16
    base."""
    adapter = AdapterSpec(type=kind, num_virtual_tokens=4)
    base = models.load_base(ModelSpec(name="tiny", dtype=dtype))
    ids = torch.randint(3, 768, (3, 9), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[0, :4] = IGNORE
    labels[2, 6:] = IGNORE
    batch = Batch(input_ids=ids, labels=labels)
    unprompted = token_nll(base.model, batch).detach()
    model = adapters.attach_adapter(base, adapter)
    fused = token_nll(model, batch)
    handle = base.model.get_output_embeddings().register_forward_hook(lambda *_: None)
    plain = token_nll(model, batch)
    handle.remove()
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[:, -9:-1].float()
    pefts = F.cross_entropy(logits.mT, labels[:, 1:], ignore_index=IGNORE, reduction="none")
    tolerance = {"float32": 1e-5, "bfloat16": 10 * 2**-8}[dtype]  # of logits of some 10 in size
    for ours in (fused, plain):
        torch.testing.assert_close(ours.detach(), pefts, rtol=tolerance, atol=tolerance)
    assert (fused.detach() - unprompted).abs().max() > 0.1, (
        "a prompt that does nothing would test nothing"
    )
    ((prompt, gradient),) = zip(
        adapters.trainable_parameters(model, adapter).values(),
        torch.autograd.grad(fused.sum(), list(adapters.trainable_parameters(model, adapter).values())), strict=True
    )  # fmt: skip
    assert gradient.dtype == prompt.dtype == torch.float32
    assert (gradient.abs().sum(dim=1) > 0).all()
    with model.disable_adapter():
        torch.testing.assert_close(token_nll(model, batch), unprompted)


@pytest.mark.parametrize("kind", ["lora", "soft_prompt", "prefix"])
def test_padding_does_not_change_a_loss(kind: str) -> None:
    model = adapters.attach_adapter(
        models.load_base(ModelSpec(name="tiny")), AdapterSpec(type=kind)
    )
    ids = torch.randint(3, 768, (1, 6), generator=torch.Generator().manual_seed(1))
    padded = torch.cat([ids, torch.zeros(1, 5, dtype=torch.long)], dim=1)
    labels = torch.cat([ids, torch.full((1, 5), IGNORE)], dim=1)
    alone = token_nll(model, Batch(input_ids=ids, labels=ids)).sum()
    torch.testing.assert_close(
        token_nll(model, Batch(input_ids=padded, labels=labels)).sum(), alone
    )
