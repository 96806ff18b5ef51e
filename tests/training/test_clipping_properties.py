"""The clipped sum on architectures, batches and cuts into micro-batches that nobody chose, and
against Opacus."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from opacus import GradSampleModule
from peft import LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from raydp.selftest.odd_layers import with_odd_layers
from raydp.tasks.task import Batch
from raydp.training.comm import LocalComm
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.microbatches import Units
from raydp.training.gradients.thresholds import Clipping
from tests.marks import WHOLE
from tests.training.test_clipping import TOLERANCE, batch_of, losses, reference, relative_error

VOCABULARY = 53
SMALL = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], derandomize=True)

VIRTUAL = ("soft prompt", "prefix") if WHOLE else ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, a batch, a clipping norm and a cut of the batch into micro-batches."""

    kind: str
    tied: bool
    heads: int
    head_width: int
    layers: int
    inner: int
    rank: int
    size: int
    width: int
    cuts: tuple[int, ...]
    log_norm: float
    seed: int


def cases(**fixed: object) -> st.SearchStrategy[Case]:
    free = {
        "kind": st.sampled_from(["llama", "gpt2", "lora", "odd layers", *VIRTUAL]),
        "tied": st.booleans(),
        "heads": st.integers(1, 3),
        "head_width": st.sampled_from([2, 4, 8]),
        "layers": st.integers(1, 3),
        "inner": st.integers(3, 40),
        "rank": st.integers(1, 4),
        "size": st.integers(1, 6),
        "width": st.integers(3, 20),
        "cuts": st.lists(st.integers(0, 6), max_size=3).map(tuple),
        "log_norm": st.floats(-5, 5),
        "seed": st.integers(0, 2**31),
    }
    return st.builds(Case, **{**free, **{name: st.just(value) for name, value in fixed.items()}})


def model_of(case: Case) -> nn.Module:
    """A random model of the case's architecture; LoRA's B is not 0, virtual tokens are as many as
    LoRA's rank."""
    hidden = case.heads * case.head_width
    with torch.random.fork_rng():
        torch.manual_seed(case.seed)
        if case.kind == "gpt2":
            shape = {
                "n_embd": hidden,
                "n_layer": case.layers,
                "n_head": case.heads,
                "n_inner": case.inner,
            }
            tokens = {
                "vocab_size": VOCABULARY,
                "n_positions": 24,
                "bos_token_id": 0,
                "eos_token_id": 0,
            }
            return GPT2LMHeadModel(
                GPT2Config(**shape, **tokens, tie_word_embeddings=case.tied, initializer_range=0.2)
            ).eval()
        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=case.inner, num_hidden_layers=case.layers,
            num_attention_heads=case.heads, tie_word_embeddings=case.tied, initializer_range=0.2,
        )  # fmt: skip
        model = LlamaForCausalLM(config).eval()
        if case.kind == "lora":
            targets = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]
            model = get_peft_model(
                model, LoraConfig(r=case.rank, lora_alpha=6, target_modules=targets)
            ).eval()
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    nn.init.normal_(parameter, std=0.3)
        elif case.kind == "soft prompt":
            prompt = PromptTuningConfig(num_virtual_tokens=case.rank, task_type="CAUSAL_LM")
            return get_peft_model(model, prompt).eval()
        elif case.kind == "prefix":
            states = PrefixTuningConfig(num_virtual_tokens=case.rank, task_type="CAUSAL_LM")
            return get_peft_model(model, states).eval()
        elif case.kind == "odd layers":
            return with_odd_layers(model)
        return model


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {n: p for n, p in sorted(model.named_parameters()) if p.requires_grad}


def rows_of(batch: Batch, rows: list[int]) -> Batch:
    return Batch(input_ids=batch.input_ids[rows], labels=batch.labels[rows])


def engine_sum(
    model: nn.Module, batch: Batch, c: float, parts: list[list[int]]
) -> dict[str, torch.Tensor]:
    """The engine's running sum over micro-batches."""
    parameters = trained(model)
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    engine = ClippedGradients(model, parameters, Clipping(c))
    for part in [rows_of(batch, rows) for rows in parts]:
        engine.accumulate(lambda part=part: losses(model, part), total)
    return total


def split(size: int, cuts: tuple[int, ...]) -> list[list[int]]:
    """The rows 0 to size - 1, cut at the given places; no part is empty."""
    ends = [0, *sorted({cut for cut in cuts if 0 < cut < size}), size]
    return [list(range(a, b)) for a, b in pairwise(ends)]


@SMALL
@given(case=cases())
def test_the_sum_equals_clipped_autograd_however_the_batch_is_cut(case: Case) -> None:
    model, batch, c = model_of(case), batch_of(case.size, case.width, case.seed), 2.0**case.log_norm
    parts = split(case.size, case.cuts)
    event(f"{case.kind}, {'tied' if case.tied else 'untied'}, {len(parts)} micro-batches")
    expected = reference(model, trained(model), batch, c)
    assert relative_error(engine_sum(model, batch, c, parts), expected) <= TOLERANCE


@pytest.mark.slow
@SMALL
@given(case=cases(), workers=st.integers(2, 5))
def test_the_workers_shares_sum_to_clipped_autograd(case: Case, workers: int) -> None:
    """Any number of workers, also more than there are examples: some then have nothing to do."""
    model, batch, c = model_of(case), batch_of(case.size, case.width, case.seed), 2.0**case.log_norm
    units = Units(offsets=np.arange(case.size + 1), lengths=np.arange(case.size)[::-1] % 3 + 2)
    total = {name: torch.zeros_like(p) for name, p in trained(model).items()}
    seen: list[int] = []
    for rank in range(workers):
        comm = LocalComm()
        comm.rank, comm.world_size = rank, workers
        parts = [
            rows.tolist()
            for rows, _ in units.microbatches(units.share(np.arange(case.size), comm), None, 6)
        ]
        seen += [row for part in parts for row in part]
        for name, value in engine_sum(model, batch, c, parts).items():
            total[name] += value
    event(f"{workers} workers, {'more' if workers > case.size else 'no more'} than examples")
    assert sorted(seen) == list(range(case.size))
    assert relative_error(total, reference(model, trained(model), batch, c)) <= TOLERANCE


@SMALL
@given(case=cases(), data=st.data())
def test_no_example_moves_the_sum_by_more_than_the_clipping_norm(
    case: Case, data: st.DataObject
) -> None:
    model, batch, c = model_of(case), batch_of(case.size, case.width, case.seed), 2.0**case.log_norm
    left_out = data.draw(st.integers(0, case.size - 1))
    parts = split(case.size, case.cuts)
    rest = [
        [row for row in part if row != left_out] for part in parts
    ]  # the others keep their micro-batches
    whole = engine_sum(model, batch, c, parts)
    without = engine_sum(model, batch, c, [part for part in rest if part])
    change = torch.cat([(whole[n] - without[n]).flatten().double() for n in whole]).norm().item()
    assert change <= c * (1 + TOLERANCE)


class Tokens(nn.Module):
    """What Opacus supports with rules of its own: embedding, normalisation and linear layers one
    after another."""

    def __init__(self, width: int, inner: int, *, bias: bool) -> None:
        super().__init__()
        self.stack = nn.Sequential(
            nn.Embedding(VOCABULARY, width),
            nn.LayerNorm(width),
            nn.Linear(width, inner, bias=bias),
            nn.Tanh(),
            nn.LayerNorm(inner),
            nn.Linear(inner, VOCABULARY, bias=bias),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.stack(ids)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # ids take no gradient
@SMALL
@given(
    width=st.integers(2, 24), inner=st.integers(2, 40), bias=st.booleans(), size=st.integers(1, 6),
    length=st.integers(2, 20), log_norm=st.floats(-5, 5), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_agrees_with_opacus(
    width: int, inner: int, bias: bool, size: int, length: int, log_norm: float, seed: int
) -> None:
    c = 2.0**log_norm
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Tokens(width, inner, bias=bias).eval()
        ids = torch.randint(0, VOCABULARY, (size, length))
        targets = torch.randint(0, VOCABULARY, (size, length))

    def loss(module: nn.Module) -> torch.Tensor:
        logits = module(ids)
        return nn.functional.cross_entropy(logits.mT, targets, reduction="none").mean(dim=1)

    parameters = trained(model)
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    ClippedGradients(model, parameters, Clipping(c)).accumulate(lambda: loss(model), total)

    wrapped = GradSampleModule(
        model.train(), loss_reduction="sum"
    )  # it records in train mode only; nothing is random
    loss(wrapped).sum().backward()
    samples = {name: p.grad_sample.double() for name, p in parameters.items()}
    norms = (
        torch.stack([g.flatten(1).square().sum(dim=1) for g in samples.values()]).sum(dim=0).sqrt()
    )
    factors = (c / norms).clamp(max=1.0)
    expected = {name: torch.einsum("b,b...->...", factors, g) for name, g in samples.items()}
    assert relative_error(total, expected) <= TOLERANCE
