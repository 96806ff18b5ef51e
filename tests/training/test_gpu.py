"""On a GPU training and scoring give what they give on a CPU.

Selected by `-m gpu`; fails where there is none.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from raydp.extensions.frozen_prefix.prefix import with_frozen_prefix
from raydp.extensions.prompt_search.score import AdversarialCompression
from raydp.models import adapters
from raydp.models import base_models as models
from raydp.models.quantization import quantise
from raydp.scores.language.generation import Sampling, sample_continuations, uniforms
from raydp.scores.language.teacher_forcing import log_probabilities
from raydp.spec.sections import AdapterSpec
from raydp.tasks.task import Secret
from raydp.testing.models import byte_tokenizer, memorise
from raydp.training import sharding
from raydp.training.batch_sum import losses_of
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import DistributedComm, LocalComm
from raydp.training.gradients import layers, narrow_products
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.memory import TokenBudget, is_out_of_memory, take_share
from raydp.training.gradients.thresholds import Clipping
from raydp.training.noise import chacha
from raydp.training.noise.lattice import add_lattice_noise
from raydp.training.noise.stream import KeyedStream
from raydp.training.trial import Paused, TrainingContext
from tests.builders import toys
from tests.builders.models import plain_gpt2

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda:0")
CPU = torch.device("cpu")
DEVICE_TOLERANCE = 1e-5
"""As CUT_TOLERANCE of test_invariants: fp32 sums in another order, carried to a weight by Adam's
division."""
FULL = AdapterSpec(type="none")
STREAM = KeyedStream(key=toys.KEY, run_id="device")


@pytest.fixture(autouse=True)
def _own_memory() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


@pytest.fixture
def ranks() -> Iterator[DistributedComm]:
    """A group of one rank with NCCL."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    dist.init_process_group("nccl", rank=0, world_size=1)
    yield DistributedComm(GPU)
    dist.destroy_process_group()


def toy_on(device: torch.device, adapter: AdapterSpec, **options: object) -> TrainingContext:
    toy = toys.context(adapter, **options)
    toy.model.to(device)
    return toy


def secret(number: int, prompt: str, continuation: str) -> Secret:
    return Secret(prompt=prompt, continuation=continuation, count=1, number=number)


def weights(toy: TrainingContext) -> dict[str, torch.Tensor]:
    return {name: sharding.local(p).clone().cpu() for name, p in toy.parameters.items()}


def trained(
    device: torch.device, adapter: AdapterSpec, method: Any, **options: object
) -> dict[str, torch.Tensor]:
    """The weights after the toy plan on a device."""
    toy = toy_on(device, adapter, **options)
    method.train(toys.PLAN, toy, toys.task_of(method), LocalComm(device), toys.KEY, None)
    return weights(toy)


@pytest.mark.parametrize("method", list(toys.METHODS))
@pytest.mark.parametrize("adapter", [toys.ADAPTER, FULL], ids=["lora", "full"])
def test_a_gpu_gives_the_weights_of_a_cpu(adapter: AdapterSpec, method: str) -> None:
    chosen = toys.METHODS[method]
    assert (
        toys.distance(trained(CPU, adapter, chosen), trained(GPU, adapter, chosen))
        <= DEVICE_TOLERANCE
    )


@pytest.mark.parametrize(
    "adapter",
    [
        toys.ADAPTER.model_copy(update={"use_dora": True}),
        toys.ADAPTER.model_copy(update={"lora_dropout": 0.25}),
        AdapterSpec(type="bitfit"),
        AdapterSpec(type="prefix", num_virtual_tokens=3),
        AdapterSpec(type="soft_prompt", num_virtual_tokens=3),
    ],
    ids=["dora", "dropout", "bitfit", "prefix", "soft prompt"],
)
def test_every_adapter_gives_the_weights_of_a_cpu(adapter: AdapterSpec) -> None:
    one, other = (trained(device, adapter, toys.METHOD) for device in (CPU, GPU))
    assert toys.distance(one, other) <= DEVICE_TOLERANCE


@pytest.mark.parametrize(
    ("start", "count"), [(0, 1), (3, 21), (8 * (2**32 - 3) + 2, 10), (123_457, 100_000), (0, 0)]
)
def test_the_uniforms_of_a_device_are_those_of_the_host_bit_for_bit(start: int, count: int) -> None:
    assert chacha.drawn_uniforms is not None, "Triton's kernel draws on CUDA"
    expected = STREAM.uniform(count, step=2, purpose="noise", name="w", start=start)
    subkey = STREAM._subkey(2, "noise", "w")
    segments = [chacha.Segment(subkey, 5, 3), chacha.Segment(subkey, start, count)]
    assert np.array_equal(chacha.uniforms(segments, GPU)[3:].cpu().numpy(), expected)
    words = chacha.words(subkey, start, count, GPU).cpu().numpy().view(np.uint64)
    assert np.array_equal(words, STREAM.bits(count, step=2, purpose="noise", name="w", start=start))


@pytest.mark.parametrize("part", [slice(None), slice(70_000, 70_003), slice(1, 99_999)])
def test_the_noise_of_a_device_is_that_of_the_host(part: slice) -> None:
    """Logarithm, sine and cosine differ in their last bits, which few values keep through the
    lattice."""
    one, other = (
        STREAM.normal_on(d, 100_001, step=2, purpose="noise", part=part) for d in (CPU, GPU)
    )
    torch.testing.assert_close(other.cpu(), one, rtol=0, atol=8 * 2**-49)
    sums = [torch.linspace(-1, 1, len(one), device=noise.device) for noise in (one, other)]
    for total, noise in zip(sums, (one, other), strict=True):
        add_lattice_noise(total, noise, std=0.7, step=2.0**-20)
    assert float((sums[1].cpu() == sums[0]).double().mean()) > 0.999


def test_noise_that_is_drawn_together_is_that_of_each_stream() -> None:
    counts = {"a": 1, "b": 1000, "c": 77, "d": 4096}
    together = STREAM.normals_on(GPU, counts, step=3, purpose="noise").split(list(counts.values()))
    for (name, count), drawn in zip(counts.items(), together, strict=True):
        alone = STREAM.normal_on(GPU, count, step=3, purpose="noise", name=name)
        assert torch.equal(drawn, alone)


def test_a_paused_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    expected = trained(GPU, toys.ADAPTER, toys.METHOD)
    asked = iter([False, False, False, False, True])
    store = CheckpointStore(folder=tmp_path, run_id=toys.PLAN.run_id)
    stopped = toy_on(GPU, toys.ADAPTER, pause_fn=lambda: next(asked), checkpoint_seconds=1e9)
    with pytest.raises(Paused):
        toys.METHOD.train(toys.PLAN, stopped, toys.task(), LocalComm(GPU), toys.KEY, store)
    toy = toy_on(GPU, toys.ADAPTER)
    outcome = toys.METHOD.train(toys.PLAN, toy, toys.task(), LocalComm(GPU), toys.KEY, store)
    assert outcome.resumed_from == 4
    assert toys.distance(weights(toy), expected) <= DEVICE_TOLERANCE


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("adapter", [toys.ADAPTER, FULL], ids=["lora", "full"])
def test_a_group_of_ranks_gives_the_weights_of_one_process(
    ranks: DistributedComm, adapter: AdapterSpec, sharded: bool
) -> None:
    expected = trained(GPU, adapter, toys.METHOD)
    toy = toys.context(adapter)
    if sharded:
        replicated = set() if adapter.trains_base else set(toy.parameters.values())
        sharding.shard(toy.model, ranks, replicated=replicated)
        toy = replace(toy, parameters=adapters.trainable_parameters(toy.model, adapter))
    else:
        toy.model.to(GPU)
    toys.METHOD.train(toys.PLAN, toy, toys.task(), ranks, toys.KEY, None)
    assert toys.distance(weights(toy), expected) <= DEVICE_TOLERANCE


@pytest.mark.parametrize("there", [False, True], ids=["quantised on the CPU", "quantised there"])
@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_few_bit_weights_train_an_adapter(kind: str, there: bool) -> None:
    """The kernels of a GPU round otherwise than those of a CPU: the step differs by less than the
    weights' rounding."""
    pytest.importorskip("bitsandbytes")
    changes = []
    for few_bits in (None, kind):
        base = toys.pretrained()
        base = replace(base, quantization=few_bits)
        quantise(base, GPU if there else None)
        model = adapters.attach_adapter(base, toys.ADAPTER).to(GPU)
        parameters = adapters.trainable_parameters(model, toys.ADAPTER)
        start = {n: p.detach().clone() for n, p in parameters.items()}
        adapters.initialise(parameters, toys.ADAPTER, start, seed=0)
        toy = TrainingContext(model=model, parameters=parameters)
        before = weights(toy)
        toys.METHOD.train(toys.PLAN, toy, toys.task(), LocalComm(GPU), toys.KEY, None)
        after = weights(toy)
        changes.append(torch.cat([(after[n] - before[n]).flatten() for n in after]))
    assert torch.isfinite(changes[1]).all()
    assert float(torch.cosine_similarity(*changes, dim=0)) > 0.8, "the same data and the same noise"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_prefix_changes_no_loss(dtype: torch.dtype, tmp_path: Path) -> None:
    said: list[str] = []
    adapter = toys.ADAPTER.model_copy(update={"layers_to_transform": (2,)})
    base = toys.pretrained()
    base.model.to(dtype)
    model = adapters.attach_adapter(base, adapter).to(GPU)
    parameters = adapters.trainable_parameters(model, adapter)
    cached = with_frozen_prefix(
        toys.task(),
        model,
        parameters,
        weight_hash="x",
        folder=tmp_path,
        max_bytes=1e9,
        say=said.append,
    )
    assert cached.train_hidden is not None
    assert not said
    with torch.inference_mode():
        one, other = (
            t.per_example_loss(model, t.batch(np.arange(40)).to(GPU)) for t in (toys.task(), cached)
        )
    torch.testing.assert_close(other, one, rtol=0, atol=1e-4 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("adapter", [toys.ADAPTER, FULL], ids=["lora", "full"])
def test_computing_in_bf16_keeps_the_bound_on_an_example(adapter: AdapterSpec) -> None:
    """The norm and the sum are of the same rounded gradient, also where a GPU's bf16 products made
    it."""
    toy, task, c = replace(toy_on(GPU, adapter), autocast=torch.bfloat16), toys.task(), 0.01
    engine = ClippedGradients(toy.model, toy.parameters, Clipping(c))
    for example in range(8):
        total = {name: torch.zeros_like(p) for name, p in toy.parameters.items()}
        batch = task.batch(np.array([example])).to(GPU)
        norms = engine.accumulate(partial(losses_of, toy, task, batch), total)[1]
        length = float(torch.cat([t.flatten() for t in total.values()]).double().norm())
        assert float(norms) > c
        assert c * (1 - 1e-3) <= length <= c * (1 + 1e-5)


def test_gpt2_trains_a_bf16_adapter() -> None:
    """Autocast leaves its last norm in fp32 beside an output layer in bf16."""
    base = models.PretrainedModel(
        name="toy", model=plain_gpt2().to(torch.bfloat16), tokenizer=None, weight_hash="toy"
    )
    adapter = AdapterSpec(r=2, target_modules=("c_attn",))
    model = adapters.attach_adapter(base, adapter).to(GPU)
    parameters = adapters.trainable_parameters(model, adapter)
    toy = TrainingContext(model=model, parameters=parameters, autocast=torch.bfloat16)
    toys.METHOD.train(toys.PLAN, toy, toys.task(), LocalComm(GPU), toys.KEY, None)
    assert all(torch.isfinite(value).all() for value in weights(toy).values())


def test_scores_are_those_of_a_cpu() -> None:
    tokenizer = byte_tokenizer()
    secrets = [secret(1, "Mira lives at ", "12 Elm"), secret(2, "Otto owes ", "9 crowns")]
    model = memorise(secrets, tokenizer)
    on_gpu = replace(model, model=copy.deepcopy(model.model).to(GPU), base_weights={})
    one, other = (log_probabilities(m, secrets) for m in (model, on_gpu))
    np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4)
    prompts = [tokenizer(s.prompt).input_ids for s in secrets]
    draws = [uniforms(0, "gpu", s.id, 8, 6) for s in secrets]
    stop = np.array([], np.int64)
    texts = [
        sample_continuations(m, prompts, draws, Sampling(), stop=stop) for m in (model, on_gpu)
    ]
    same = [
        np.array_equal(a, b)
        for mine, theirs in zip(*texts, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    ]
    assert np.mean(same) > 0.9, (
        "a draw between two tokens whose probabilities differ in the last bits may differ"
    )


def test_prompts_are_found_on_a_gpu() -> None:
    tokenizer = byte_tokenizer()
    secrets = [secret(1, "Mira lives at ", "12 Elm Street, Dover")]
    model = memorise(secrets, tokenizer)
    on_gpu = replace(model, model=model.model.to(GPU), base_weights={})
    task = replace(toys.task(), task_secrets=tuple(secrets))
    measured = AdversarialCompression(num_steps=30, num_seeds=1).measure(on_gpu, task, seed=0)
    assert np.isfinite(measured.value)


def test_a_worker_is_held_to_its_share_of_the_memory() -> None:
    """Half of the device: two thirds of it do not fit, and the error is one that halves
    micro-batches."""
    total = torch.cuda.get_device_properties(GPU).total_memory
    take_share(GPU, 0.5, 1)
    try:
        with pytest.raises(torch.OutOfMemoryError) as raised:
            torch.empty(total * 2 // 3, dtype=torch.uint8, device=GPU)
        assert is_out_of_memory(raised.value)
        with pytest.raises(ValueError, match="gpus_per_worker must leave"):
            take_share(GPU, 0.5, total)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, GPU)


def test_micro_batches_are_halved_until_they_fit(tmp_path: Path) -> None:
    """In the memory of a GPU that other tensors fill up."""
    expected = trained(GPU, FULL, toys.METHOD)
    toy = toy_on(GPU, FULL, budget=TokenBudget(GPU, tmp_path / "budget.json"))
    torch.cuda.empty_cache()
    limit = torch.cuda.memory_allocated() + (6 << 20)
    torch.cuda.set_per_process_memory_fraction(
        limit / torch.cuda.get_device_properties(GPU).total_memory, GPU
    )
    try:
        toys.METHOD.train(toys.PLAN, toy, toys.task(), LocalComm(GPU), toys.KEY, None)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, GPU)
    assert toys.distance(weights(toy), expected) <= DEVICE_TOLERANCE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("length", "rows", "columns"), [(5, 130, 16), (64, 256, 192), (513, 384, 128), (2100, 64, 130)]
)
def test_products_of_16_bit_factors_have_32_bit_sums(
    dtype: torch.dtype, length: int, rows: int, columns: int
) -> None:
    """Against fp64.

    In fp32 a sum of 4 · 513 products is right to 1e-5; rounded to 16 bits it would be to 1e-3.
    """
    assert narrow_products.add_weighted_product is not None, (
        "Triton's kernel makes the sums on CUDA"
    )
    generator = torch.Generator(GPU).manual_seed(0)
    left, right = (
        torch.randn(4, length, size, generator=generator, device=GPU).to(dtype)
        for size in (rows, columns)
    )
    weights = torch.tensor([0.3, 0.0, 1.0, 1e-3], device=GPU)
    each = left.double().mT @ right.double()
    exact = torch.einsum("i,imn->mn", weights.double(), each)
    for add in (narrow_products.add_weighted_sum, narrow_products.add_by_example):
        made = torch.ones(rows, columns, device=GPU)
        add(made, left, right, weights)
        assert float((made - 1 - exact).norm() / exact.norm()) < 1e-5
    made = narrow_products.batched(left.mT, right)
    assert float((made - each).norm() / each.norm()) < 1e-5


@pytest.mark.parametrize("length", [5, 37, 512])
def test_the_sums_of_a_ghost_norm_are_those_of_a_cpu(length: int) -> None:
    assert narrow_products.add_up_terms is not None, "Triton's kernel makes the sums on CUDA"
    generator = torch.Generator(GPU).manual_seed(0)
    left, right = (
        torch.randn(3, length, length, generator=generator, device=GPU) for _ in range(2)
    )
    made = narrow_products.sums_of_terms(left, right)
    exact = narrow_products.sums_of_terms(left.double().cpu(), right.double().cpu())
    scale = (left * right).double().norm(dim=(1, 2)).cpu()  # the sum of all terms is near 0
    for own, expected in zip(made, exact, strict=True):
        assert float(((own.cpu().double() - expected) / scale).abs().max()) < 1e-5


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("adapter", [toys.ADAPTER, FULL], ids=["lora", "full"])
def test_an_example_whose_gradient_is_not_finite_adds_nothing(
    adapter: AdapterSpec, autocast: torch.dtype | None
) -> None:
    toy, task = replace(toy_on(GPU, adapter), autocast=autocast), toys.task()
    batch = task.batch(np.arange(8)).to(GPU)
    sums = []
    for broken in (False, True):
        total = {name: torch.zeros_like(p) for name, p in toy.parameters.items()}
        engine = ClippedGradients(toy.model, toy.parameters, Clipping(0.1))
        factors = torch.ones(8, device=GPU)
        factors[3] = float("nan") if broken else 0.0

        def loss(factors: torch.Tensor = factors) -> torch.Tensor:
            return losses_of(toy, task, batch) * factors

        engine.accumulate(loss, total)
        sums.append(torch.cat([t.flatten() for t in total.values()]))
    assert torch.isfinite(sums[1]).all()
    assert float((sums[0] - sums[1]).norm() / sums[0].norm()) < 1e-5


def test_a_sum_in_bf16_is_that_of_the_same_gradients_in_fp32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sums, norms = [], []
    for narrow in (True, False):
        if not narrow:
            monkeypatch.setattr(narrow_products, "is_narrow", lambda values: False)
        toy, task = replace(toy_on(GPU, FULL), autocast=torch.bfloat16), toys.task()
        total = {name: torch.zeros_like(p) for name, p in toy.parameters.items()}
        engine = ClippedGradients(toy.model, toy.parameters, Clipping(0.1))
        batch = task.batch(np.arange(40)).to(GPU)
        norms.append(engine.accumulate(partial(losses_of, toy, task, batch), total)[1])
        sums.append(torch.cat([t.flatten() for t in total.values()]))
    torch.testing.assert_close(norms[0], norms[1], rtol=2e-3, atol=0)
    assert float((sums[0] - sums[1]).norm() / sums[1].norm()) < 5e-3, (
        "inputs are rounded to what the layer multiplied"
    )


@pytest.mark.parametrize("width", [64, 4096])
def test_positions_that_cancel_in_bf16_do_not_hide_an_example(width: int) -> None:
    """As in test_clipping, with factors that bf16 holds: the norm of what is added is at most c."""
    c = 0.5
    generator = torch.Generator(GPU).manual_seed(0)
    base = torch.randn(1, 1, width, generator=generator, device=GPU).bfloat16()
    direction = torch.randn(1, 1, width, generator=generator, device=GPU).bfloat16()
    near = base * (1 + 2**-7)  # the next bf16 numbers, so that the two positions nearly cancel
    x, g = torch.cat([base, near.bfloat16()], dim=1), torch.cat([direction, -direction], dim=1)
    use = layers.Use(kind="linear", x=x, g=g)
    assert use.is_narrow()
    norm = use.norm_squared().sqrt()
    factors = Clipping(c).factors(norm)
    total = torch.zeros(width, width, device=GPU)
    use.add_weighted_sum(total, factors)
    exact = (g.double().mT @ x.double()).norm()
    assert norm.double() >= exact * (1 - 1e-5)
    assert float(total.double().norm()) <= c * (1 + 1e-5)
